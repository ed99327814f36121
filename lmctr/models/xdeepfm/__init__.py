"""xDeepFM (arXiv 1803.05170)."""
