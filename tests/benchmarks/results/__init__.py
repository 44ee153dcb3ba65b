"""The experiments of docs/results.md: `python -m tests.benchmarks.results`."""
