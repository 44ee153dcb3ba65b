"""Look at what a run has stored: explain advantages, replay episodes; and export its policies."""
