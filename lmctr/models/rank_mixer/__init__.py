"""RankMixer (arXiv 2507.15551)."""
