"""xDeepFM: compressed interaction network, linear part and MLP (arXiv 1803.05170)."""
