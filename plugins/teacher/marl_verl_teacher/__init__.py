"""On-policy distillation: policies that learn from the log-probs of another one."""
