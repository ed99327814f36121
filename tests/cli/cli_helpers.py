"""What the tests of the verbs share."""

import json

from tiny_backbones import TINY_BERT

from lmctr.cli.main import main
from lmctr.data import load_log

TINY = {
    "data": {
        "name": "synthetic",
        "options": {"num_users": 20, "num_items": 60, "events_per_user": 20},
        "num_behaviors": 5,
        "feedback": "inline",
        "prompt": "generic/en",
    },
    "model": {
        "backbone": TINY_BERT | {"num_hidden_layers": 2, "max_position_embeddings": 128},
        "tokenizer": {"type": "wordpiece", "vocab_size": 300},
        "num_sink_buckets": 8,
        "sink_embedding_dim": 8,
    },
    "training": {
        "stage1_epochs": 1,
        "stage2_epochs": 2,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 32,
        "use_cpu": True,
    },
}


def read(folder, name):
    return json.loads((folder / name).read_text())


def error_of(capsys, *words, code=2):
    """What a command that must fail prints."""
    capsys.readouterr()  # what came before
    assert main([str(word) for word in words]) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    return error


def tiny_log():
    """The log of the tiny recipe."""
    return load_log("synthetic", num_users=20, num_items=60, events_per_user=20)


def request_of(log, event, **more):
    """The request that describes a sample of the log in raw texts."""
    titles = log.catalogue["title"].to_pylist()
    start, end = (int(bound[0]) for bound in log.history_bounds([event]))
    words = (None, "skipped", "chosen")
    history = [
        {"text": titles[log.item[row]], "time": int(log.time[row]), "feedback": words[log.feedback[row]]}
        for row in range(start, end)
    ]
    return {"history": history, "target": titles[log.item[event]], "time": int(log.time[event]), **more}


def predict(run, tmp_path, requests, *words):
    """Answers of `lmctr predict` to requests."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(request) + "\n" for request in requests))
    assert main(["predict", str(run), "--input", str(source), "--output", str(target), *words]) == 0
    return [json.loads(line) for line in target.read_text().splitlines()]
