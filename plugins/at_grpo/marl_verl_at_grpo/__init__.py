"""AT-GRPO: candidates for one act are compared, and the best is the next state."""
