import dataclasses
import json
import pickle
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmctr.data import DatasetInfo, InteractionLog, load_log
from lmctr.data.batches.rows import RowDataset
from lmctr.data.batches.sequence import SequenceView
from lmctr.data.processors.sequence import SequenceProcessor


def make(user, time, item=None, label=None, **keywords):
    item = [1] * len(user) if item is None else item
    label = [1] * len(user) if label is None else label
    return InteractionLog.from_columns(user, item, time, label, **keywords)


def full_log():
    return InteractionLog.from_columns(
        ["b", "a", "b", "a"],
        ["y", "x", "x", "z"],
        [30, 20, 10, 5],
        [1, 0, -1, 1],
        catalogue=pa.table({"item_id": ["z", "x", "y"], "title": ["Zed", None, ""], "genres": [["g"], [], None]}),
        feedback=["click", "view", "unknown", "click"],
        feedback_names=("unknown", "view", "click"),
        extra_labels={"bought": [0, 1, -1, 1]},
        scenario=["home", "page", "home", "home"],
        weight=[0.5, 1.0, 2.0, 0.0],
        feedback_values=[4.5, None, 0.25, 1.0],
        users=pa.table({"user_id": ["b", "c"], "age": [30, 40]}),
        info=DatasetInfo(name="toy", licence="none", extra={"k": 1}),
    )


def test_from_columns_sorts_by_user_time_and_input_order():
    log = make([2, 1, 2, 1, 2], [5, 9, 3, 9, 5], item=[10, 20, 30, 40, 50], label=[0, 1, 1, 0, 1])
    assert log.user_ids.tolist() == [1, 2]
    assert log.offsets.tolist() == [0, 2, 5]
    assert log.time.tolist() == [9, 9, 3, 5, 5]
    assert log.catalogue["item_id"].to_numpy()[log.item].tolist() == [20, 40, 30, 10, 50]
    assert log.label.tolist() == [1, 0, 1, 0, 1]
    assert log.feedback.tolist() == [2, 1, 2, 1, 2]
    assert log.user.tolist() == [0, 0, 1, 1, 1]
    assert (log.num_users, log.num_items, log.num_events, len(log)) == (2, 5, 5, 5)


def test_columns_keep_their_rows_through_the_sort():
    log = full_log()
    assert log.user_ids.tolist() == ["a", "b"]
    assert log.time.tolist() == [5, 20, 10, 30]
    assert log.item.tolist() == [0, 1, 1, 2]
    assert log.label.tolist() == [1, 0, -1, 1]
    assert [log.feedback_names[code] for code in log.feedback] == ["click", "view", "unknown", "click"]
    assert log.extra_labels["bought"].tolist() == [1, 1, -1, 0]
    assert [log.scenario_names[code] for code in log.scenario] == ["home", "page", "home", "home"]
    assert log.weight.tolist() == [0.0, 1.0, 2.0, 0.5]
    assert np.array_equal(log.feedback_values, np.array([1.0, np.nan, 0.25, 4.5], np.float32), equal_nan=True)
    assert log.users.to_pylist() == [{"user_id": "a", "age": None}, {"user_id": "b", "age": 30}]
    assert log.sample_events().tolist() == [0, 1, 3]


def test_feedback_of_an_event_without_label_is_unknown():
    log = make([1, 1], [1, 2], label=[-1, 0])
    assert [log.feedback_names[code] for code in log.feedback] == ["unknown", "negative"]


def test_ties_are_not_in_each_others_history():
    log = make(["u"] * 5, [1, 2, 2, 2, 3])
    assert log.history_end.tolist() == [0, 1, 1, 1, 4]
    start, end = log.history_bounds([3, 4])
    assert start.tolist() == [0, 0]
    assert end.tolist() == [1, 4]
    assert start.dtype == end.dtype == np.int64
    assert log.history_lengths([0, 4]).tolist() == [0, 4]


