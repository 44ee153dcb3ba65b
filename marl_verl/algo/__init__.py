"""The arithmetic: rows, returns, advantages, credit, rewards, samplers, algorithms, losses."""
