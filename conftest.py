"""Settings of all tests, also those of the plugins."""

from hypothesis import settings

settings.register_profile("marl-verl", deadline=None)  # how long an example takes depends on the machine's load
settings.load_profile("marl-verl")
