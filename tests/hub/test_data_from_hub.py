"""Data sets named hf://user/name, downloaded from a stand-in of the Hub: a table to train on, and a log to look at."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hub_server import HubServer, client

from lmctr.data import load_log

RUN = """
import contextlib, io, json, sys
from lmctr.cli.main import main

said = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    said.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(said))
"""
PARTS = {"train": 40, "validation": 10, "test": 12}


def parquet(table):
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return {"data": stream.getvalue(), "lfs": True}


def clicks(rows):
    draw = np.random.default_rng(rows)
    ads = [f"a{number}" for number in draw.integers(0, 4, rows)]
    return pa.table({"ad": ads, "price": draw.random(rows), "label": np.arange(rows) % 2})


def repository(files, **more):
    return {"private": False, "branches": {"main": "c" * 40}, "commits": {"c" * 40: files}} | more


@pytest.fixture(scope="module")
def hub():
    with HubServer() as server:
        table = {f"data/{part}-00000-of-00001.parquet": parquet(clicks(rows)) for part, rows in PARTS.items()}
        table["README.md"] = {"data": b"---\nlicense: mit\n---\n", "lfs": False}
        server.repos["datasets:tester/clicks"] = repository(table)
        server.repos["datasets:tester/secret"] = repository(table, private=True)
        parts = load_log("synthetic", num_users=8, num_items=30, events_per_user=10).to_dataset()
        log = {f"{name}/train.parquet": parquet(rows.with_format("arrow")[:]) for name, rows in parts.items()}
        configs = [{"config_name": name, "data_files": f"{name}/train.parquet"} for name in parts]
        log["README.md"] = {"data": f"---\n{yaml.safe_dump({'configs': configs})}---\n".encode(), "lfs": False}
        server.repos["datasets:tester/log"] = repository(log)
        yield server


def run(hub, tmp_path, *commands, token="hf_reader"):
    done = client(hub.url, tmp_path, "-c", RUN, json.dumps(commands), token=token)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_inspect_and_train(hub, tmp_path):
    recipe = {
        "data": {"name": "hf://tester/clicks", "options": {"label": "label"}},
        "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [4]},
        "training": {"epochs": 1, "use_cpu": True},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    inspect, folder = ["data", "inspect", "--json", "--quiet"], str(tmp_path / "run")
    looked, trained, of_log, again, pinned = run(
        hub,
        tmp_path,
        [*inspect, "hf://tester/clicks", "--kind", "table"],
        ["train", str(tmp_path / "recipe.yaml"), "--output-dir", folder, "--quiet"],
        [*inspect, "hf://tester/log", "--kind", "log"],
        ["evaluate", folder, "--quiet"],
        [*inspect, f"hf://tester/clicks@{'c' * 40}", "--kind", "table"],
    )
    assert looked[0] == 0, looked[2]
    assert looked[2] == ""
    figures = json.loads(looked[1])
    assert json.dumps(figures).count('"rows": 40') >= 1
    assert trained[0] == 0, trained[2]
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["split metrics"]["test"]["num_samples"] == PARTS["test"]
    described = json.loads((tmp_path / "run" / "data.json").read_text())
    assert described["info"]["name"] == "tester/clicks"
    assert of_log[0] == 0, of_log[2]
    counts = json.loads(of_log[1])["counts"]
    assert (counts["users"], counts["items"], counts["events"]) == (8, 30, 80)
    assert again[0] == pinned[0] == 0
    downloads = [name for name in hub.log if name == "resolve"]
    assert len(downloads) >= len(PARTS) + 2


def test_what_cannot_be_read(hub, tmp_path):
    asked = [["data", "inspect", f"hf://tester/{name}", "--kind", "table"] for name in ("nothing", "secret", "a/b")]
    asked.append(["data", "inspect", "hf://tester/clicks@none", "--kind", "table"])
    found = run(hub, tmp_path, *asked, token="")
    assert [code for code, *_ in found] == [2] * 4
    errors = [err.splitlines()[-1] for *_, err in found]
    assert errors[0].startswith("error: hf://tester/nothing: no such data set, or none that may be read")
    assert errors[1].startswith("error: hf://tester/secret: no such data set, or none that may be read")
    assert "accepted is hf://user/name" in errors[2]
    assert "none" in errors[3]
