"""RetrievalMLP: the foundation MLP on user and ad, of the pre-ranking stage."""
