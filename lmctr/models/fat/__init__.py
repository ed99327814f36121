"""FAT: the Field-Aware Transformer (arXiv 2511.12081)."""
