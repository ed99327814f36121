"""RankElastor (arXiv 2605.23191)."""
