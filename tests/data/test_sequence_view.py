"""Rows of one or several candidates: the sampler, the histories, what a candidate may see, files and raw requests."""

import dataclasses
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_rows import SCENARIOS, sequence_log, sequence_view
from transformers import AutoFeatureExtractor, AutoProcessor

from lmctr import ASTROConfig, ASTROForCTR, AutoModelForCTR
from lmctr.data import (
    InteractionLog,
    SequenceCollator,
    SequenceDataset,
    SequenceProcessor,
    SequenceView,
    split_log,
    sumi_rows,
)
from lmctr.statistics import StatisticsReader


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    candidates=st.integers(1, 6),
    window=st.sampled_from([None, 0, 3, 15]),
    same=st.booleans(),
)
def test_sumi_rows_against_a_loop(seed, candidates, window, same):
    log = sequence_log(seed)
    events = np.random.default_rng(seed).permutation(log.sample_events())
    groups: dict = {}
    for event in sorted(events.tolist()):
        groups.setdefault((int(log.user[event]), int(log.scenario[event]) if same else 0), []).append(event)
    expected = []
    for members in groups.values():
        row: list = []
        for event in members:
            late = window is not None and row and log.time[event] - log.time[row[0]] > window
            if row and (len(row) == candidates or late):
                expected.append(row)
                row = []
            row.append(event)
        expected.append(row)
    found = sumi_rows(log, events, candidates, window, same)
    assert found.shape[1] == candidates
    assert sorted([event for event in row if event >= 0] for row in found.tolist()) == sorted(expected)
    assert (np.diff(found[:, 0]) > 0).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), candidates=st.integers(1, 5), length=st.sampled_from([None, 1, 4]))
def test_batches_against_a_loop(seed, candidates, length):
    """History: the latest n events before the last candidate; dependence: those before the candidate's own time."""
    log = sequence_log(seed)
    view = sequence_view(log, max_history_length=length)
    rows = view.rows(log.sample_events(), candidates)
    batch = {name: values.numpy() for name, values in view.batch(rows).items()}
    ids = {item: code for code, item in enumerate(view.processor.items["item_id"].to_pylist(), start=2)}
    catalogue = log.catalogue["item_id"].to_pylist()
    for row, events in enumerate(rows.reshape(len(rows), -1)):
        events = [e for e in events.tolist() if e >= 0]
        user = log.user[events[0]]
        own = [e for e in range(log.num_events) if log.user[e] == user]
        before_last = [e for e in own if log.time[e] < log.time[events[-1]]]
        history = before_last if length is None else before_last[-length:]
        count = len(history)
        assert batch["history_items"][row, :count].tolist() == [ids[catalogue[log.item[e]]] for e in history]
        assert not batch["history_items"][row, count:].any()
        for name, column in (("behaviors", log.feedback), ("scenarios", log.scenario), ("times", log.time)):
            assert batch[f"history_{name}"][row, :count].tolist() == [column[e] for e in history]
        for place, event in enumerate(events):
            at = (row,) if candidates == 1 else (row, place)
            visible = sum(log.time[e] < log.time[event] for e in history)
            assert batch["dependence"][at] == visible
            assert batch["labels"][at] == log.label[event]
            assert batch["candidate_items"][at] == ids[catalogue[log.item[event]]]
            assert batch["candidate_times"][at] == log.time[event]
            assert batch["candidate_scenarios"][at] == log.scenario[event]
        if candidates > 1:
            assert (batch["labels"][row, len(events) :] == -100).all()
            assert not batch["candidate_items"][row, len(events) :].any()


def test_one_candidate_has_no_candidate_axis():
    log = sequence_log()
    view = sequence_view(log, item_features=["genres", "year"], user_features=["country"])
    batch = view.batch(log.sample_events()[:3])
    assert batch["candidate_items"].shape == batch["labels"].shape == (3,)
    assert batch["candidate_features"].shape == (3, 2)
    assert batch["history_features"].shape[2] == 2
    assert batch["user_features"].shape == (3, 1)
    assert batch["history_times"].dtype == torch.int64
    wide = view.batch(SequenceDataset(view, log.sample_events(), 4).rows, pad_to_multiple_of=8)
    assert wide["candidate_features"].shape[1:] == (4, 2)
    assert wide["history_items"].shape[1] % 8 == 0
    assert not wide["history_features"][wide["history_items"] == 0].any()
    assert not wide["candidate_features"][wide["candidate_items"] == 0].any()


