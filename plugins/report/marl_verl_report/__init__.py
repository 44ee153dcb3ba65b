"""The report of runs as one HTML page: `build` writes the file, `serve` shows a running run.

The page gets its data as JSON and puts every text into the document with `textContent`; nothing is built from markup.
"""

__version__ = "0.1.0"
