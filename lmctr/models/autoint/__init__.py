"""AutoInt (arXiv 1810.11921)."""
