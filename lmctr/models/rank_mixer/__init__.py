"""RankMixer: block-transpose token mixing and per-token networks (arXiv 2507.15551)."""