def test_histories_do_not_cross_users():
    log = make([1, 2, 2], [9, 1, 9])
    assert log.history_end.tolist() == [0, 1, 2]
    assert log.history_lengths(np.arange(3)).tolist() == [0, 0, 1]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=40))
def test_history_rule_against_a_plain_loop(rows):
    log = make([user for user, _ in rows], [time for _, time in rows], item=list(range(len(rows))))
    start, end = log.history_bounds(np.arange(len(rows)))
    for event in range(len(rows)):
        expected = [
            other
            for other in range(len(rows))
            if log.user[other] == log.user[event] and log.time[other] < log.time[event]
        ]
        assert list(range(start[event], end[event])) == expected


def test_history_bounds_refuses_positions_outside_the_log():
    log = make([1, 1], [1, 2])
    assert log.history_bounds(np.zeros(0, dtype=np.int64))[0].shape == (0,)
    for events in ([-1], [2]):
        with pytest.raises(ValueError, match="positions from 0 to 1"):
            log.history_bounds(events)
    with pytest.raises(ValueError, match="integer positions"):
        log.history_bounds([0.5])


def test_seen_events_behind_hidden_ones_are_refused():
    log = make([1, 1, 1], [1, 2, 3], hidden=[0, 0, 1])
    wrong = dataclasses.replace(log, hidden=np.array([False, True, False]))
    with pytest.raises(ValueError, match=r"1 events are .* seen and behind a hidden one \(first: event 2\)"):
        _ = wrong.history_end
    with pytest.raises(ValueError, match=r"first: event 1"):
        _ = dataclasses.replace(log, time=log.time[::-1].copy()).history_end


@pytest.mark.parametrize("hidden", [None, "some"])
def test_what_samples_see_against_a_plain_loop_block_by_block(hidden, monkeypatch):
    monkeypatch.setattr("lmctr.utils.ragged._BLOCK", 7)
    draw = np.random.default_rng(1)
    user, time = draw.integers(0, 9, 120), draw.integers(0, 40, 120)
    log = make(user, time, item=draw.integers(0, 30, 120), hidden=None if hidden is None else draw.integers(0, 2, 120))
    events = draw.permutation(120)[:31]
    seen, lengths = np.zeros(120, dtype=bool), []
    for event in events:
        before = (log.user == log.user[event]) & (log.time < log.time[event])
        if hidden is not None:
            before &= ~log.hidden
        seen |= before
        seen[event] = True
        lengths.append(before.sum())
    assert np.array_equal(log.seen_events(events), seen)
    assert np.array_equal(log.history_lengths(events), lengths)
    ids = log.catalogue["item_id"].to_pylist()
    fitted = SequenceProcessor.fit(log, events)
    assert fitted.items["item_id"].to_pylist() == sorted({ids[item] for item in log.item[seen]})
    others = np.setdiff1d(np.arange(120), events)
    view = SequenceView(log, fitted)
    start, end = log.history_bounds(others)
    read = [log.item[first:last] for first, last in zip(start, end)]
    missing = [ids[item] not in fitted.items["item_id"].to_pylist() for item in np.concatenate(read)]
    assert view.unknown(others)[0]["items of histories"] == {"values": len(missing), "unknown": sum(missing)}
    assert np.array_equal(view.lengths(others), end - start)
    assert RowDataset(view, others).labels.tolist() == log.label[others].tolist()


def test_history_of_ten_thousand_events():
    log = make(["u"] * 10_000 + ["v"], np.r_[np.arange(10_000)[::-1], 5])
    assert log.history_lengths([9_999, 10_000]).tolist() == [9_999, 0]
    assert np.array_equal(log.history_end[:10_000], np.arange(10_000))


def test_one_user_and_one_event():
    log = make(["only"], [7])
    assert log.history_bounds([0]) == (0, 0)
    assert len(log.sample_events()) == 1


