"""Tables of items and states of users: the same numbers as the reader's on a log with the same events."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from test_statistics_reader import make_log

from lmctr.statistics import ItemStatistics, StatisticsReader, UserStatistics, factors


@pytest.fixture(autouse=True)
def factors_of_few_events(monkeypatch):
    for name, value in {"FIRST": 20, "RIDGE": 1.0, "UNSEEN": 0.2, "_counted": {}}.items():
        monkeypatch.setattr(factors, name, value)


def with_query(log, user, candidates, time):
    """The log's events before a second, and the candidates at it as events of the user, which do not see each other."""
    before = np.flatnonzero(log.time < time)
    count = len(candidates)
    columns = {
        "user": np.r_[log.user[before], np.full(count, user)],
        "item": np.r_[log.item[before], candidates],
        "time": np.r_[log.time[before], np.full(count, time)],
        "label": np.r_[log.label[before], np.full(count, -1)],
        "feedback_values": None
        if log.feedback_values is None
        else np.r_[log.feedback_values[before], np.full(count, np.nan)],
    }
    return SimpleNamespace(catalogue=log.catalogue, **columns), np.arange(len(before), len(before) + count)


def history(log, user, time, start=0):
    events = np.flatnonzero((log.user == user) & (log.time < time) & (log.time >= start))
    values = None if log.feedback_values is None else log.feedback_values[events].tolist()
    return log.item[events].tolist(), log.time[events].tolist(), log.label[events].tolist(), values


