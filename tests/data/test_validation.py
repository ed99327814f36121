import time

import numpy as np
import pytest

from lmctr.data import InteractionLog, Splits, split_log, synthetic_log, validate_histories, validate_log


def make(user, item, times, label=None):
    return InteractionLog.from_columns(user, item, times, [1] * len(user) if label is None else label)


def changed(log, **values):
    return InteractionLog(**{name: getattr(log, name) for name in log.__dataclass_fields__} | values)


def with_history_end(log, ends):
    bad = changed(log)
    bad.__dict__["history_end"] = np.asarray(ends, dtype=np.int64)
    return bad


LOG = make([1, 1, 1, 1, 2], [10, 11, 10, 12, 10], [1, 2, 3, 3, 5])


def test_report_of_a_sound_log():
    report = validate_log(LOG)
    assert (report.num_events, report.num_samples, report.empty_histories) == (5, 5, 2)
    assert report.tied_samples == 2
    assert report.repeated_items == 1
    assert report.duplicate_events == 0
    assert "events at or after the sample's time in its history: 0 of 5 samples" in str(report)
    assert validate_log(make([1, 1], [7, 7], [4, 4])).duplicate_events == 1


def test_a_history_that_reaches_too_far_is_found():
    for ends, message in (
        (
            [0, 1, 2, 3, 4],
            r"1 samples have an event at or after their own time in their history, such as event 3 \(user 1",
        ),
        ([1, 1, 2, 2, 4], "1 samples stand in their own history, such as event 0"),
        ([0, 1, 1, 2, 4], "1 samples lack an earlier event of their user in their history, such as event 2"),
        ([0, 1, 2, 2, 5], "stand in their own history"),
    ):
        with pytest.raises(ValueError, match=message):
            validate_log(with_history_end(LOG, ends))


def test_unsorted_times_are_found():
    with pytest.raises(ValueError, match=r"1 events are earlier than the event before them.*event 1 .*must be sorted"):
        validate_log(changed(LOG, time=np.array([3, 2, 3, 3, 5])))


def test_future_times_are_found():
    log = make([1, 1], [1, 2], [5, int(time.time()) + 7 * 86_400])
    with pytest.raises(ValueError, match="1 events lie in the future, such as event 1"):
        validate_log(log)
    assert validate_log(log, now=int(time.time()) + 8 * 86_400).num_events == 2
    with pytest.raises(ValueError, match="2 events lie in the future"):
        validate_log(log, now=-(10**6))


def test_values_out_of_range_are_found():
    with pytest.raises(ValueError, match="1 values of label are not 0, 1, or -1 for no sample, such as 3 at event 2"):
        validate_log(changed(LOG, label=np.array([0, 1, 3, 1, 1], dtype=np.int8)))
    with pytest.raises(ValueError, match="1 values of item are not rows of the catalogue, such as 9"):
        validate_log(changed(LOG, item=np.array([0, 1, 9, 1, 1], dtype=np.int32)))
    with pytest.raises(ValueError, match="values of feedback are not codes"):
        validate_log(changed(LOG, feedback=np.array([0, 1, 9, 1, 1], dtype=np.int8)))
    with pytest.raises(ValueError, match="1 weights are negative"):
        validate_log(changed(LOG, weight=np.array([0, 1, 9, 1, -1], dtype=np.float32)))


def test_the_target_item_in_its_own_history():
    with pytest.raises(ValueError, match=r"1 samples have their item in their own history, such as event 2 .*item 10"):
        validate_log(LOG, allow_repeats=False)
    validate_log(make([1, 1], [1, 2], [1, 2]), allow_repeats=False)


def test_repeats_against_a_plain_loop():
    rng = np.random.default_rng(3)
    log = make(rng.integers(0, 4, 200), rng.integers(0, 12, 200), rng.integers(0, 60, 200))
    expected = 0
    for event in range(200):
        start, end = (int(bound[0]) for bound in log.history_bounds([event]))
        expected += log.item[event] in log.item[start:end]
    assert validate_log(log).repeated_items == expected > 0


def splits_of(train, validation, test, rule="time"):
    return Splits(*(np.array(part, dtype=np.int64) for part in (train, validation, test)), rule=rule)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (
            splits_of([0, 4], [1], [2]),
            r"1 samples of 'train' are later than the first of 'validation' \(time 2\), such as event 4",
        ),
        (splits_of([0], [4], [1]), "1 samples of 'validation' are later than the first of 'test'"),
        (splits_of([0, 3], [1], [2], "given"), "'train' are later"),
        (
            splits_of([0, 1], [1], [2]),
            "1 samples stand in 'validation' twice or in an earlier part too, such as event 1",
        ),
        (splits_of([0, 0], [1], [2]), "1 samples stand in 'train' twice"),
        (splits_of([0], [1], [9]), "the part 'test' has events from 9 to 9"),
        (splits_of([0], [1], [4, 2], "user"), "1 users stand in two parts of a split by user, such as user 1"),
    ],
)
def test_bad_splits_are_found(splits, message):
    with pytest.raises(ValueError, match=message):
        validate_log(LOG, splits)


def test_samples_without_label_in_a_part_are_found():
    log = make([1, 1, 1], [1, 2, 3], [1, 2, 3], [1, -1, 1])
    with pytest.raises(ValueError, match="1 events of 'validation' have no label"):
        validate_log(log, splits_of([0], [1], [2]))
    with pytest.raises(ValueError, match="no event has a label"):
        validate_log(make([1], [1], [1], [-1]))


def test_time_order_may_be_waived():
    report = validate_log(LOG, splits_of([0, 4], [1], [2], "given"), require_time_order=False)
    assert not report.time_order
    assert "not required" in str(report)


def test_own_splits_are_sound():
    log = synthetic_log(num_users=30, num_items=100, events_per_user=20)
    report = validate_log(log, split_log(log), allow_repeats=False)
    assert report.split_sizes == {"train": 480, "validation": 60, "test": 60}
    assert report.split_times["train"][1] < report.split_times["validation"][0]
    assert validate_log(log, split_log(log, "user")).split_rule == "user"


def test_chosen_histories():
    validate_histories(LOG, np.array([3, 4]), np.array([[0, 1, -1], [-1, -1, -1]]))
    for chosen, message in (
        ([4, -1], r"1 behaviours are of another user, such as event 4"),
        ([3, 0], "1 behaviours are the target itself"),
        ([2, 0], "1 behaviours are at or after the sample's time, such as event 2 .* in the history of event 3"),
        ([1, 1], "1 events are chosen twice"),
    ):
        with pytest.raises(ValueError, match=message):
            validate_histories(LOG, np.array([3]), np.array([chosen]))
    with pytest.raises(ValueError, match="the log has 5"):
        validate_histories(LOG, np.array([3]), np.array([[7]]))
    with pytest.raises(ValueError, match=r"expected shape \(1, K\)"):
        validate_histories(LOG, np.array([3]), np.array([1]))
    with pytest.raises(ValueError, match="1 behaviours have the target's item"):
        validate_histories(LOG, np.array([2]), np.array([[0]]), allow_repeats=False)
