"""Environments of other packages as task sets."""

__version__ = "0.1.0"
