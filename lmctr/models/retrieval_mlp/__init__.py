"""RetrievalMLP, for the pre-ranking of ads."""
