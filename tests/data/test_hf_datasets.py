"""Logs and stores to and from `datasets`, and data sets named hf://, as tables and as logs."""

import dataclasses

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sequence_rows import sequence_log

import lmctr
from lmctr.data import InteractionLog, TabularStore, load_log, load_tabular, table_source
from lmctr.data.impressions.store import ImpressionStore
from lmctr.data.synthetic.cascade import synthetic_cascade


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def full_log():
    """A log with everything that a log may have, and an item and a user without events."""
    log = sequence_log()
    events = np.arange(log.num_events)
    more = {
        "weight": (events % 3 + 1).astype(np.float32),
        "feedback_values": np.where(events % 4, events / 7, np.nan).astype(np.float32),
        "part": (events % 4 - 1).astype(np.int8),
        "extra_labels": {**log.extra_labels, "liked": (events % 2).astype(np.int8)},
        "context": pa.table({"position": events, "device": [f"d{event % 3}" for event in events]}),
    }
    return dataclasses.replace(log, **more)


def same(one, two):
    for field in dataclasses.fields(InteractionLog):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b, err_msg=field.name)
            assert a.dtype == b.dtype
        elif isinstance(a, pa.Table):
            assert a.to_pydict() == b.to_pydict(), field.name
        elif field.name == "extra_labels":
            assert list(a) == list(b)
            assert all((a[key] == b[key]).all() for key in a)
        else:
            assert a == b, field.name


@pytest.mark.parametrize("through_files", [False, True])
@pytest.mark.parametrize(
    "make", [full_log, lambda: load_log("synthetic", num_users=5, num_items=12, events_per_user=4)]
)
def test_log_there_and_back(make, through_files, tmp_path):
    log = make()
    data = log.to_dataset()
    assert data["events"].features["feedback"].names == list(log.feedback_names)
    if through_files:
        data.save_to_disk(tmp_path / "log")
        data = datasets.load_from_disk(tmp_path / "log")
    same(log, InteractionLog.from_dataset(data))
    shuffled = data["events"].shuffle(seed=1)
    if make is full_log and not through_files:
        again = InteractionLog.from_dataset(shuffled, items=data["items"], users=data.get("users", None))
        np.testing.assert_array_equal(again.time, log.time)


def test_log_of_plain_events():
    events = datasets.Dataset.from_dict(
        {"user_id": ["b", "a", "a"], "item_id": [3, 3, 9], "time": [30, 20, 10], "label": [1, 0, 1]}
    )
    log = InteractionLog.from_dataset(events)
    assert sorted(log.catalogue["item_id"].to_pylist()) == [3, 9]
    assert log.time.tolist() == [10, 20, 30]
    items = {"item_id": [9, 3], "title": ["nine", "three"]}
    titled = InteractionLog.from_dataset(events, items=datasets.Dataset.from_dict(items))
    for kind in (pd.DataFrame, pa.table, dict):
        same(log, InteractionLog.from_dataset(kind(events.to_dict())))
        same(titled, InteractionLog.from_dataset(events, items=kind(items)))
    same(log, InteractionLog.from_dataset(events.to_pandas().convert_dtypes()))
    same(log, InteractionLog.from_dataset(events.to_list()))
    same(log, InteractionLog.from_dataset(iter(events.to_list())))
    with pytest.raises(ValueError, match="'label'"):
        InteractionLog.from_dataset(events.remove_columns("label"))
    for wrong, told in (
        ({**events.to_dict(), "label": 1}, "data: the column 'label' is no list of values, got 1"),
        (
            1,
            "data: got int; accepted: a pyarrow table, a datasets Dataset, a pandas DataFrame, a dict of columns, a list of",
        ),
        ([1], "row 1: expected a dict of columns, got int 1"),
        (events.to_pandas().assign(label=[pd.NA, 1, 0]), r"column 'label': 1 of 3 values are missing \(row 1: None\)"),
    ):
        with pytest.raises(ValueError, match=told):
            InteractionLog.from_dataset(wrong)
    with pytest.raises(ValueError, match="accepted: one with 'events'"):
        InteractionLog.from_dataset({"train": events})


def table(rows=60):
    draw = np.random.default_rng(0)
    return datasets.Dataset.from_dict(
        {
            "ad": [f"a{number}" for number in draw.integers(0, 4, rows)],
            "price": draw.random(rows),
            "label": draw.integers(0, 2, rows),
            "seen": [[1, 2][: number % 3] for number in range(rows)],
        }
    )


