"""DNN: embeddings and an MLP."""