def test_memory_grows_with_events_only():
    num_events, num_users = 1_000_000, 100  # 10,000 events each: copied histories would take 5,000 times as much
    rng = np.random.default_rng(0)
    columns = (
        rng.integers(0, num_users, num_events),
        rng.integers(0, 1_000, num_events),
        rng.integers(0, 10**9, num_events),
        rng.integers(0, 2, num_events),
    )
    tracemalloc.start()
    log = InteractionLog.from_columns(*columns)
    log.history_bounds(np.arange(1_000))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held / num_events < 30, "item 4 + time 8 + label 1 + feedback 1 + user 4 + history_end 4 bytes per event"
    assert peak / num_events < 150


def assert_equal(left, right):
    for name in ("user_ids", "offsets", "item", "time", "label", "feedback", "scenario", "weight"):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
        assert getattr(left, name).dtype == getattr(right, name).dtype
    assert np.array_equal(left.feedback_values, right.feedback_values, equal_nan=True)
    assert left.extra_labels.keys() == right.extra_labels.keys()
    for name in left.extra_labels:
        assert np.array_equal(left.extra_labels[name], right.extra_labels[name])
    assert left.catalogue.equals(right.catalogue)
    assert left.users.equals(right.users)
    assert left.other_users.equals(right.other_users)
    assert left.other_users.to_pylist() == [{"user_id": "c", "age": 40}]
    for name in ("feedback_names", "scenario_names", "info"):
        assert getattr(left, name) == getattr(right, name)


@pytest.mark.parametrize("mmap", [True, False])
def test_save_and_load(tmp_path, mmap):
    log = full_log()
    log.save(tmp_path / "log")
    again = load_log(tmp_path / "log", mmap=mmap)
    assert_equal(log, again)
    assert isinstance(again.time, np.memmap) is mmap
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_mapped_log_travels_as_its_folder_and_saves_over_itself(tmp_path):
    log = make(np.repeat(np.arange(10), 1000), np.tile(np.arange(1000), 10))
    mapped = load_log(log.save(tmp_path))
    assert len(pickle.dumps(mapped)) < 1000 < log.num_events < len(pickle.dumps(log))
    for copy in (pickle.loads(pickle.dumps(mapped)), pickle.loads(pickle.dumps(log)), load_log(mapped.save(tmp_path))):
        assert np.array_equal(copy.time, log.time)
        assert copy.num_users == 10


