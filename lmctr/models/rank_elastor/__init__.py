"""RankElastor: full token mixing and gated per-token networks (arXiv 2605.23191)."""
