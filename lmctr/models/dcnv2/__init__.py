"""DCNv2: cross network and MLP (arXiv 2008.13535)."""
