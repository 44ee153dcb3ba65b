"""AT-GRPO: candidates for one act are compared, the best goes on."""

__version__ = "0.1.0"
