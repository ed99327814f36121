"""Queries among the events of a log, against a plain account of who did what before."""

import numpy as np
import pyarrow as pa
import pytest

from lmctr.data import InteractionLog
from lmctr.data.logs.queries import with_queries

USERS, ITEMS, EVENTS, QUERIES = 9, 30, 120, 40


def random_log(hidden, seed=0):
    draw = np.random.default_rng(seed)
    events = {
        "user": draw.integers(0, USERS, EVENTS) * 10,
        "item": draw.integers(0, ITEMS, EVENTS),
        "time": draw.integers(0, 40, EVENTS),
        "label": draw.integers(-1, 2, EVENTS),
    }
    users = pa.table({"user_id": np.arange(0, USERS + 2, 2) * 10, "age": np.arange(0, USERS + 2, 2)})
    return InteractionLog.from_columns(
        *events.values(),
        hidden=draw.integers(0, 2, EVENTS) if hidden else None,
        scenario=draw.choice(["home", "page"], EVENTS),
        weight=draw.random(EVENTS),
        feedback_values=draw.random(EVENTS),
        part=draw.integers(-1, 3, EVENTS),
        extra_labels={"bought": draw.integers(-1, 2, EVENTS)},
        context=pa.table({"price": draw.random(EVENTS), "serial": np.arange(EVENTS)}),
        users=users,
    )


def random_queries(seed=1):
    draw = np.random.default_rng(seed)
    return {
        "user": pa.array(draw.integers(0, USERS + 3, QUERIES) * 10),
        "item": pa.array(draw.integers(0, ITEMS + 5, QUERIES)),
        "time": draw.integers(-2, 45, QUERIES),
        "scenario": draw.integers(0, 2, QUERIES).astype(np.int16),
        "context": pa.table({"price": draw.random(QUERIES)}),
    }


def told(log, events):
    """All that a log tells of events, by original ids."""
    rows = {name: values[events].tolist() for name, values in log.event_arrays().items() if name != "item"}
    rows |= {name: values[events].tolist() for name, values in log.extra_labels.items()}
    rows |= {name: log.context[name].take(pa.array(events)).to_pylist() for name in log.context.column_names}
    rows["item"] = log.catalogue["item_id"].take(pa.array(log.item[events])).to_pylist()
    rows["user"] = log.user_ids[log.user[events]].tolist()
    rows["age"] = log.users["age"].take(pa.array(log.user[events])).to_pylist()
    rows.pop("hidden", None)
    return [tuple(map(str, row)) for row in zip(*(rows[name] for name in sorted(rows)))]


@pytest.mark.parametrize("theirs_only", [False, True])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_query_sees_what_its_user_did_before(hidden, theirs_only):
    log, asked = random_log(hidden), random_queries()
    queried = with_queries(log, **asked, theirs_only=theirs_only)
    new, places = queried.log, queried.queries
    user, item, time = asked["user"].to_numpy(), asked["item"].to_numpy(), asked["time"]
    assert new.user_ids[new.user[places]].tolist() == user.tolist()
    assert new.catalogue["item_id"].take(pa.array(new.item[places])).to_pylist() == item.tolist()
    ages = [age if age % 2 == 0 and age < USERS + 2 else None for age in (user // 10).tolist()]  # without events too
    assert new.users["age"].take(pa.array(new.user[places])).to_pylist() == ages
    assert new.time[places].tolist() == time.tolist()
    assert new.scenario[places].tolist() == asked["scenario"].tolist()
    assert new.context["price"].take(pa.array(places)).equals(asked["context"]["price"])
    assert new.context["serial"].take(pa.array(places)).null_count == QUERIES
    assert {*new.label[places], *new.feedback[places], *new.extra_labels["bought"][places]} == {0}
    assert {*new.weight[places], *new.part[places]} == {1, -1}
    assert np.isnan(new.feedback_values[places]).all()
    assert new.hidden[places].all()
    assert queried.new_users.tolist() == (~np.isin(user, log.user_ids)).tolist()
    assert queried.new_items.tolist() == (~np.isin(item, log.catalogue["item_id"].to_numpy())).tolist()

    old = np.setdiff1d(np.arange(new.num_events), places)
    kept = np.isin(log.user_ids[log.user], user) if theirs_only else np.ones(EVENTS, dtype=bool)
    assert sorted(told(new, old)) == sorted(told(log, np.flatnonzero(kept)))
    assert kept.sum() < EVENTS or not theirs_only
    seen = np.ones(EVENTS, dtype=bool) if log.hidden is None else ~log.hidden
    start, end = new.history_bounds(places)
    for query in range(QUERIES):
        before = seen & (log.user_ids[log.user] == user[query]) & (log.time < time[query])
        assert told(new, np.arange(start[query], end[query])) == told(log, np.flatnonzero(before))


def test_queries_of_new_users_alone():
    log = random_log(hidden=False)
    queried = with_queries(log, pa.array([7, 7, 8]), pa.array([0, 1, 99]), np.array([5, 3, 4]), theirs_only=True)
    assert queried.log.user_ids.tolist() == [7, 8]
    assert queried.log.num_events == 3
    assert queried.log.time[queried.queries].tolist() == [5, 3, 4]
    assert queried.log.history_lengths(queried.queries).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("user", "known", "new"), [([7, 12], ["0007", "0012"], []), (["007", "x"], [7, 12], ["x"])])
def test_users_are_known_where_one_side_lost_the_zeros_in_front(user, known, new):
    log = InteractionLog.from_columns(known, [1, 2], [5, 6], [1, 0])
    queried = with_queries(log, user=pa.array(user), item=pa.array([1, 1]), time=np.array([9, 9]))
    assert queried.new_users.tolist() == [own in new for own in user]
    assert queried.log.user_ids.tolist() == [*(map(str, known) if new else known), *new]
