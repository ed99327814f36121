"""Wukong: stacked factorisation machines (arXiv 2403.02545)."""
