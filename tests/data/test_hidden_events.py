"""Events that no other event sees, and the parts that a log brings itself."""

import numpy as np
import pyarrow as pa
import pytest

from lmctr.data import InteractionLog, split_log, validate_log
from lmctr.data.batches.sequence import SequenceView, sumi_rows
from lmctr.data.processors.sequence import SequenceProcessor


def random_rows(seed=0, size=200):
    rng = np.random.default_rng(seed)
    user, item, time = rng.integers(1, 9, size), rng.integers(10, 40, size), rng.integers(100, 140, size)
    return user, item, time, rng.integers(0, 2, size), rng.random(size) < 0.4


def hiding_log(seed=0, **more):
    user, item, time, label, hidden = random_rows(seed)
    return InteractionLog.from_columns(user, item, time, label, hidden=hidden, **more)


def seen_before(log, event):
    """Items that the event's user met before it, by a loop over the whole log."""
    rows = [
        (int(log.time[other]), int(log.item[other]))
        for other in range(log.num_events)
        if log.user[other] == log.user[event] and log.time[other] < log.time[event] and not log.hidden[other]
    ]
    return sorted(rows)


@pytest.mark.parametrize("seed", range(3))
def test_history_holds_what_is_seen_and_before(seed):
    log = hiding_log(seed)
    start, end = log.history_bounds(np.arange(log.num_events))
    for event in range(log.num_events):
        events = range(start[event], end[event])
        assert sorted((int(log.time[e]), int(log.item[e])) for e in events) == seen_before(log, event)
        assert (np.diff(log.time[start[event] : end[event]]) >= 0).all()
    assert (np.diff(log.hidden[log.user == 0].astype(int)) >= 0).all()


def test_nothing_hidden_is_a_log_without_hidden_events():
    user, item, time, label, _ = random_rows()
    plain = InteractionLog.from_columns(user, item, time, label)
    log = InteractionLog.from_columns(user, item, time, label, hidden=np.zeros(len(user), dtype=bool))
    assert np.array_equal(plain.history_end, log.history_end)
    assert np.array_equal(plain.item, log.item)


@pytest.mark.parametrize("some_hidden", [False, True])
def test_a_frozen_log_has_its_events_and_shows_none_since_a_time(some_hidden):
    user, item, time, label, hidden = random_rows()
    more = {"context": pa.table({"row": np.arange(len(user))}), "extra_labels": {"late": label}, "users": None}
    log = InteractionLog.from_columns(user, item, time, label, hidden=hidden if some_hidden else None, **more)
    frozen, places = log.frozen_at(120)
    for name in ("user", "item", "time", "label"):
        np.testing.assert_array_equal(getattr(frozen, name)[places], getattr(log, name))
    np.testing.assert_array_equal(frozen.context["row"].to_numpy()[places], log.context["row"].to_numpy())
    np.testing.assert_array_equal(frozen.extra_labels["late"], frozen.label)
    np.testing.assert_array_equal(frozen.hidden[places], (log.time >= 120) | ~log.seen)
    start, end = frozen.history_bounds(places)
    for event, place in enumerate(places):
        before = [row for row in range(log.num_events) if log.user[row] == log.user[event] and log.seen[row]]
        times = sorted(log.time[row] for row in before if log.time[row] < min(120, log.time[event]))
        assert frozen.time[start[event] : end[event]].tolist() == times, place


def test_wrong_order_is_refused():
    log = hiding_log()
    values = {name: getattr(log, name) for name in log.__dataclass_fields__}
    unsorted = InteractionLog(**values | {"hidden": log.hidden[::-1].copy()})
    with pytest.raises(ValueError, match="sorted by user, hidden and time"):
        unsorted.history_bounds([0])


def test_log_is_valid_and_survives_saving(tmp_path):
    part = np.random.default_rng(5).integers(-1, 3, 200)
    log = hiding_log(part=part)
    assert validate_log(log).num_samples == len(log.sample_events()) == (part >= 0).sum() < 200
    loaded = InteractionLog.load(log.save(tmp_path / "log"))
    for name in ("hidden", "part", "history_end", "item"):
        assert np.array_equal(getattr(loaded, name), getattr(log, name))


def test_sequence_rows_of_hidden_and_seen_samples():
    """A row may gather both kinds; each candidate depends on what was seen before it."""
    log = hiding_log()
    view = SequenceView(log, SequenceProcessor.fit(log))
    rows = sumi_rows(log, np.arange(log.num_events), 4)
    assert sorted(rows[rows >= 0].tolist()) == list(range(log.num_events))
    batch = view.batch(rows)
    item_of = view._item[log.item]
    for row, events in enumerate(rows):
        times = log.time[events[events >= 0]]
        assert (np.diff(times) >= 0).all()
        for place, event in enumerate(events):
            if event < 0:
                continue
            depends = int(batch["dependence"][row, place])
            start = log.offsets[log.user[event]]
            assert batch["history_items"][row, :depends].tolist() == item_of[start : start + depends].tolist()
            assert depends == len(seen_before(log, event))


def test_split_as_the_data_set_gives_it():
    part = np.random.default_rng(5).integers(-1, 3, 200)
    log = hiding_log(part=part)
    splits = split_log(log, "given")
    assert splits.rule == "given"
    for code, (_, events) in enumerate(splits.items()):
        assert sorted(events.tolist()) == np.flatnonzero(log.part == code).tolist()
        assert len(events) == (part == code).sum()
    with pytest.raises(ValueError, match="no `part` of its own"):
        split_log(hiding_log(), "given")
    with pytest.raises(ValueError, match=r"part.*other than"):
        hiding_log(part=np.full(200, 3))
