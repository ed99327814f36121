"""What a push uploads of a run, copied alone into a folder, is scored by `lmctr predict` as the run itself: every family."""

import json
import shutil

import numpy as np
import pytest
import small_families

import lmctr
from lmctr.cli.main import main
from lmctr.data import load, load_log
from lmctr.models.families import families, family_of
from lmctr.runs.folder import RunFolder

OPTIONS = {  # of a data set per kind of input that is read in no time
    "text": {"num_users": 20, "num_items": 30, "events_per_user": 10},
    "tabular": {"num_rows": 300, "num_categorical": 3, "num_numeric": 2, "num_pairs": 2, "vocab_size": 50},
    "sequence": {"num_users": 20, "num_items": 20, "events_per_user": 20},
    "impressions": {
        "num_impressions": 60,
        "num_users": 20,
        "num_ads": 40,
        "num_matched": 30,
        "num_preranked": 20,
        "num_ranked": 8,
        "num_components": 2,
        "ads_per_impression": [3, 6],
    },
}
DATA = {
    "text": {"name": "synthetic", "prompt": "generic/en", "num_behaviors": 4},
    "tabular": {"name": "synthetic_table"},
    "sequence": {"name": "synthetic_sequence", "item_features": ["genres"], "baselines": False},
    "impressions": {"name": "synthetic_cascade"},
}
SMALL = {  # what makes a family small; other keys keep their defaults
    "ctr_sink": {
        "backbone": {
            "model_type": "bert",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "max_position_embeddings": 128,
        },
        "tokenizer": {"type": "wordpiece", "vocab_size": 200},
        "num_sink_buckets": 8,
        "sink_embedding_dim": 8,
    },
    **small_families.SMALL,
}


def recipe_of(family, data):
    epochs = {"stage1_epochs": 0} if family.input == "text" else {}
    return {
        "data": {**DATA[family.input], "options": OPTIONS[family.input], **data},
        "model": {"family": family.model_type, **SMALL.get(family.model_type, {})},
        "training": {**epochs, "max_steps": 2, "use_cpu": True, "seed": 0},
    }


def text_requests():
    log = load_log("synthetic", **OPTIONS["text"])
    titles = log.catalogue["title"].to_pylist()
    history = [{"text": titles[log.item[row]], "time": int(log.time[row])} for row in range(5)]
    time = history[-1]["time"] + 9
    several = {"history": history, "candidates": titles[:3], "time": time}
    return [{"history": history[:2], "target": titles[7], "time": time}, several]


def event_requests():
    log = load_log("synthetic_sequence", **OPTIONS["sequence"])
    items = log.catalogue["item_id"].to_pylist()
    names = {"behavior": log.feedback_names, "scenario": log.scenario_names}
    history = [
        {
            "item": items[log.item[row]],
            "behavior": names["behavior"][log.feedback[row]],
            "scenario": names["scenario"][log.scenario[row]],
            "time": int(log.time[row]),
        }
        for row in range(5)
    ]
    time = history[-1]["time"] + 9
    several = {"history": history, "candidates": [*items[:3], 10**6], "time": time, "scenario": names["scenario"][0]}
    return [{"history": history[:2], "target": items[7], "time": time}, several]


def impression_requests():
    source = load("synthetic_cascade", **OPTIONS["impressions"])
    block = next(source.blocks("test"))
    users, ads, ends = block.users.to_pylist(), block.ads.to_pylist(), np.cumsum(block.counts)
    return [{"user": user, "ads": ads[end - count : end]} for user, count, end in zip(users[:3], block.counts, ends)]


def table_rows():
    source = load("synthetic_table", **OPTIONS["tabular"])
    return next(source.rows(part="test")).table.slice(0, 5).to_pylist()


ROWS = {
    "text": text_requests,
    "tabular": table_rows,
    "sequence": event_requests,
    "impressions": impression_requests,
}
UNKNOWN = {
    "text": "2 requests scored",
    "tabular": "unknown values",
    "sequence": "items of candidates 20.0%",
    "impressions": "unknown",
}
# A run whose histories are retrieved needs its retriever too.
RETRIEVAL = {"order": "similarity", "retrieval": {"encoder": "tfidf", "k": 6}}
ALL = [*((family, {}) for family in families()), (family_of("ctr_sink"), RETRIEVAL)]


@pytest.mark.parametrize(
    ("family", "data"), ALL, ids=lambda value: getattr(value, "model_type", "retrieved" if value else "")
)
def test_the_upload_set_alone_is_served(family, data, tmp_path, capsys):
    run = lmctr.runs.train(recipe_of(family, data), output_dir=tmp_path / "run")
    alone = tmp_path / "alone"
    for name in RunFolder(run.path).upload_files():
        (alone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(run.path / name, alone / name)
    assert not (alone / "recipe.yaml").exists()
    assert (alone / "retriever").is_dir() == bool(data)
    rows = ROWS[family.input]()
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    capsys.readouterr()
    assert main(["predict", str(alone), "--input", str(source), "--output", str(target)]) == 0
    assert UNKNOWN[family.input] in capsys.readouterr().err
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    keys = ("logit", "logits", "scores")
    found = np.concatenate([np.atleast_1d(answer[key]) for answer in answers for key in keys if key in answer])
    expected = run.predict(rows)
    assert expected.dtype == np.float32
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(found, expected, atol=1e-6)
