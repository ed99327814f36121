"""Stores on disk, their cache, and the batches of the tabular view."""

import dataclasses
import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

from lmctr.data import (
    TabularCollator,
    TabularDataset,
    TabularFeatureProcessor,
    TabularStore,
    TabularView,
    synthetic_table,
    table_source,
)
from lmctr.data.impressions.store import ImpressionStore
from lmctr.data.tables.store import processor_arguments

OPTIONS = {"num_rows": 3000, "num_categorical": 4, "num_numeric": 2, "vocab_size": 300, "num_pairs": 2}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return TabularStore.build(synthetic_table(**OPTIONS), directory=tmp_path_factory.mktemp("stores"))


def table_with_everything(count=50):
    rng = np.random.default_rng(0)
    return {
        "label": rng.integers(0, 2, count),
        "c": [f"v{n}" for n in rng.integers(0, 5, count)],
        "s": [[f"v{n}" for n in rng.integers(0, 5, rng.integers(0, 4))] for _ in range(count)],
        "at": None,
        "t": np.arange(100, 100 + count),
        "u": [f"user {n}" for n in rng.integers(0, 6, count)],
        "w": rng.random(count),
    }


@pytest.fixture(scope="module")
def full_store():
    table = table_with_everything()
    table["at"] = [[90 + n for n in range(len(values))] for values in table["s"]]
    fields = [{"name": "c", "type": "categorical"}]
    fields += [{"name": "s", "type": "sequence", "max_length": 5, "share_with": "c", "time_column": "at"}]
    return TabularStore.build(table_source(table, "label", fields, group="u", time="t", weight="w")), table


def test_a_store_on_disk_holds_what_transform_gives(store):
    source = synthetic_table(**OPTIONS)
    for part in ("train", "validation", "test"):
        arrays = store.processor.transform(source, part)
        rows = store.splits[part]
        np.testing.assert_array_equal(store.input_ids[rows], arrays["input_ids"])
        np.testing.assert_array_equal(store.numeric_values[rows], arrays["numeric_values"])
        np.testing.assert_array_equal(store.labels[rows], arrays["labels"])
        assert store.statistics[part]["rows"] == len(rows) == {"train": 2400}.get(part, 300)
        assert store.statistics[part]["positive_rate"] == pytest.approx(arrays["labels"].mean())
        assert store.statistics[part]["values"] == arrays.oov_counts
    assert store.input_ids.dtype == np.int16  # 300 values
    assert store.processor.statistics["num_rows"] == 2400  # fitted on the training part only
    assert store.info.best_auc == source.info.best_auc


def test_a_table_that_changes_in_place_is_read_again(tmp_path):
    """Labels that were turned, then rows that were added: neither the store nor the cuts of the parts are those of before."""
    table = pd.DataFrame(table_with_everything()).drop(columns=["s", "at"])
    fields = [{"name": "c", "type": "categorical"}]

    def source():
        return table_source(table, "label", fields, time="t", split="time")

    kept = source()
    TabularStore.build(kept, directory=tmp_path)
    table["label"] = 1 - table["label"]
    assert TabularStore.build(kept, directory=tmp_path).labels.tolist() == table["label"].tolist()
    for count in range(50):
        table.loc[50 + count] = table.loc[count].to_dict() | {"t": 150 + count}
    found, wanted = (TabularStore.build(own, directory=tmp_path / str(own is kept)) for own in (kept, source()))
    assert found.split.tolist() == wanted.split.tolist()


def test_in_memory_and_on_disk_are_the_same(store):
    memory = TabularStore.build(synthetic_table(**OPTIONS))
    assert memory.directory is None
    for name, values in memory._arrays().items():
        np.testing.assert_array_equal(getattr(store, name), values)


def test_finished_stores_are_used_again(store, monkeypatch):
    folder = store.directory.parent

    def fail(*_, **__):
        raise AssertionError("fitted again")

    monkeypatch.setattr(TabularFeatureProcessor, "fit", fail)
    again = TabularStore.build(synthetic_table(**OPTIONS), directory=folder)
    assert again.directory == store.directory
    assert again.processor.fingerprint == store.processor.fingerprint
    again = TabularStore.build(synthetic_table(**OPTIONS), again.processor, folder)  # fitted already: another key
    assert again.directory != store.directory
    for changes in ({"seed": 1}, {"num_rows": 3001}):
        with pytest.raises(AssertionError, match="fitted again"):
            TabularStore.build(synthetic_table(**(OPTIONS | changes)), directory=folder)
    with pytest.raises(AssertionError, match="fitted again"):
        TabularStore.build(synthetic_table(**OPTIONS), directory=folder, rebuild=True)


