"""CTR-Sink: language models with behaviour-level attention sinks (arXiv 2508.03668)."""
