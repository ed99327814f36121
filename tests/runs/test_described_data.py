"""What describes items, users and events is part of a run's data: a training that is taken up again, a mean of runs, kept baselines, a search."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

from lmctr.cli.main import main
from lmctr.data import InteractionLog
from lmctr.runs.folder import unlike_data
from lmctr.runs.inputs.logs import described_fingerprint

SCHEMA = {
    "name": "shop",
    "events": {"path": "log.csv"},
    "columns": {"user": "user_id", "item": "item_id", "time": {"column": "ts", "unit": "s"}, "label": "clicked"},
    "catalogue": {"path": "items.csv"},
    "users": {"path": "users.csv"},
}
SCHEMA["columns"]["context"] = ["place"]
RECIPE = {
    "data": {"name": "shop.yaml", "item_features": ["kind"]},
    "model": {"family": "din", "embedding_dim": 4},
    "training": {"epochs": 1, "per_device_train_batch_size": 128, "use_cpu": True, "seed": 0},
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A log of 400 events in the working folder."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    rows = {name: draw.integers(0, 20, 400) for name in ("user_id", "item_id", "place")}
    rows |= {
        "ts": np.arange(400) * 60 + 1_600_000_000,
        "clicked": (rows["item_id"] + draw.integers(0, 20, 400) > 19) * 1,
    }
    pd.DataFrame(rows).to_csv("log.csv", index=False)
    pd.DataFrame({"item_id": range(30), "kind": [f"k{item // 5}" for item in range(30)]}).to_csv(
        "items.csv", index=False
    )
    pd.DataFrame({"user_id": range(20), "age": range(20)}).to_csv("users.csv", index=False)
    Path("shop.yaml").write_text(yaml.safe_dump(SCHEMA))
    Path("din.yaml").write_text(yaml.safe_dump(RECIPE))


def changed(file, column, row=0):
    """Writes another value in a row of a file."""
    frame = pd.read_csv(file)
    frame.loc[row, column] = frame[column].iloc[-11]
    frame.to_csv(file, index=False)


@pytest.mark.parametrize(("file", "column"), [("items.csv", "kind"), ("users.csv", "age"), ("log.csv", "place")])
def test_a_training_is_not_taken_up_again_with_other_descriptions(files, capsys, file, column):
    words = ["train", "din.yaml", "--output-dir", "run", "--data.baselines", "false"]
    assert main(words) == 0
    before = json.loads(Path("run/data.json").read_text())

    def again():
        for name in ("metrics.json", "lmctr_manifest.json"):
            Path("run", name).unlink()
        return main([*words, "--resume"])

    assert again() == 0
    changed("items.csv", "kind", 27)  # of an item that does not occur
    assert again() == 0
    changed(file, column)
    assert again() == 2
    said = capsys.readouterr().err
    assert (
        f"the data are not those that the run in run was started with (checksum {before['described_fingerprint']}"
        in said
    )
    main([*words[:3], "other", *words[4:]])
    other = json.loads(Path("other/data.json").read_text())
    assert {key for key in before if before[key] != other[key]} >= {"described_fingerprint", "data_fingerprint"}
    assert unlike_data(before, other) == "described_fingerprint"
    earlier = {key: value for key, value in before.items() if key != "described_fingerprint"}
    assert unlike_data(earlier, other) is None, "a run of an earlier release has none"


def test_baselines_of_other_descriptions_are_not_those_kept(files):
    for name in ("first", "second"):
        Path("grid.yaml").write_text(
            yaml.safe_dump({"name": name, "recipe": "din.yaml", "seeds": [0], "points": [{"name": name}]})
        )
        assert main(["grid", "run", "grid.yaml", "--output-dir", "runs", "--quiet"]) == 0
        changed("items.csv", "kind")
    assert len(list(Path("runs/baselines").glob("*.json"))) == 2


def test_a_search_ends_where_descriptions_have_changed(files, capsys):
    pytest.importorskip("optuna")
    Path("space.yaml").write_text(yaml.safe_dump({"training.learning_rate": {"low": 1e-3, "high": 1e-2}}))
    words = ["search", "din.yaml", "--space", "space.yaml", "--no-compare", "--output-dir", "search", "--quiet"]
    assert main([*words, "--trials", "1"]) == 0
    about = Path("search/search.yaml")
    kept = yaml.safe_load(about.read_text())
    about.write_text(yaml.safe_dump({**kept, "data": {"None": kept["data"]["None"]}}))  # of an earlier release
    assert main([*words, "--trials", "2"]) == 0
    assert yaml.safe_load(about.read_text()) == kept
    changed("items.csv", "kind")
    assert main([*words, "--trials", "3"]) == 2
    assert "the data of search have changed since its first trial" in capsys.readouterr().err


def test_how_a_table_is_stored_does_not_matter(tmp_path):
    draw = np.random.default_rng(0)
    events = np.arange(40), draw.integers(0, 3, 40), np.arange(40), draw.integers(0, 2, 40)
    columns = {
        "item_id": [0, 1, 2],
        "title": ["a", None, "b"],
        "kinds": [["x"], [], None],
        "price": [1.5, None, 2.0],
        "new": [True, None, False],
        "none": pa.nulls(3),
    }

    def told(**more):
        log = InteractionLog.from_columns(*events, catalogue=pa.table(columns | more))
        kept = InteractionLog.load(log.save(tmp_path / "log"))
        assert described_fingerprint(kept) == described_fingerprint(log)
        return described_fingerprint(log)

    alike = {
        "title": pa.array(columns["title"], pa.large_string()).dictionary_encode(),
        "kinds": pa.array(columns["kinds"], pa.large_list(pa.large_string())),
        "price": pa.chunked_array([pa.array([9, 1.5, None]).slice(1), pa.array([2.0])]),
    }
    assert told() == told(**alike)
    others = [{"title": ["a", "b", None]}, {"kinds": [[], ["x"], None]}, {"kinds": [["x"], None, []]}]
    others += [{"price": [1.5, 0.0, 2.0]}, {"new": [True, False, None]}, {"name": columns["title"]}]
    assert len({told(), *(told(**other) for other in others)}) == 1 + len(others)
