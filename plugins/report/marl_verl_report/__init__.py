"""The report of runs as one HTML page, stored or of a running run, and paired comparisons."""