@pytest.mark.parametrize(
    "names",
    [
        "full",
        "basic",
        "repeats",
        "factors",
        ["rate_factor_score", "value_factor_score", "value_taste_count"],
        ["click_factor_score"],
        ["user_item_seconds_since_last_event"],
        ["user_rate", "hour"],
        ["genre_value_residual_max"],
        ["expected_value"],
        ["value_taste_mean"],
        ["rate_taste_count"],
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_user_state_gives_what_the_reader_gives(names, seed):
    log = make_log(seed, num_events=300)
    reader = StatisticsReader.fit(log, np.arange(150), names, strength=2.5)
    moments = np.unique(log.time)
    # the last two moments that the table may be older than: the user's own later events are left out of the log then
    for user in (0, 3, log.user.max()):
        for time in (int(moments[0]), int(moments[len(moments) // 2]), int(moments[-1]), int(moments[-1]) + 400_000):
            seen, samples = with_query(log, user, np.arange(9), time)
            table = ItemStatistics.from_log(log, reader, time)
            state = UserStatistics(reader, table)
            state.extend(*history(log, user, time))
            np.testing.assert_allclose(state.at(list(range(9)), time), reader.raw(seen, samples), rtol=1e-9, atol=1e-9)


def test_a_state_keeps_the_last_items_only(monkeypatch):
    for place in ("factors", "users"):
        monkeypatch.setattr(f"lmctr.statistics.{place}.HISTORY", 4)
    log = make_log(1, num_events=300)
    reader, time = StatisticsReader.fit(log, np.arange(150), "factors"), int(log.time.max()) + 1
    table = ItemStatistics.from_log(log, reader)
    for user in range(6):
        seen, samples = with_query(log, user, np.arange(9), time)
        state = UserStatistics(reader, table)
        state.extend(*history(log, user, time))
        np.testing.assert_allclose(state.at(range(9), time), reader.raw(seen, samples), rtol=1e-9, atol=1e-9)
        assert len(state.to_dict()["now"]["recent"]["value_residual"]) == 4


def test_events_of_the_same_second_are_not_seen_and_a_state_goes_on():
    log = make_log(0, num_events=300)
    reader = StatisticsReader.fit(log, np.arange(150), ["full", "repeats", "factors"])
    user, times = 1, np.unique(log.time[log.user == 1])
    state = None
    for time in times:
        table = ItemStatistics.from_log(log, reader, int(time))
        if state is None:
            state = UserStatistics(reader, table)
        state.items = table  # what happened since is in a newer table
        seen, samples = with_query(log, user, np.arange(9), time)
        expected = reader.raw(seen, samples)
        np.testing.assert_allclose(state.at(range(9), int(time)), expected, rtol=1e-9, atol=1e-9)
        events = np.flatnonzero((log.user == user) & (log.time == time))
        for event in events:  # one by one, in one second: none is seen at it
            graded = [float(log.feedback_values[event])]
            state.extend([log.item[event]], [int(time)], [log.label[event]], graded)
            np.testing.assert_allclose(state.at(range(9), int(time)), expected, rtol=1e-9, atol=1e-9)
        state = UserStatistics.from_dict(json.loads(json.dumps(state.to_dict())), reader, table)
        np.testing.assert_allclose(state.at(range(9), int(time)), expected, rtol=1e-9, atol=1e-9)


def test_a_genre_that_an_item_names_twice_counts_twice():
    """As in the reader."""
    log = make_log(0, num_events=300)
    genres = [names and [*names, *names[:1]] for names in log.catalogue["genres"].to_pylist()]
    place = log.catalogue.column_names.index("genres")
    log.catalogue = log.catalogue.set_column(
        place, "genres", pa.array(genres, log.catalogue.schema.field("genres").type)
    )
    reader, time = StatisticsReader.fit(log, np.arange(150), "full"), int(log.time.max()) + 1
    seen, samples = with_query(log, 3, np.arange(9), time)
    state = UserStatistics(reader, ItemStatistics.from_log(log, reader))
    state.extend(*history(log, 3, time))
    np.testing.assert_allclose(state.at(range(9), time), reader.raw(seen, samples), rtol=1e-9, atol=1e-9)


def test_a_history_is_counted_at_once(monkeypatch):
    """Each behaviour by itself would cost a quarter of a millisecond and more."""
    log = make_log(0, num_events=300)
    reader, calls = StatisticsReader.fit(log, np.arange(150), ["full", "repeats", "factors"]), []
    expected = ItemStatistics.expected
    monkeypatch.setattr(ItemStatistics, "expected", lambda *own: calls.append(len(own[1])) or expected(*own))
    user = UserStatistics(reader, ItemStatistics.from_log(log, reader))
    items, times, labels, values = history(log, 1, int(log.time.max()))
    user.extend(items, times, labels, values)
    assert calls == [len(items)]
    one_by_one = UserStatistics(reader, user.items)
    for place in range(len(items)):
        one_by_one.extend(*(part[place : place + 1] for part in (items, times, labels, values)))
    later = int(log.time.max()) + 5000
    np.testing.assert_allclose(user.at(range(9), later), one_by_one.at(range(9), later), rtol=1e-12, atol=1e-12)
    assert user.to_dict().keys() == one_by_one.to_dict().keys()


def test_many_users_at_once_have_the_values_of_each_by_itself():
    """To the bit, whoever else is counted: users without events, of one second, whose last second is asked for, that come twice, unknown items."""
    log = make_log(1, num_events=600)
    reader = StatisticsReader.fit(log, np.arange(300), ["full", "repeats", "factors", "click_factor_score"])
    table, draw = ItemStatistics.from_log(log, reader), np.random.default_rng(0)
    events, asked, times = [], [], []
    for size in [0, 1, 2, 400, 30, 5, 150, 1, 3, 30, 0, 60]:
        gaps = draw.choice([0, 0, 1, 60, 4000, 90_000], size)
        seconds = (table.time + 7 - np.cumsum(gaps)[::-1]).tolist()
        items = [
            [int(one), str(one), float(one), None][draw.choice(4, p=[0.7, 0.1, 0.1, 0.1])]
            for one in draw.integers(0, 45, size)
        ]
        stars = np.where(draw.random(size) < 0.3, np.nan, draw.integers(1, 11, size) / 2).tolist()
        events.append((items, seconds, draw.integers(-1, 2, size).tolist(), None if size == 5 else stars))
        asked.append([*draw.integers(0, 45, len(events) % 4).tolist(), "new", None])
        times.append(table.time + (7.5 if size == 60 else 7))  # the last second of some
    parts = [
        [tuple(None if column is None else column[some] for column in own) for own in events]
        for some in (slice(2), slice(2, None))
    ]
    alone, together = ([UserStatistics(reader, table) for _ in events] for _ in range(2))
    for part in parts:
        UserStatistics.extend_many(together, part)
        for user, own in zip(alone, part):
            user.extend(*own)
        own = [user.at(items, time) for user, items, time in zip(alone, asked, times)]
        found = UserStatistics.at_many([*together, together[3]], [*asked, asked[3]], [*times, times[3]])
        np.testing.assert_array_equal(found, np.vstack([*own, own[3]]))
    before = [user.to_dict() for user in together]
    with pytest.raises(ValueError, match=r"times\[0\] is 5, before the event at"):
        UserStatistics.extend_many([together[1], together[3]], [([1], [table.time], [1], None), ([1], [5], [1], None)])
    assert [user.to_dict() for user in together] == before


def test_a_table_moves_forward_exactly_and_survives_its_file(tmp_path):
    log = make_log(2, num_events=300)
    reader = StatisticsReader.fit(log, np.arange(150), ["full", "factors", "click_factor_score"])
    moment, later = int(log.time.max()) + 1, int(log.time.max()) + 9_000_000
    table = ItemStatistics.from_log(log, reader)
    assert (table.time, len(table)) == (moment, 30)
    table.save(tmp_path / "items.parquet")
    read = ItemStatistics.load(tmp_path / "items.parquet", reader)
    places = np.array([0, 3, 29, -1])
    expected = ItemStatistics.from_log(log, reader, later).at(places, later)
    for own in (table, read):
        found = own.at(places, later)
        assert set(found) == set(expected)
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12, err_msg=name)
    user = UserStatistics(reader, read)
    user.extend(*history(log, 2, later))
    seen, samples = with_query(log, 2, np.arange(9), later)
    np.testing.assert_allclose(user.at(range(9), later), reader.raw(seen, samples), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=f"hold up to second {moment}; they cannot give those of second {moment - 1}"):
        read.at(places, moment - 1)


def test_unknown_items_have_no_events_and_no_description():
    log = make_log(0)
    reader = StatisticsReader.fit(log, np.arange(100), "full")
    user = UserStatistics(reader, ItemStatistics.from_log(log, reader))
    later = int(log.time.max()) + 100
    user.extend(["new", 3], [later - 50, later - 40], [1, 0], [5.0, float("nan")])
    row = dict(zip(reader.names, user.at(["other"], later)[0]))
    assert row["item_rate"] == pytest.approx(reader.prior)
    assert row["item_count"] == 0
    assert row["user_count"] == 2
    assert row["user_value_residual"] == pytest.approx((5.0 - reader.value_prior) / (1 + reader.strength))
    for name in ("genre_rate_mean", "release_year", "item_age", "kind_rate_mean"):
        assert np.isnan(row[name])


def test_items_that_the_table_lacks_come_back_all_the_same():
    log = make_log(0)
    reader = StatisticsReader.fit(log, np.arange(100), "repeats")
    user, later = UserStatistics(reader, ItemStatistics.from_log(log, reader)), int(log.time.max()) + 100
    user.extend([3, 777, None, 777], [later - 50, later - 40, later - 30, later - 20], [1, 1, 0, 0])
    for same in (777, "777", 777.0):
        row = dict(zip(reader.names, user.at([same], later)[0]))
        assert (row["user_item_count"], row["user_item_seconds_since_last_event"]) == (2, 20)
        assert row["user_item_rate"] == pytest.approx((1 + reader.strength * reader.prior) / (2 + reader.strength))
    for other in (778, None):
        row = dict(zip(reader.names, user.at([other], later)[0]))
        assert row["user_item_count"] == 0
        assert np.isnan(row["user_item_seconds_since_last_event"])


def test_errors(tmp_path):
    log = make_log(0)
    reader = StatisticsReader.fit(log, np.arange(100), "full")
    other = dataclasses.replace(reader, prior=0.123)
    table = ItemStatistics.from_log(log, reader)
    user = UserStatistics(reader, table)
    end = int(log.time.max()) + 10
    user.extend([1], [end], [1])
    with pytest.raises(ValueError, match=r"times\[0\] is .*, before the event at"):
        user.extend([1], [end - 1], [1])
    with pytest.raises(ValueError, match=r"labels\[1\] is 2, accepted: 0, 1, or -1"):
        user.extend([1, 1], [end, end], [1, 2])
    with pytest.raises(ValueError, match="events differ in length"):
        user.extend([1, 1], [end], [1])
    with pytest.raises(ValueError, match="before the user's last event"):
        user.at([1], end - 1)
    with pytest.raises(ValueError, match="other statistics or priors"):
        UserStatistics(other, table)
    with pytest.raises(ValueError, match="other statistics or priors"):
        UserStatistics.from_dict(user.to_dict(), other, ItemStatistics.from_log(log, other))
    with pytest.raises(ValueError, match="lacks before"):
        UserStatistics.from_dict({"fingerprint": "", "now": {}}, reader, table)
    path = tmp_path / "items.parquet"
    with pytest.raises(FileNotFoundError, match="lmctr data statistics writes one"):
        ItemStatistics.load(path)
    path.write_text("no parquet")
    with pytest.raises(ValueError, match="cannot be read as parquet"):
        ItemStatistics.load(path)
    pa.parquet.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ValueError, match="version None, accepted: 1"):
        ItemStatistics.load(path)
    table.save(path)
    with pytest.raises(ValueError, match="written for other statistics or priors"):
        ItemStatistics.load(path, other)


def test_what_was_counted_with_other_constants_of_factors_is_refused(tmp_path, monkeypatch):
    log, path = make_log(0), tmp_path / "items.parquet"
    plain, scored = (StatisticsReader.fit(log, np.arange(100), names) for names in ("full", ["full", "factors"]))
    table = ItemStatistics.from_log(log, scored)
    table.save(path)
    state = UserStatistics(scored, table).to_dict()
    monkeypatch.setattr("lmctr.statistics.factors.RIDGE", 14.0)
    assert StatisticsReader.from_dict(plain.to_dict()).fingerprint == plain.fingerprint
    later = StatisticsReader.from_dict(scored.to_dict())
    for reader in (later, None):
        with pytest.raises(
            ValueError, match=f"written for other .*checksum {scored.fingerprint}.*{later.fingerprint}"
        ):
            ItemStatistics.load(path, reader)
    with pytest.raises(ValueError, match="was made for other statistics or priors"):
        UserStatistics.from_dict(state, later, ItemStatistics.from_log(log, later))


@pytest.mark.parametrize("every", [2, 5])
def test_a_coarse_table_tells_steps_of_courses_only(every, tmp_path):
    log = make_log(2, num_events=600)
    reader = StatisticsReader.fit(log, np.arange(300), "full")
    table = ItemStatistics.from_log(log, reader)
    table.coarse(every).save(tmp_path / "items.parquet")
    coarse = ItemStatistics.load(tmp_path / "items.parquet", reader)
    assert 0 < coarse.num_told <= table.num_told / every + len(table)
    for item in range(len(table)):
        seconds = np.unique(log.time[log.item == item])
        assert np.isin(coarse.course["time"][slice(*coarse.course["offsets"][item : item + 2])], seconds).all()
        for time in np.unique([0, *seconds - 1, *seconds, *seconds + 1, table.time]).tolist():
            step = int(np.searchsorted(seconds, time))  # the first second of an event from `time` on
            at_end = step == len(seconds)
            # The means of the last step strictly before `time`, or of the item's first.
            moment = time if at_end else int(seconds[max((step - 1) // every * every, 0)])
            place = np.array([item])
            expected, own = table.expected(place, np.array([moment])), coarse.expected(place, np.array([time]))
            assert own == expected
            assert own["count"] <= table.expected(place, np.array([time]))["count"]
    places = np.arange(-1, len(table))
    for name, values in table.at(places, table.time + 5).items():
        np.testing.assert_array_equal(coarse.at(places, table.time + 5)[name], values)
    for name, values in table.latest(places).items():
        np.testing.assert_array_equal(coarse.latest(places)[name], values)
    with pytest.raises(ValueError, match="every: got 1, accepted: a whole number from 2"):
        table.coarse(1)
    plain = ItemStatistics.from_log(log, StatisticsReader.fit(log, np.arange(300), "basic"))
    assert plain.coarse(every).num_told == plain.num_told


def test_the_memory_of_a_user_counts_the_arrays():
    log = make_log(0)
    reader = StatisticsReader.fit(log, np.flatnonzero(log.label >= 0), "full")
    items = ItemStatistics.from_log(log, reader, int(log.time[-1]) + 1)
    user = UserStatistics(reader, items)
    user.extend(*history(log, log.user[0], int(log.time[-1]) + 1))
    held = [
        array
        for state in (user._now, user._before)
        for sums in (state.own, *state.cross.values())
        for array in (sums.values, sums.times)
    ]
    assert user.num_bytes > sum(array.nbytes for array in held) > 1000
