"""Look at what a run has stored: explain advantages, replay episodes. Nothing here imports torch."""
