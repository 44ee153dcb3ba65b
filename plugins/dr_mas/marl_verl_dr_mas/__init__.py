"""Dr. MAS: every agent is normalised by itself."""

__version__ = "0.1.0"
