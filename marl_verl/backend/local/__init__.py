"""The embedded backend: policies are trained and sampled in this process, on the same weights."""
