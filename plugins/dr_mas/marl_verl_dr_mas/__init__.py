"""Dr. MAS: advantages are normalised per agent."""

__version__ = "0.1.0"
