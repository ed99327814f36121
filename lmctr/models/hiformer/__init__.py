"""HiFormer: attention with projections of each field's own and over all fields (arXiv 2311.05884)."""
