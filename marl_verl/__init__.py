"""marl-verl: teams of LLM agents, trained with multi-agent reinforcement learning on top of unmodified verl."""

__version__ = "0.1.0"
