"""Tiny CTR-Sink configurations and batches for the tests."""

import torch

from lmctr import CTRSinkConfig

BACKBONES = ("bert", "roberta", "qwen2", "qwen3")
VOCAB = 60


ENCODERS = (
    *("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    *("distilbert", "modernbert", "mpnet", "deberta-v2"),
)
DECODERS = ("qwen2", "qwen3", "llama", "mistral", "gemma", "gemma2", "gemma3_text", "phi3", "gpt2")

_KEYS_OF = {  # the names that some types have for what the others share
    "distilbert": {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                   "intermediate_size": "hidden_dim", "hidden_dropout_prob": "dropout",
                   "attention_probs_dropout_prob": "attention_dropout"},
    "gpt2": {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
             "intermediate_size": "n_inner", "max_position_embeddings": "n_positions", "hidden_dropout_prob": "resid_pdrop",
             "attention_probs_dropout_prob": "attn_pdrop"},
    "modernbert": {"hidden_dropout_prob": "embedding_dropout", "attention_probs_dropout_prob": "attention_dropout"},
}  # fmt: skip
_LAYERS = ["full_attention", "sliding_attention", "full_attention"]
_VALUES_OF = {
    "qwen3": {"head_dim": 16},
    "electra": {"embedding_size": 24},  # narrower than the layers, as in ELECTRA's smallest
    "modernbert": {"layer_types": _LAYERS, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "norm_rel_ebd": "layer_norm",
                   "share_att_key": True, "position_biased_input": False, "conv_kernel_size": 3},
    "mistral": {"sliding_window": 5},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "layer_types": _LAYERS, "sliding_window": 5, "attn_logit_softcapping": 3.0,
               "query_pre_attn_scalar": 16},
    "gemma3_text": {"head_dim": 16, "layer_types": _LAYERS, "sliding_window": 5, "query_pre_attn_scalar": 16},
    "gpt2": {"embd_pdrop": 0.0},
}  # fmt: skip


def text_config(model_type, **values):
    config = {
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
    if model_type in DECODERS and model_type != "gpt2":
        del config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]
        config |= {"num_key_value_heads": 2}
    if model_type in DECODERS or model_type == "modernbert":
        config |= {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    names = _KEYS_OF.get(model_type, {})
    renamed = {names.get(key, key): value for key, value in config.items()}
    return {"model_type": model_type} | renamed | _VALUES_OF.get(model_type, {}) | values


def sink_config(model_type="bert", attn_implementation="sdpa", text=None, **values):
    defaults = {"num_sink_buckets": 10, "sink_embedding_dim": 16, "sink_bias_dropout": 0.0}
    config = CTRSinkConfig(text_config=text_config(model_type, **(text or {})), **(defaults | values))
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
