"""DIN: deep interest network (arXiv 1706.06978)."""
