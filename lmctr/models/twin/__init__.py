"""TWIN: two-stage interest network (arXiv 2302.02352)."""