def test_dataset_and_collator():
    log = sequence_log(weight=True, extra_labels=("like",))
    view = sequence_view(log, tasks=("label", "like"))
    dataset = SequenceDataset(view, log.sample_events(), 3, window_seconds=10)
    assert len(dataset) == len(dataset.rows) == len(dataset.lengths) == len(dataset.groups)
    assert dataset.labels.shape == (len(dataset), 3, 2)
    assert sorted(dataset.events) == sorted(log.sample_events())
    batch = SequenceCollator(view)([dataset[0], dataset[1]])
    assert torch.equal(batch["labels"], torch.from_numpy(dataset.labels[:2]))
    assert torch.equal(batch["sample_weight"], torch.from_numpy(dataset.sample_weight[:2]))
    single = SequenceDataset(view, log.sample_events()[::-1])
    assert single.labels.shape == (len(single), 2)
    assert isinstance(single[0], int)
    assert np.array_equal(single.events, log.sample_events()[::-1])


def test_filler_rows_count_nowhere():
    log = sequence_log(weight=True)
    view = sequence_view(log)
    events = log.sample_events()
    batch = view.batch([events[0], -1])
    assert batch["labels"][1] == -100
    assert batch["sample_weight"][1] == 0
    assert torch.equal(batch["candidate_items"][0], batch["candidate_items"][1])
    wide = view.batch(np.stack([SequenceDataset(view, events, 3).rows[0], [-1, -1, -1]]))
    assert (wide["labels"][1] == -100).all()
    assert (wide["labels"][0] != -100).any()


def test_no_copies_of_the_events(tmp_path):
    """A mapped log is read in place: views of it hold no array as long as the events but the log's own."""
    log = sequence_log(num_users=300)
    log.save(tmp_path)
    mapped = type(log).load(tmp_path)
    view = sequence_view(mapped)
    own = [v for v in vars(view).values() if isinstance(v, np.ndarray) and len(v) >= mapped.num_events]
    assert own == []
    assert isinstance(view.log.item, np.memmap)
    again = pickle.loads(pickle.dumps(SequenceDataset(view, mapped.sample_events(), 3)))
    batch = again.view.batch(again.rows[:5])
    assert torch.equal(batch["history_items"], view.batch(again.rows[:5])["history_items"])


def test_vocabulary_comes_from_the_training_part():
    log = sequence_log(3, num_users=8, num_items=40)
    train = split_log(log).train
    processor = SequenceProcessor.fit(log, train, item_features=["year"])
    seen = set()
    for event in train.tolist():
        seen |= {int(log.item[e]) for e in range(log.offsets[log.user[event]], log.history_end[event])} | {
            int(log.item[event])
        }
    ids = log.catalogue["item_id"].to_numpy()
    assert processor.items["item_id"].to_pylist() == [int(ids[row]) for row in sorted(seen)]
    codes = processor.item_codes(log.catalogue["item_id"])
    assert (codes[sorted(set(range(40)) - seen)] == 1).all()
    assert sorted(codes[sorted(seen)]) == list(range(2, len(seen) + 2))
    counts = np.bincount(log.item, minlength=40)
    rare = SequenceProcessor.fit(log, min_count=3)
    assert rare.items.num_rows <= (counts >= 3).sum()


def test_round_trip_and_auto_classes(tmp_path):
    log = sequence_log()
    processor = SequenceProcessor.fit(
        log, item_features=["genres", "year"], user_features=["country"], max_history_length=7, tasks=["label"]
    )
    processor.save_pretrained(tmp_path)
    config = ASTROConfig(**processor.model_config_values(), hidden_size=8, num_attention_heads=2)
    ASTROForCTR(config).save_pretrained(tmp_path)
    for loader in (SequenceProcessor, AutoFeatureExtractor, AutoProcessor):
        again = loader.from_pretrained(tmp_path)
        assert isinstance(again, SequenceProcessor)
        assert again.fingerprint == processor.fingerprint == config.processor_fingerprint
        assert again.items.equals(processor.items)
        assert again.features == processor.features
    model = AutoModelForCTR.from_pretrained(tmp_path)
    view = SequenceView(log, again)
    assert model(**view.batch(log.sample_events()[:4])).loss > 0
    settings_file = tmp_path / "preprocessor_config.json"
    values = json.loads(settings_file.read_text())
    settings_file.write_text(json.dumps(values | {"max_history_length": 8}))
    with pytest.raises(ValueError, match="fingerprint"):
        SequenceProcessor.from_pretrained(tmp_path)
    settings_file.write_text(json.dumps(values | {"max_history": 8}))
    with pytest.raises(ValueError, match=r"'max_history'.*max_history_length"):
        SequenceProcessor.from_pretrained(tmp_path)
    (tmp_path / "sequence_items.parquet").unlink()
    with pytest.raises(ValueError, match=r"sequence_items\.parquet"):
        SequenceProcessor.from_pretrained(tmp_path)


