"""Tiny ASTRO models for the tests."""

import torch

from lmctr import ASTROConfig, ASTROForCTR
from lmctr.models.astro.layers import RelativeBias, Temperature

STRATEGIES = [
    {"name": "like", "behaviors": ["like"]},
    {"name": "recent", "window_seconds": 200},
    {"name": "here", "scenarios": "same"},
]


def astro_config(**values):
    defaults = {
        "item_vocab_size": 30,
        "behavior_names": ["unknown", "full-play", "like"],
        "num_scenarios": 3,
        "scenario_names": ["home", "search", "radio"],
        "strategies": STRATEGIES,
        "sequence_length": 12,
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_position_buckets": 6,
        "num_time_buckets": 8,
        "head_hidden_sizes": [12, 8],
        "initializer_range": 0.3,
    }
    return ASTROConfig(**(defaults | values))


def astro_model(seed=0, noise=0.0, **values):
    """A model; with `noise` the tables that start at zero are moved, so that tests see them."""
    torch.manual_seed(seed)
    model = ASTROForCTR(astro_config(**values)).eval()
    if noise:
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, (Temperature, RelativeBias)):
                    for parameter in module.parameters(recurse=False):
                        parameter.normal_(std=noise)
    return model


def logits_of(model, batch, **values):
    with torch.no_grad():
        return model(**{k: v for k, v in batch.items() if k != "labels"}, **values).logits
