"""Models: chat templates, parsers of answers, sizes, and the sources from which distributions make models."""
