"""Evaluation of a trained team on held-out tasks: choice of weights, scores and confidence intervals."""
