"""MAGRPO: agents that act simultaneously for several turns, one joint reward, a joint tree."""

__version__ = "0.1.0"
