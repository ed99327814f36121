"""CTR-Sink (arXiv 2508.03668)."""
