"""HiFormer (arXiv 2311.05884)."""
