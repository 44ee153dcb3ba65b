"""Mathematics for teams of agents: solver and verifier, reasoner and tool user."""

__version__ = "0.1.0"
