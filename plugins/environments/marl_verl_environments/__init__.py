"""Environments of other packages as task sets."""
