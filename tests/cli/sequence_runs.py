"""What the tests of runs that read event sequences share."""

import copy

from lmctr.data import load_log

OPTIONS = {"num_users": 40, "num_items": 30, "events_per_user": 60, "num_topics": 2}
MODELS = {
    "astro": {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "sequence_length": 120},
    "din": {"embedding_dim": 8},
    "twin": {"hidden_size": 8, "num_attention_heads": 2, "num_selected": 10},
    "dlrm_twin": {"hidden_size": 8, "num_attention_heads": 2, "num_selected": 10, "head_hidden_sizes": [16]},
    "behavior_transformer": {"hidden_size": 16, "num_attention_heads": 2, "head_hidden_sizes": [16]},
    "hstu": {"hidden_size": 16, "num_hidden_layers": 1, "head_hidden_sizes": [16]},
}


def recipe_of(family, tasks=("label",), **data):
    """A recipe that trains in seconds."""
    return copy.deepcopy(
        {
            "data": {
                "name": "synthetic_sequence",
                "options": OPTIONS,
                "candidates_per_row": 4,
                "item_features": ["genres"],
                "list_values": 2,
                "tasks": list(tasks),
                **data,
            },
            "model": {"family": family, "initializer_range": 0.1, **MODELS[family]},
            "training": {
                "stage2_epochs": 2,
                "learning_rate": 1e-2,
                "per_device_train_batch_size": 16,
                "use_cpu": True,
                "seed": 0,
            },
        }
    )


def sequence_log():
    """The log of these recipes."""
    return load_log("synthetic_sequence", **OPTIONS)


def event_request(log, event, **more):
    """The request that describes a sample of the log."""
    start, end = log.offsets[log.user[event]], log.history_end[event]
    items = log.catalogue["item_id"].to_pylist()
    history = [
        {
            "item": items[log.item[row]],
            "behavior": log.feedback_names[log.feedback[row]],
            "scenario": log.scenario_names[log.scenario[row]],
            "time": int(log.time[row]),
        }
        for row in range(start, end)
    ]
    scenario = log.scenario_names[log.scenario[event]]
    return {
        "history": history,
        "target": items[log.item[event]],
        "scenario": scenario,
        "time": int(log.time[event]),
        **more,
    }
