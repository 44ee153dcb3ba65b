"""MARS2 and MARS2+: several models search one tree per task."""
