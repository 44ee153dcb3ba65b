"""How good a trained team is on held-out tasks: who acts with which weights, and the numbers with their intervals."""
