"""BehaviorTransformer: a one-stage Transformer over behaviours and the candidate (after BST, arXiv 1905.06874)."""