def test_stores_there_and_back(tmp_path):
    fields = [{"name": "ad", "type": "categorical"}, {"name": "price", "type": "numeric"}]
    fields.append({"name": "seen", "type": "sequence", "max_length": 2})
    stores = [TabularStore.build(table_source(table(), fields=fields))]
    sizes = {"num_matched": 30, "num_preranked": 20, "num_ranked": 8, "ads_per_impression": 6}
    stores.append(ImpressionStore.build(synthetic_cascade(40, 20, 60, **sizes)))
    for number, store in enumerate(stores):
        data = store.to_dataset()
        assert len(data) == len(store)
        data.to_parquet(tmp_path / f"{number}.parquet")
        for one in (data, datasets.Dataset.from_parquet(str(tmp_path / f"{number}.parquet"))):
            again = type(store).from_dataset(one, store.processor, store.info)
            for name, values in store._arrays().items():
                np.testing.assert_array_equal(getattr(again, name), values, err_msg=name)
                assert getattr(again, name).dtype == values.dtype
    row = stores[1].to_dataset()[3]
    ads = slice(*stores[1].offsets[3:5])
    np.testing.assert_array_equal(row["ad_input_ids"], stores[1].ad_input_ids[ads])
    with pytest.raises(ValueError, match="'bad' is no array of the store"):
        TabularStore.from_dataset(stores[0].to_dataset().rename_column("labels", "bad"))


def test_a_table_of_the_hub(tmp_path):
    folder = tmp_path / "clicks"
    for part, rows in (("train", 40), ("validation", 10), ("test", 12)):
        (folder / "data").mkdir(parents=True, exist_ok=True)
        table(rows).to_parquet(folder / "data" / f"{part}-00000-of-00001.parquet")
    source = load_tabular(f"hf://{folder}", label="label")
    store = TabularStore.build(source)
    assert [len(rows) for rows in (store.splits.train, store.splits.validation, store.splits.test)] == [40, 10, 12]
    assert {field["name"] for field in source.fields} == {"ad", "price", "seen"}
    recipe = {
        "data": {
            "name": f"hf://{folder}",
            "options": {"label": "label"},
            "features": {"only": ["ad"]},
        },
        "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [4]},
        "training": {"epochs": 1, "use_cpu": True},
    }
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert run.metrics["test"]["num_samples"] == 12
    with pytest.raises(ValueError, match="did you mean 'label'"):
        load_tabular(f"hf://{folder}", lable="label")


def test_a_log_of_the_hub(tmp_path):
    draw = np.random.default_rng(0)
    rows = {
        "u": draw.integers(0, 9, 200),
        "i": draw.integers(0, 7, 200),
        "t": np.arange(200) + 10**9,
        "clicked": draw.integers(0, 2, 200),
    }
    (tmp_path / "events").mkdir()
    datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "events" / "train.parquet")
    options = {"columns": {"user": "u", "item": "i", "time": "t", "label": "clicked"}}
    log = load_log(f"hf://{tmp_path / 'events'}", **options)
    same(log, dataclasses.replace(lmctr.data.log_from_table(rows, options), info=log.info))
    whole = datasets.Dataset.from_dict(rows)
    (tmp_path / "parts").mkdir()
    for part, (start, end) in {"train": (0, 150), "validation": (150, 170), "test": (170, 200)}.items():
        whole.select(range(start, end)).to_parquet(tmp_path / "parts" / f"{part}.parquet")
    parted = load_log(f"hf://{tmp_path / 'parts'}", **options)
    expected = np.repeat(np.array([0, 1, 2], np.int8), [150, 20, 30])
    np.testing.assert_array_equal(parted.part, expected[parted.time - 10**9])
    recipe = {
        "data": {"name": f"hf://{tmp_path / 'events'}", "options": options},
        "model": {"family": "din", "embedding_dim": 4},
        "training": {"epochs": 1, "use_cpu": True},
    }
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert np.isfinite(run.metrics["test"]["auc"])
    own = full_log()
    lines = ["---", "configs:"]
    for name, part in own.to_dataset().items():
        (tmp_path / "own" / name).mkdir(parents=True)
        part.to_parquet(tmp_path / "own" / name / "train.parquet")
        lines += [f"- config_name: {name}", f"  data_files: {name}/train.parquet"]
    (tmp_path / "own" / "README.md").write_text("\n".join([*lines, "---", ""]))
    found = load_log(f"hf://{tmp_path / 'own'}")
    same(dataclasses.replace(own, info=found.info), found)


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(ValueError, match="accepted is hf://user/name"):
        load_tabular("hf://clicks")
    with pytest.raises(ValueError, match="not as impressions"):
        lmctr.data.load_impressions("hf://user/clicks")
    with pytest.raises(ValueError, match="give one"):
        load_tabular("hf://user/clicks@main", revision="main")