def test_load_refuses_missing_and_damaged_files(tmp_path):
    full_log().save(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no log\.json"):
        InteractionLog.load(tmp_path / "elsewhere")
    (tmp_path / "time.npy").write_bytes((tmp_path / "time.npy").read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"time\.npy: damaged"):
        InteractionLog.load(tmp_path)
    (tmp_path / "time.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"time\.npy"):
        InteractionLog.load(tmp_path)
    full_log().save(tmp_path)
    (tmp_path / "catalogue.parquet").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"catalogue\.parquet: damaged"):
        InteractionLog.load(tmp_path)
    full_log().save(tmp_path)
    np.save(tmp_path / "label.npy", np.zeros(3, dtype=np.int8))
    with pytest.raises(ValueError, match="label: expected 4 values"):
        InteractionLog.load(tmp_path)
    full_log().save(tmp_path)
    header = json.loads((tmp_path / "log.json").read_text())
    (tmp_path / "log.json").write_text(json.dumps(header | {"format_version": 99}))
    with pytest.raises(ValueError, match="format version 99"):
        InteractionLog.load(tmp_path)
    del header["arrays"]
    (tmp_path / "log.json").write_text(json.dumps(header))
    with pytest.raises(ValueError, match=r"log\.json: damaged.*no arrays"):
        InteractionLog.load(tmp_path)
    (tmp_path / "log.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        InteractionLog.load(tmp_path)


def test_a_log_saved_before_graded_feedback_loads_without_it(tmp_path):
    log = full_log()
    log.save(tmp_path)
    header = json.loads((tmp_path / "log.json").read_text())
    header["arrays"].remove("feedback_values")
    (tmp_path / "feedback_values.npy").unlink()
    (tmp_path / "log.json").write_text(json.dumps(header))
    assert InteractionLog.load(tmp_path).feedback_values is None
    assert make([1], [1]).feedback_values is None
    copy = pickle.loads(pickle.dumps(log))
    assert np.array_equal(copy.feedback_values, log.feedback_values, equal_nan=True)


def test_nothing_is_unpickled_on_load(tmp_path):
    full_log().save(tmp_path)
    np.save(tmp_path / "time.npy", np.array([1, 2, 3, 4], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"time\.npy"):
        InteractionLog.load(tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [0, 2, 1]}, r"'label': 1 of 3 values are other than 0 and 1 and -1 \(row 2: 2\)"),
        ({"label": [0, 0.5, 1]}, r"'label'.*row 2: 0\.5"),
        ({"label": [0, None, 1]}, r"'label': 1 of 3 values are missing \(row 2"),
        ({"label": ["0", "1", "1"]}, "'label': labels of type string"),
        ({"time": [1.0, float("nan"), 3.0]}, r"'time': 1 of 3 values are not finite \(row 2: nan\)"),
        ({"time": [1, 2, None]}, r"'time': 1 of 3 values are missing \(row 3"),
        ({"time": ["1", "2", "3"]}, "'time': times of type string"),
        ({"time": [1_700_000_000_000, 1, 2]}, "'time'.*milliseconds"),
        ({"time": np.array([1.6e9, 1.6e9, 1.6e9], dtype=np.float32)}, "'time': float cannot hold unix times"),
        ({"user": [1, None, 2]}, r"'user': 1 of 3 values are missing \(row 2"),
        ({"user": ["a", "", "b"]}, r"'user': 1 of 3 values are empty \(row 2"),
        ({"user": [1.5, 2.0, 3.0]}, r"'user': 1 of 3 values are no ids \(row 1: 1\.5\)"),
        ({"item": [7, 8, 9]}, r"'item': 1 of 3 values are not in the catalogue \(row 3: 9\)"),
        ({"user": [1, 2]}, "differ in length"),
        ({"weight": [1.0, -1.0, 2.0]}, r"'weight': 1 of 3 values are no weights \(row 2"),
        ({"weight": [1.0, float("nan"), 2.0]}, "'weight'.*row 2"),
        (
            {"feedback_values": [1.0, float("inf"), 2.0]},
            r"'feedback_values': 1 of 3 values are no finite .*row 2: inf",
        ),
        ({"feedback_values": ["a", "b", "c"]}, "'feedback_values': graded feedback of type string"),
        ({"feedback": [0, 1, 5], "feedback_names": ("unknown", "seen")}, r"'feedback': 1 of 3 .*row 3: 5.*0 to 1"),
        ({"feedback": ["seen", "x", "seen"], "feedback_names": ("unknown", "seen")}, r"'feedback'.*row 2: 'x'"),
        ({"extra_labels": {"bought": [0, 1, 3]}}, r"'bought'.*row 3: 3"),
        ({"user": [], "item": [], "time": [], "label": []}, "there are no rows"),
        ({"user": np.zeros((3, 1))}, r"'user': expected one value per row.*\(3, 1\)"),
    ],
)
def test_bad_columns_are_named(columns, message):
    given_columns = {"user": [1, 1, 2], "item": [7, 8, 7], "time": [1, 2, 3], "label": [0, 1, 1]} | columns
    with pytest.raises(ValueError, match=message):
        InteractionLog.from_columns(catalogue=pa.table({"item_id": [7, 8]}), **given_columns)


def test_errors_name_the_file_and_its_column():
    with pytest.raises(ValueError, match=r"events\.csv, column 'ts'"):
        make([1], [float("inf")], source="events.csv", names={"time": "ts"})