def test_a_setting_after_use_is_part_of_the_fingerprint(tmp_path):
    processor = SequenceProcessor(max_history_length=9)
    before, processor.max_history_length = processor.fingerprint, 5
    processor.save_pretrained(tmp_path)
    assert before != processor.fingerprint == SequenceProcessor.from_pretrained(tmp_path).fingerprint


def test_settings_are_those_that_were_saved(tmp_path):
    """No argument of loading is left out in silence."""
    SequenceProcessor(max_history_length=9).save_pretrained(tmp_path)
    for load in (SequenceProcessor.from_pretrained, AutoProcessor.from_pretrained):
        with pytest.raises(ValueError, match="max_history_length: models know a SequenceProcessor by the settings"):
            load(tmp_path, max_history_length=3)
        with pytest.raises(ValueError, match=r"unknown key 'max_history_lenght' .* did you mean 'max_history_length'"):
            load(tmp_path, max_history_lenght=3)
        load(tmp_path, use_fast=True, trust_remote_code=False, local_files_only=True)


def test_raw_requests_give_the_batches_of_the_view():
    log = sequence_log(extra_labels=("like",))
    view = sequence_view(log, item_features=["genres"], user_features=["country"], max_history_length=5)
    rows = view.rows(log.sample_events(), 3)
    expected = view.batch(rows)
    ids = log.catalogue["item_id"].to_pylist()
    histories, candidates, users = [], [], []
    for row in rows:
        own = range(log.offsets[log.user[row[0]]], log.offsets[log.user[row[0]] + 1])
        histories.append(
            [
                {
                    "item": ids[log.item[e]],
                    "behavior": log.feedback_names[log.feedback[e]],
                    "scenario": SCENARIOS[log.scenario[e]],
                    "time": int(log.time[e]),
                }
                for e in own
            ]
        )
        candidates.append(
            [
                {"item": ids[log.item[e]], "scenario": int(log.scenario[e]), "time": int(log.time[e])}
                for e in row
                if e >= 0
            ]
        )
        users.append({"country": log.users["country"][int(log.user[row[0]])].as_py()})
    found = view.processor(histories, candidates, users=users)
    assert set(found) == set(expected) - {"labels"}
    for name, values in found.items():
        real = expected[name]
        assert torch.equal(values, real), name


def test_numbers_of_ones_own_are_standardised_as_in_the_training_samples(tmp_path):
    """Columns of the log's context, as every family reads them."""
    log = sequence_log()
    names = ["clicks", "shows", "same"]
    values = np.random.default_rng(0).normal(3.0, 5.0, (log.num_events, 3))
    values[:, 2] = 7.0  # does not vary
    events = log.sample_events()
    train, rest = events[::2], events[1::2]
    values[train[0], 0] = values[rest[0], 1] = np.nan
    log = dataclasses.replace(log, context=pa.table(dict(zip(names, values.T))))
    reader = StatisticsReader.fit(log, train, "context")
    assert reader.context == tuple(names)
    processor = SequenceProcessor.fit(log, train, statistics_reader=reader)
    own = values[train]
    mean, std = np.nanmean(own, axis=0), np.nanstd(own, axis=0)
    batch = SequenceView(log, processor).batch(events)["statistics"].numpy()
    inside = np.clip(values[events], np.nanmin(own, axis=0), np.nanmax(own, axis=0))
    wanted = np.nan_to_num((inside - mean) / np.where(std > 0, std, 1.0))
    np.testing.assert_allclose(batch, wanted, atol=1e-5)
    assert (batch[:, 2] == 0).all()
    processor.save_pretrained(tmp_path)
    again = SequenceProcessor.from_pretrained(tmp_path)
    assert again.fingerprint == processor.fingerprint != SequenceProcessor.fit(log, train).fingerprint
    raw = [[[1.0, None, 7.0]]]
    served = again([[]], [[100]], times=[5], statistics=raw)["statistics"].numpy()
    np.testing.assert_allclose(served[0, 0], [(1.0 - mean[0]) / std[0], 0.0, 0.0], atol=1e-5)
    with pytest.raises(ValueError, match=r"statistics: got \['clicks'\]; a statistics_reader names them"):
        SequenceProcessor(statistics=["clicks"])


