"""What makes a family small in tests; its other keys keep their defaults."""

HEAD = {"head_hidden_sizes": [8]}
SMALL = {
    "dnn": {"hidden_units": [8]},
    "ffm": {},
    "deepfm": {"hidden_units": [8]},
    "xdeepfm": {"hidden_units": [8], "cin_units": [6]},
    "autoint": {"num_hidden_layers": 1},
    "dcnv2": {"hidden_units": [8]},
    "wukong": {"num_hidden_layers": 2, "hidden_units": [8]},
    "hiformer": {"num_hidden_layers": 1},
    "fat": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_bases": 4, "meta_dim": 8},
    "rank_mixer": {"num_tokens": 4, "token_dim": 8, "num_hidden_layers": 1},
    "rank_elastor": {"num_tokens": 4, "token_dim": 8, "num_hidden_layers": 1},
    "astro": {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "sequence_length": 20, **HEAD},
    "din": {"embedding_dim": 8, "attention_hidden_sizes": [8], **HEAD},
    "twin": {"hidden_size": 8, "num_attention_heads": 2, **HEAD},
    "dlrm_twin": {"hidden_size": 8, "num_attention_heads": 2, "statistics_hidden_sizes": [8], **HEAD},
    "behavior_transformer": {"hidden_size": 16, "num_attention_heads": 2, **HEAD},
    "hstu": {"hidden_size": 16, "num_hidden_layers": 1, **HEAD},
}