@pytest.mark.parametrize(
    ("catalogue", "message"),
    [
        (pa.table({"id": [1]}), "catalogue: no column 'item_id'"),
        (
            pa.table({"item_id": [1, 2, 1]}),
            r"catalogue, column 'item_id': 1 of 3 values repeat an earlier row \(row 3: 1\)",
        ),
        (pa.table({"item_id": [1, None]}), "catalogue, column 'item_id': 1 of 2 values are missing"),
        (
            pa.table([pa.array([1]), pa.array(["a"]), pa.array(["b"])], names=["item_id", "t", "t"]),
            r"duplicate columns \['t'\]",
        ),
    ],
)
def test_bad_catalogues(catalogue, message):
    with pytest.raises(ValueError, match=message):
        make([1], [1], catalogue=catalogue)


def test_a_hand_built_log_that_is_unsorted_is_refused():
    log = make([1, 1, 2], [1, 2, 1])
    values = {name: getattr(log, name) for name in log.__dataclass_fields__}
    bad = InteractionLog(**values | {"time": np.array([2, 1, 1])})
    with pytest.raises(ValueError, match=r"1 events are earlier.*event 1.*from_columns sorts"):
        bad.history_bounds([0])
    with pytest.raises(ValueError, match="offsets"):
        InteractionLog(**values | {"offsets": np.array([0, 3, 2])})
    with pytest.raises(ValueError, match="label: expected 3 values of type int8"):
        InteractionLog(**values | {"label": np.array([0, 1, 1])})


@pytest.mark.parametrize(
    "times",
    [
        np.array(["1970-01-01T00:00:05", "1970-01-01T00:00:03"], dtype="datetime64[ms]"),
        pa.array([5, 3], pa.timestamp("s", "Asia/Tokyo")),
        [5.9, 3.2],
        pa.chunked_array([[5], [3]]),
    ],
)
def test_kinds_of_times(times):
    assert make([1, 1], times).time.tolist() == [3, 5]


def test_ids_of_mixed_kinds_meet():
    log = make([1], [1], item=["7"], catalogue=pa.table({"item_id": [6, 7]}))
    assert log.item.tolist() == [1]
    assert make([3.0, 2.0], [1, 1]).user_ids.tolist() == [2, 3]


def test_info_round_trip_and_unknown_keys():
    info = DatasetInfo(name="n", best_auc=0.5, extra={"a": [1]})
    assert DatasetInfo.from_dict(info.to_dict()) == info
    with pytest.raises(ValueError, match="unknown key 'licens' in DatasetInfo; did you mean 'licence'"):
        DatasetInfo.from_dict({"licens": "x"})


def test_load_log_offers_the_nearest_name(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'synthetic'"):
        load_log("sinthetic")
    with pytest.raises(ValueError, match="did you mean 'num_users'"):
        load_log("synthetic", num_user=3)
    with pytest.raises(FileNotFoundError, match="no such schema file"):
        load_log(tmp_path / "x.yaml")
    with pytest.raises(FileNotFoundError, match="name the data set"):
        load_log(tmp_path)
    (tmp_path / "x.csv").write_text("a\n")
    with pytest.raises(ValueError, match="needs a schema"):
        load_log(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("ids", "users", "others"),
    [
        (["a", "b"], {"age": [1, 2, 3], "user_id": ["a", "b", "c"]}, ["c"]),
        (["a", "b"], {"user_id": pa.array(["a", "b", "c"]).dictionary_encode(), "age": [1, 2, 3]}, ["c"]),
        ([1, 2], {"user_id": pa.array([1, 2, 9], pa.int32()), "age": [1, 2, 3]}, [9]),
        ([1, 2], {"user_id": ["01", "9", "c"], "age": [1, 2, 3]}, [9]),
    ],
)
def test_other_users_stand_as_the_logs_own(ids, users, others):
    """In the same columns and types, whatever those of the given table are, so that both are one table of a data set."""
    log = InteractionLog.from_columns(ids, [1, 2], [1, 2], [0, 1], users=pa.table(users))
    assert log.other_users.schema.equals(log.users.schema)
    assert log.other_users["user_id"].to_pylist() == others
    assert log.to_dataset()["users"][:]["user_id"] == ids + others