HISTORY = [{"item": 100, "behavior": "like", "scenario": "home", "time": 5}]


@pytest.mark.parametrize(("request_", "message"), [
    ({"histories": [[HISTORY[0] | {"behavior": "likes"}]]}, "row 0, event 0.*unknown behavior 'likes'.*'like'"),
    ({"histories": [[HISTORY[0] | {"scenario": "shop"}]]}, "event 0.*unknown scenario 'shop'.*home, search, radio"),
    ({"histories": [[HISTORY[0] | {"scenario": 7}]]}, "unknown scenario 7"),
    ({"histories": [[HISTORY[0], HISTORY[0] | {"time": 4}]]}, "event 1: time 4 is before"),
    ({"histories": [[{"item": 100}]]}, "event 0: no 'time'"),
    ({"histories": [[HISTORY[0] | {"weight": 1}]]}, "'weight'"),
    ({"histories": [[HISTORY[0] | {"time": float("nan")}]]}, "no unix time"),
    ({"histories": [[HISTORY[0] | {"item": "abc"}]]}, "items.*int"),
    ({"histories": [[HISTORY[0] | {"time": 1_700_000_000_000}]]}, "event 0: time must be .*Is it in milliseconds"),
    ({"histories": [HISTORY[0]]}, "histories: row 0: expected a list of events"),
    ({"candidates": {"item": 100}}, "candidates: expected a list"),
    ({"candidates": [100]}, "candidates: row 0: expected a list of items, got 100"),
    ({"times": 9}, "times: expected a list of times, one entry per row, got 9"),
    ({"candidates": [[]]}, "candidates: row 0 has none"),
    ({"times": None}, "candidate 0: no time"),
    ({"scenarios": ["shop"]}, "candidate 0: unknown scenario"),
    ({"times": [1, 2]}, "times: 2 rows for 1 histories"),
    ({"statistics": [[[1.0]]]}, "statistics"),
    ({"return_tensors": "tf"}, "return_tensors"),
])  # fmt: skip
def test_bad_requests(request_, message):
    processor = SequenceProcessor.fit(sequence_log())
    good = {"histories": [HISTORY], "candidates": [[101]], "times": [9]}
    processor(**good)
    with pytest.raises(ValueError, match=message):
        processor(**(good | request_))


def test_requests_at_the_edges():
    """An empty history, one behaviour only, an unknown item, a history that begins after the candidate."""
    processor = SequenceProcessor.fit(sequence_log())
    assert processor.unknown_items([100, 999_999, 101]) == [999_999]
    batch = processor([[], HISTORY, HISTORY], [[100, 101], [999_999], [100]], times=[1, 9, 5])
    assert batch["dependence"].tolist() == [[0, 0], [1, 0], [0, 0]]
    assert batch["candidate_items"][1].tolist() == [1, 0]
    assert batch["history_items"][:2].tolist() == [[0], [2]]


def test_bad_views_and_rows():
    log = sequence_log()
    view = sequence_view(log)
    with pytest.raises(ValueError, match="several users"):
        view.batch(np.array([[log.offsets[1] - 1, log.offsets[1]]]))
    with pytest.raises(ValueError, match="positions go from 0"):
        view.batch([log.num_events])
    with pytest.raises(ValueError, match=r"positions go from 0 .* got -5 to -5"):
        view.batch(np.array([-5]))
    with pytest.raises(ValueError, match="no label"):
        view.batch(np.flatnonzero(log.label < 0)[:1])
    with pytest.raises(ValueError, match="num_candidates"):
        sumi_rows(log, [0], 0)
    with pytest.raises(ValueError, match="window_seconds"):
        sumi_rows(log, [0], 2, -1)
    processor = SequenceProcessor.fit(log)
    other = sequence_log(1)
    renamed = {name: getattr(other, name) for name in other.__dataclass_fields__}
    renamed["scenario_names"] = ("home", "search", "tv")
    with pytest.raises(ValueError, match=r"scenarios \['tv'\].*has \['home', 'search', 'radio'\]. Train anew"):
        SequenceView(type(log)(**renamed), processor)
    with pytest.raises(ValueError, match="tasks"):
        SequenceProcessor.fit(log, tasks=["likes"])
    with pytest.raises(ValueError, match=r"'genre'.*'genres'"):
        SequenceProcessor.fit(log, item_features=["genre"])
    with pytest.raises(ValueError, match="max_history_length"):
        SequenceProcessor.fit(log, max_history_length=0)


