"""BehaviorTransformer (after BST, arXiv 1905.06874)."""