def test_other_fields_make_another_store(store):
    source = synthetic_table(**OPTIONS)
    arguments = processor_arguments(source)
    arguments["fields"] = [*arguments["fields"][:-1]]
    other = TabularStore.build(source, TabularFeatureProcessor(**arguments), store.directory.parent)
    assert other.directory != store.directory
    assert other.numeric_values.shape[1] == 1


def test_interrupted_builds_are_not_taken_for_finished_ones(tmp_path, monkeypatch):
    source = synthetic_table(**OPTIONS)
    right = TabularFeatureProcessor.transform_rows

    def stop(self, rows, special=None):
        if rows.split[0] == 1:
            raise KeyboardInterrupt
        return right(self, rows, special)

    monkeypatch.setattr(TabularFeatureProcessor, "transform_rows", stop)
    with pytest.raises(KeyboardInterrupt):
        TabularStore.build(source, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    left = TabularStore.build(source, directory=tmp_path)
    name = left.directory.name
    abandoned = tmp_path / f"{name}.{__import__('socket').gethostname()}-999999999-abc.tmp"
    left.directory.rename(abandoned)  # as a killed process leaves it
    with pytest.raises(FileNotFoundError, match="no finished store"):
        TabularStore.load(tmp_path / name)
    built = TabularStore.build(source, directory=tmp_path)
    assert built.directory.name == name
    assert not abandoned.exists()


def test_data_of_a_long_name(tmp_path):
    source = synthetic_table(**OPTIONS)
    source = dataclasses.replace(source, info=dataclasses.replace(source.info, name="x" * 240))
    assert TabularStore.build(source, directory=tmp_path).directory.name.startswith("x" * 50 + "-")


def test_damaged_stores(tmp_path):
    store = TabularStore.build(synthetic_table(**OPTIONS), directory=tmp_path)
    labels = store.directory / "labels.npy"
    data = labels.read_bytes()
    labels.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"labels.npy: cannot be read"):
        TabularStore.load(store.directory)
    np.save(labels, np.zeros(5, dtype=np.float32))
    with pytest.raises(ValueError, match=r"labels.npy: 5 rows, expected 3000"):
        TabularStore.load(store.directory)
    header = json.loads((store.directory / "store.json").read_text())
    (store.directory / "store.json").write_text(json.dumps(header | {"format_version": 99}))
    with pytest.raises(ValueError, match="format_version 99"):
        TabularStore.load(store.directory)


def test_arrays_that_do_not_fit():
    ids = np.zeros((3, 2), dtype=np.int32)
    with pytest.raises(ValueError, match="differ in length"):
        TabularStore({"input_ids": ids, "labels": np.zeros(4)})
    with pytest.raises(ValueError, match="unknown arrays"):
        TabularStore({"input_ids": ids, "label": np.zeros(3)})
    for store, told in ((TabularStore, "a TableSource, got dict; make one by lmctr.data.table_source"),
                        (ImpressionStore, "an ImpressionSource, got dict; make one by lmctr.data.load_imp")):  # fmt: skip
        with pytest.raises(ValueError, match=told):
            store.build({"click": [0, 1]})
    with pytest.raises(ValueError, match="needs input_ids"):
        TabularStore({"labels": np.zeros(3)})
    with pytest.raises(ValueError, match="expected 2 axes"):
        TabularStore({"input_ids": ids[0]})


def test_a_store_is_opened_again_in_another_process(store):
    data = pickle.dumps(store)
    assert len(data) < 2000  # the folder, not the arrays
    again = pickle.loads(data)
    np.testing.assert_array_equal(again.input_ids, store.input_ids)
    assert (
        isinstance(again.input_ids.base, np.memmap)
        or isinstance(again.input_ids, np.memmap)
        or not again.input_ids.flags.writeable
    )