def test_codes_follow_names_not_places():
    log = sequence_log()
    processor = SequenceProcessor.fit(log)
    values = {name: getattr(log, name) for name in log.__dataclass_fields__}
    values["feedback_names"] = ("unknown", "like", "full-play")
    view = SequenceView(type(log)(**values), processor)
    events = log.sample_events()[-3:]
    found = view.batch(events)["history_behaviors"]
    expected = SequenceView(log, processor).batch(events)["history_behaviors"]
    assert torch.equal(found, torch.tensor([0, 2, 1])[expected])


def test_new_behaviours_count_as_unknown_where_there_is_such(caplog):
    log = sequence_log()
    values = {name: getattr(log, name) for name in log.__dataclass_fields__}
    values["feedback_names"] = ("unknown", "share", "like")
    newer = type(log)(**values)
    view = SequenceView(newer, SequenceProcessor.fit(log))
    assert "['share'] are newer than the processor and count as 'unknown'" in caplog.text
    found = view.batch(log.sample_events())["history_behaviors"]
    expected = SequenceView(log, SequenceProcessor.fit(log)).batch(log.sample_events())["history_behaviors"]
    assert (expected == 1).any()
    assert torch.equal(found, torch.tensor([0, 0, 2])[expected])
    counts = view.unknown(log.sample_events())[0]["behaviors of histories"]
    lengths = view.lengths(log.sample_events())
    inside = [(row[:n] == 0).sum() for row, n in zip(found.numpy(), lengths)]
    assert counts == {"values": lengths.sum(), "unknown": sum(inside)}
    values["feedback_names"] = ("none", "full-play", "like")
    told = SequenceProcessor.fit(type(log)(**values))
    with pytest.raises(ValueError, match=r"behaviours \(feedback\) \['share', 'unknown'\]|\['unknown', 'share'\]"):
        SequenceView(newer, told)


@pytest.mark.parametrize(("count", "kind"), [(101, "double"), (100, "double"), (101, "int64")])
def test_numbers_as_item_features_are_told(count, kind, caplog):
    catalogue = pa.table({"item_id": np.arange(count), "price": pa.array(np.arange(count) * 2, kind)})
    items = np.arange(count)
    log = InteractionLog.from_columns(items % 3, items, items, items % 2, catalogue=catalogue)
    processor = SequenceProcessor.fit(log, item_features=["price"])
    assert len(processor.features["price"]) == count
    assert ("'price' has 101 different numbers" in caplog.text) == (count > 100 and kind == "double")


def test_string_items(tmp_path):
    log = sequence_log()
    ids = pa.array([f"i{i}" for i in log.catalogue["item_id"].to_pylist()])
    values = {name: getattr(log, name) for name in log.__dataclass_fields__}
    values["catalogue"] = log.catalogue.set_column(0, "item_id", ids)
    processor = SequenceProcessor.fit(type(log)(**values))
    processor.save_pretrained(tmp_path)
    again = SequenceProcessor.from_pretrained(tmp_path)
    assert again([[]], [["i100", "i999"]], times=[3])["candidate_items"].tolist() == [[2, 1]]


def test_parts_of_other_samples():
    log = sequence_log(num_users=8)
    view = sequence_view(log, item_features=["genres", "year"], user_features=["country"])
    events = log.sample_events()[:20]
    order = np.random.default_rng(0).permutation(20)
    (name, plain), *more = view.shuffled(events, order)
    assert name is None
    others = {key: values[torch.from_numpy(order)] for key, values in plain.items()}
    expected = {
        "history": {
            *(f"history_{what}" for what in ("items", "behaviors", "scenarios", "times", "features")),
            "candidate_times",
            "dependence",
        },
        "item": {"candidate_items"},
        "scenario": {"candidate_scenarios"},
        "item year": {"candidate_features"},
        "user country": {"user_features"},
    }
    found = dict(more)
    for name, changed in expected.items():
        assert found[name].keys() == plain.keys()
        for key, values in found[name].items():
            own, other = plain[key], others[key]
            if name == "item year":  # beside the genres, which stay
                other = torch.stack([own[:, 0], other[:, 1]], 1) if key == "candidate_features" else other
            assert torch.equal(values, other if key in changed else own), (name, key)
            assert key not in changed or not torch.equal(values, own), (name, key)
    assert found.keys() == {*expected, "item genres"}
