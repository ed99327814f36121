"""Wukong (arXiv 2403.02545)."""
