"""ASTRO of the Climber paper (arXiv 2502.09888)."""