def test_batches(store):
    view = TabularView(store)
    rows = np.array([5, 2999, 0])
    batch = view.batch(rows)
    assert list(batch) == ["input_ids", "numeric_values", "labels"]
    assert batch["input_ids"].dtype == torch.int32
    assert batch["labels"].dtype == torch.float32
    np.testing.assert_array_equal(batch["input_ids"].numpy(), store.input_ids[rows])
    np.testing.assert_array_equal(batch["numeric_values"].numpy(), store.numeric_values[rows])
    np.testing.assert_array_equal(batch["labels"].numpy(), store.labels[rows])
    batch["labels"].zero_()  # a copy, not the file
    for bad, message in [
        ([3000], "from 0 to 2999"),
        ([-2], "from 0 to 2999"),
        ([], "at least one"),
        ([0.5], "whole numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            view.batch(bad)


def test_filler_rows(full_store):
    store, _ = full_store
    batch = TabularView(store).batch([-1, 7, -1])
    assert batch["labels"].tolist() == [-100.0, store.labels[7], -100.0]
    assert batch["sample_weight"].tolist() == [0.0, store.weight[7], 0.0]
    np.testing.assert_array_equal(batch["input_ids"].numpy(), store.input_ids[[0, 7, 0]])


def test_sequences_groups_times_and_weights(full_store):
    store, table = full_store
    assert store.sequence_ids.shape == (50, 1, 5)
    assert store.sequence_ids.dtype == np.int8
    np.testing.assert_allclose(store.weight, table["w"], rtol=1e-6)
    np.testing.assert_array_equal(store.times, table["t"])
    names = np.array(table["u"])
    for code in np.unique(store.groups):
        assert len(set(names[store.groups == code])) == 1
    assert len(np.unique(store.groups)) == len(set(table["u"]))
    lengths = np.array([len(values) for values in table["s"]])
    short = np.flatnonzero(lengths <= 1)[:3]
    batch = TabularView(store).batch(short)
    assert batch["sequence_ids"].shape == batch["sequence_times"].shape == (len(short), 1, 1)
    assert TabularView(store, trim=False).batch(short)["sequence_ids"].shape[2] == 5
    ids = np.where(store.sequence_ids[:, 0, 0] > 0, store.sequence_times[:, 0, 0], 0)
    expected = [table["t"][row] - 90 if lengths[row] else 0 for row in range(50)]
    np.testing.assert_array_equal(ids, expected)


def test_dataset_and_loader_give_every_row_once(store):
    view = TabularView(store)
    dataset = TabularDataset(view, store.splits.train)
    assert len(dataset) == 2400
    assert dataset[3] == int(store.splits.train[3])
    np.testing.assert_array_equal(dataset.labels, store.labels[store.splits.train])
    assert dataset.groups is None
    assert dataset.sample_weight is None
    loader = DataLoader(dataset, batch_size=512, shuffle=True, collate_fn=TabularCollator(view))
    batches = list(loader)
    assert sum(len(batch["labels"]) for batch in batches) == 2400
    seen = torch.cat([batch["numeric_values"] for batch in batches]).numpy()
    expected = store.numeric_values[store.splits.train]
    assert not np.array_equal(seen, expected)
    np.testing.assert_array_equal(seen[np.lexsort(seen.T)], expected[np.lexsort(expected.T)])
    for places in ([0, 2], slice(1, 9, 3), slice(-2, None), np.array([5])):
        assert dataset[places] == store.splits.train[places].tolist()
    assert dataset.__getitems__([0, 2]) == dataset[[0, 2]]
    with pytest.raises(ValueError, match="from 0 to 2999"):
        TabularDataset(view, [3000])
    assert len(TabularDataset(view)) == 3000


def test_dataset_attributes(full_store):
    store, _ = full_store
    dataset = TabularDataset(TabularView(store), [4, 9])
    np.testing.assert_array_equal(dataset.groups, store.groups[[4, 9]])
    np.testing.assert_array_equal(dataset.sample_weight, store.weight[[4, 9]])
    unlabelled = TabularStore({"input_ids": np.zeros((3, 1), dtype=np.int32)})
    assert "labels" not in TabularView(unlabelled).batch([0])
    with pytest.raises(ValueError, match="has no labels"):
        _ = TabularDataset(TabularView(unlabelled)).labels


def test_rows_to_score_have_no_label():
    source = table_source(
        {"c": ["a", "b"]}, None, [{"name": "c", "type": "categorical"}], split="rows", fractions=(1, 0, 0)
    )
    store = TabularStore.build(source)
    assert store.labels is None
    assert len(store.splits.train) == 2


def test_one_dataset_and_one_collator_serve_every_view(store):
    from lmctr.data import ImpressionDataset, SequenceCollator, SequenceDataset, TextCollator, TextDataset
    from lmctr.data.batches.rows import RowCollator, RowDataset

    assert TabularDataset is TextDataset is ImpressionDataset is RowDataset
    assert issubclass(SequenceDataset, RowDataset)
    assert TabularCollator is TextCollator is SequenceCollator is RowCollator
    view = TabularView(store)
    with pytest.raises(ValueError, match="TabularView, which pads nothing, got 8"):
        TabularCollator(view, pad_to_multiple_of=8)
    with pytest.raises(ValueError, match="rows of a TabularView have no length"):
        TabularDataset(view, sort_by_length=True)
    dataset = TabularDataset(view)
    assert (dataset.lengths, dataset.candidate_mask, dataset.num_samples) == (None, None, len(store))
