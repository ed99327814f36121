"""DeepFM: a factorisation machine and an MLP on the same vectors (arXiv 1703.04247)."""
