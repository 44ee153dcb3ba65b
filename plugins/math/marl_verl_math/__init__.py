"""Mathematics for teams of agents: solver and verifier, reasoner and tool user."""
