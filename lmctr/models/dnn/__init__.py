"""DNN: the fields' vectors side by side into an MLP, the base that CTR models are compared with."""
