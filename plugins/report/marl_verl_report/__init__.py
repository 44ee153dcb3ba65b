"""The report of runs as one HTML page, stored or of a running run, and paired comparisons."""

__version__ = "0.1.0"
