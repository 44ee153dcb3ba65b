"""Dr. MAS: advantages are normalised per agent."""
