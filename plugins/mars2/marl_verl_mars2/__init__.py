"""MARS2 and MARS2+: several models search one tree per task."""

__version__ = "0.1.0"
