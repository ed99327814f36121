"""AutoInt: self-attention over fields (arXiv 1810.11921)."""
