"""HSTU: hierarchical sequential transduction unit (arXiv 2402.17152)."""
