"""TWIN (arXiv 2302.02352)."""
