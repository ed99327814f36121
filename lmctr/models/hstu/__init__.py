"""HSTU (arXiv 2402.17152)."""
