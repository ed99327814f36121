"""Tiny CTR-Sink configurations and batches for the tests."""

import torch

from lmctr import CTRSinkConfig

BACKBONES = ("bert", "roberta", "qwen2", "qwen3")
VOCAB = 60


def text_config(model_type, **values):
    config = {
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if model_type.startswith("qwen"):
        del config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]
        config |= {"num_key_value_heads": 2}
    if model_type == "qwen3":
        config |= {"head_dim": 16}
    return config | values


def sink_config(model_type="bert", attn_implementation="sdpa", **values):
    defaults = {"num_sink_buckets": 10, "sink_embedding_dim": 16, "sink_bias_dropout": 0.0}
    config = CTRSinkConfig(text_config=text_config(model_type), **(defaults | values))
    config._attn_implementation = attn_implementation
    return config


def rows(num_signals=1, seed=0):
    """Three rows without padding: (ids, buckets (N, S), target mask); 3 sinks, 1 sink, none."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for length, sinks in ((13, (3, 6, 9)), (8, (4,)), (5, ())):
        ids = torch.randint(5, VOCAB, (length,), generator=generator)
        buckets = torch.full((length, num_signals), -1)
        for sink in sinks:
            buckets[sink] = torch.randint(0, 10, (num_signals,), generator=generator)
            ids[sink] = VOCAB + 7  # the sink's id lies outside the backbone's vocabulary
        target = torch.zeros(length, dtype=torch.bool)
        target[-3:-1] = True
        made.append((ids, buckets, target))
    return made


def pad(made, side="right", pad_id=1, extra=0):
    """A batch of the rows, padded on one side."""
    longest = max(len(ids) for ids, _, _ in made) + extra
    names = ("input_ids", "sink_buckets", "target_mask", "attention_mask")
    fills = (pad_id, -1, False, 0)
    columns = {name: [] for name in names}
    for ids, buckets, target in made:
        missing = longest - len(ids)
        for name, value, fill in zip(names, (ids, buckets, target, torch.ones_like(ids)), fills, strict=True):
            space = value.new_full((missing, *value.shape[1:]), fill)
            columns[name].append(torch.cat([value, space] if side == "right" else [space, value]))
    batch = {name: torch.stack(values) for name, values in columns.items()}
    if batch["sink_buckets"].shape[-1] == 1:
        batch["sink_buckets"] = batch["sink_buckets"][..., 0]
    return batch


def batch_of(config, side="right", seed=0, extra=0):
    made = rows(len(config.signals), seed)
    if config.sink_kind != "sink":
        for ids, buckets, _ in made:
            ids[buckets[:, 0] >= 0] = 4
            buckets[buckets >= 0] = 0 if config.sink_kind == "cls" else -1
    return pad(made, side, extra=extra)
