"""The statistics: each against a plain loop over all earlier events, what a log can give, scaling and the stored form."""

import dataclasses
import functools
import json
import math
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from lmctr.data import InteractionLog
from lmctr.statistics import (
    STATISTIC_SETS,
    ItemStatistics,
    StatisticsReader,
    factors,
    resolve_statistics,
    statistic,
)
from lmctr.statistics.events import key_parts
from lmctr.statistics.scan import KeyedRows, scan
from lmctr.statistics.table import ITEM, category_columns, category_values

GENRES = [["a", "b"], ["b"], [], ["a", "c", "b"], ["c"], None] * 5
YEARS = [1990, None, 2001, 2010, 1977, 2000] * 5
KINDS = ["x", "y", None, "x", "z", "z"] * 5
PRICES = [-3.5, 0.0, 1000.0, None, 20.0, 7.0] * 5
DAY = 86_400


def make_log(seed=0, num_users=6, num_events=160, genres=True, values=True, spread=40, num_items=7):
    """Few seconds, minutes or days apart, so that ties, sessions and fading all occur; some labels and values are not known."""
    draw = np.random.default_rng(seed)
    catalogue = {"item_id": list(range(30))}
    if genres:
        catalogue |= {"genres": GENRES, "year": pa.array(YEARS, pa.int16()), "kind": KINDS, "price": PRICES}
    label = draw.integers(0, 2, num_events)
    label[draw.uniform(size=num_events) < 0.15] = -1
    user = draw.integers(0, num_users, num_events)
    user[0] = num_users + 1  # a user with one event
    days, minutes, seconds = (
        draw.integers(0, 4, num_events),
        draw.integers(0, spread, num_events),
        draw.integers(0, 2, num_events),
    )
    time = 1_000_000 + DAY * 20 * days + 500 * minutes + seconds
    log = InteractionLog.from_columns(
        user, draw.integers(0, num_items, num_events), time, label, catalogue=pa.table(catalogue)
    )
    fields = {field.name: getattr(log, field.name) for field in dataclasses.fields(log)} | {"user": log.user}
    graded = draw.choice([0.5, 1, 2.5, 4, 5], num_events).astype(np.float32)
    graded[draw.uniform(size=num_events) < 0.2] = np.nan
    return SimpleNamespace(**fields | {"feedback_values": graded if values else None})


def ridge(pairs, others=None):
    """Ridge regression of (x, z) pairs through the origin; of clicks all others are 0, with their weight."""
    weight = factors.RIDGE if others is None else factors.CLICK_RIDGE
    matrix, sums = weight * np.eye(factors.NUM_FACTORS), np.zeros(factors.NUM_FACTORS)
    for x, z in pairs:
        matrix, sums = matrix + np.outer(x, x), sums + x * z
    for x in () if others is None else others:
        matrix = matrix + factors.UNSEEN * np.outer(x, x)
    return np.linalg.solve(matrix, sums)


class Loop:
    """The definitions, one event after the other, with no more than a dict."""

    def __init__(self, log, reader):
        self.log, self.strength, self.numbers = log, reader.strength, reader.numbers
        self.prior = {"label": reader.prior, "value": reader.value_prior}
        labels = [None if x < 0 else float(x) for x in log.label]
        values = [None] * len(labels)
        if log.feedback_values is not None:
            values = [None if math.isnan(x) else float(x) for x in log.feedback_values]
        self.signals = {"label": labels, "value": values}
        self.left, self.met = functools.cache(self.left), functools.cache(self.met)
        everything = range(len(labels))
        self.expected = {
            (key, base): [self.mean(self.earlier(e, key), base) for e in everything]
            for key in ("user", "item")
            for base in ("label", "value")
        }

    def earlier(self, event, key):
        column = getattr(self.log, key)
        return [
            e for e in range(len(column)) if column[e] == column[event] and self.log.time[e] < self.log.time[event]
        ]

    def signal(self, event, name, key):
        if name == "click":
            return None if self.log.label[event] == 0 else 1.0
        base = "value" if name.startswith("value") else "label"
        found = self.signals[base][event]
        if found is not None and name.endswith("residual"):
            return found - self.expected["user" if key == "item" else "item", base][event]
        return found

    def known(self, events, name, key):
        return [e for e in events if self.signal(e, name, key) is not None]

    def mean(self, events, name, key="user"):
        found = [self.signal(e, name, key) for e in self.known(events, name, key)]
        return (sum(found) + self.strength * self.prior.get(name, 0.0)) / (len(found) + self.strength)

    def fading(self, event, events, name, key, span, kind):
        known = sorted(self.known(events, name, key), key=lambda e: self.log.time[e])
        total, count = self.mean(events, name, key), 1.0
        for place, e in enumerate(known):
            ages = [(self.log.time[event] - self.log.time[e]) / DAY]
            if kind == "events":
                ages = [len(known) - 1 - place]
            if kind == "events" and key == "item":  # of one second none is the later one
                ages = [len(known) - 1 - p for p, one in enumerate(known) if self.log.time[one] == self.log.time[e]]
            weight = sum(0.5 ** (age / span) for age in ages) / len(ages)
            total, count = total + self.signal(e, name, key) * weight, count + weight
        return total / count

    def session(self, event, mine):
        """The user's events back to a gap of more than half an hour."""
        found, last = [], self.log.time[event]
        for e in sorted(mine, key=lambda e: -self.log.time[e]):
            if last - self.log.time[e] > 1800:
                break
            found.append(e)
            last = self.log.time[e]
        return found

    def number(self, event, row):
        """What a user may have a taste for, around 0 with the reader's mean and scale."""
        base = "value" if row.signal.startswith("value") else "label"
        key = f"{base}.mean" if row.feature == "mean" else row.feature
        if row.feature == "mean":
            found = self.expected["item", base][event]
        elif row.feature == "count":
            found = math.log(1 + len(self.known(self.earlier(event, "item"), "label", "item")))
        else:
            found = self.log.catalogue[row.feature][int(self.log.item[event])].as_py()
            if found is not None and row.feature != "year":
                found = math.copysign(math.log(1 + abs(found)), found)
        mean, scale = self.numbers[key]
        return 0.0 if found is None else (found - mean) / scale

    def left(self, event, signal):
        if signal == "click":
            return 1.0
        return self.signal(event, signal, "user") - self.mean(self.earlier(event, "user"), signal, "user")

    def met(self, event, signal):
        """The last events of the user with a residual."""
        known = self.known(self.earlier(event, "user"), signal, "user")
        return sorted(known, key=lambda e: self.log.time[e])[-factors.HISTORY :]

    @functools.cached_property
    def factors(self):
        """By signal the fits: the second behind which each holds, and the factors of items."""
        return {}

    def fits(self, signal):
        if signal in self.factors:
            return self.factors[signal]
        log, (_, scale) = self.log, self.numbers[signal]
        of_clicks = signal == "click"
        known = sorted(self.known(range(len(log.item)), signal, "user"), key=lambda e: log.time[e])
        left = {e: self.left(e, signal) / scale for e in known}
        fits, own, draw, count = [], {}, np.random.default_rng(0), factors.FIRST
        while count <= len(known):
            now = log.time[known[int(count) - 1]]
            if not fits or fits[-1][0] < now:
                seen = [e for e in known if log.time[e] <= now]
                order = list(dict.fromkeys(log.item[e] for e in seen))
                noise = factors.NOISE * draw.standard_normal((len(order), factors.NUM_FACTORS))
                own = {item: own.get(item, 0) + more for item, more in zip(order, noise)}
                for _ in range(factors.SWEEPS):
                    users, others = {}, list(own.values()) if of_clicks else None
                    for user in {log.user[e] for e in seen}:
                        users[user] = ridge([(own[log.item[e]], left[e]) for e in seen if log.user[e] == user], others)
                    others = list(users.values()) if of_clicks else None
                    for item in order:
                        pairs = [(users[log.user[e]], left[e]) for e in seen if log.item[e] == item]
                        own[item] = ridge(pairs, others)
                fits.append((now, dict(own)))
            count *= factors.GROWTH
        return self.factors.setdefault(signal, fits)

    def score(self, event, signal):
        own = next((own for now, own in self.fits(signal)[::-1] if now < self.log.time[event]), {})
        zero, scale = np.zeros(factors.NUM_FACTORS), self.numbers[signal][1]
        pairs = [(own.get(self.log.item[e], zero), self.left(e, signal) / scale) for e in self.met(event, signal)]
        others = list(own.values()) if signal == "click" else None
        return float(ridge(pairs, others) @ own.get(self.log.item[event], zero))

    def value(self, event, name):
        row, log = statistic(name), self.log
        nan, now = math.nan, log.time[event]
        if row.aggregation == "expected":
            return self.value(event, "user_value") + self.value(event, "item_value_residual")
        if row.aggregation == "year":
            year = log.catalogue["year"][int(log.item[event])].as_py()
            return nan if year is None else float(year)
        if row.aggregation in ("hour", "weekday"):
            import datetime

            moment = datetime.datetime.fromtimestamp(int(now), datetime.UTC)
            return moment.hour if row.aggregation == "hour" else moment.weekday()
        if row.aggregation == "taste":
            total = squares = 0.0
            for e in self.known(self.earlier(event, "user"), row.signal, "user"):
                left = self.left(e, row.signal)
                total, squares = total + left * self.number(e, row), squares + self.number(e, row) ** 2
            return total / (squares + 20) * self.number(event, row)
        if row.aggregation == "factors":
            return self.score(event, row.signal)
        if row.family == "cross":
            found = log.catalogue[row.column].to_pylist()
            sets = [[] if x is None else x if isinstance(x, list) else [x] for x in found]
            mine = self.earlier(event, "user")
            per = []
            for category in sets[log.item[event]]:
                inside = [e for e in mine if category in sets[log.item[e]]]
                known = self.known(inside, row.signal, "user")
                if row.aggregation == "count":
                    per.append(len(known))
                elif row.aggregation == "fading_count":
                    per.append(sum(0.5 ** ((now - log.time[e]) / DAY / row.span) for e in known))
                elif row.aggregation == "since_last":
                    per += [float(now - max(log.time[e] for e in inside))] if inside else []
                else:
                    per.append(self.mean(inside, row.signal, "user"))
            return {"mean": sum(per) / len(per), "max": max(per), "min": min(per)}[row.reduce] if per else nan
        events, key = self.earlier(event, row.family), row.family
        known = self.known(events, row.signal, key)
        if row.aggregation == "mean":
            return self.mean(events, row.signal, key)
        if row.aggregation == "count":
            return len(known)
        if row.aggregation == "fading_count":
            return sum(0.5 ** ((now - log.time[e]) / DAY / row.span) for e in known)
        if row.aggregation in ("events", "days"):
            return self.fading(event, events, row.signal, key, row.span, row.aggregation)
        if row.aggregation == "last":
            last = [self.signal(e, "label", key) for e in known][-int(row.span) :]
            return sum(last) / len(last) if last else nan
        if row.aggregation in ("session_count", "session_mean"):
            session = self.session(event, events)
            labels = [self.signal(e, "label", key) for e in self.known(session, "label", key)]
            if row.aggregation == "session_count":
                return len(session)
            return (sum(labels) + self.mean(events, "label")) / (len(labels) + 1)
        if not events:
            return nan
        times = [log.time[e] for e in events]
        if row.aggregation == "since_first":
            return float(now - min(times))
        since = float(now - max(times))
        return math.log1p(since) if row.aggregation == "log_since_last" else since


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (0, {}),
        (1, {"spread": 4}),
        (2, {"genres": False}),
        (3, {"values": False}),
        (4, {"num_users": 40}),
        (5, {"num_items": 1}),
    ],
)
def test_every_statistic_equals_the_loop(seed, options):
    log = make_log(seed, **options)
    reader = StatisticsReader.fit(log, np.arange(60, 120), ["full", "repeats"], strength=3.0)
    loop = Loop(log, reader)
    events = np.random.default_rng(seed).permutation(len(log.item))
    found = reader.raw(log, events)
    for column, name in enumerate(reader.names):
        expected = [loop.value(event, name) for event in events]
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-9, atol=1e-9, err_msg=name)
    if not options:
        assert set(STATISTIC_SETS["full"]) < set(reader.names)
        assert set(STATISTIC_SETS["repeats"]) < set(reader.names)
        assert "kind_rate_mean" in reader.names
        assert "kind_rate_max" not in reader.names
        assert {"rate_taste_price", "value_taste_price"} < set(reader.names)
        families = {statistic(name).family for name in reader.names}
        assert families == {"user", "item", "cross", "time"}
        missing = {statistic(name).name for name in reader.names if statistic(name).missing}
        assert {name for name, column in zip(reader.names, found.T) if np.isnan(column).any()} == missing


@pytest.mark.parametrize(
    ("seed", "options", "wanted"),
    [
        (0, {}, ["value_factor_score"]),
        (1, {"values": False, "num_items": 4}, ["rate_factor_score"]),
        (2, {"spread": 3}, ["value_factor_score"]),
        (3, {"values": False}, ["click_factor_score"]),
        (4, {}, ["value_factor_score", "click_factor_score"]),
    ],
)
@pytest.mark.parametrize("part", [1 << 18, 7])
def test_factors_equal_the_loop_whole_and_in_parts(seed, options, wanted, part, monkeypatch):
    of_clicks = any(name.startswith("click") for name in wanted)
    for name, value in {"HISTORY": 4, "FIRST": 20, "GROWTH": 1.5, "RIDGE": 1.0, "_PART": part, "_counted": {}}.items():
        monkeypatch.setattr(factors, name, value)
    log = make_log(seed, num_events=110, **options)
    log.hidden = np.arange(110) % 13 == 0
    log.label[log.hidden], log.label[5] = -1, 1
    if of_clicks:
        log.label[log.label == 0] = -1
        log.label[log.hidden] = 0
    if log.feedback_values is not None:
        log.feedback_values[log.hidden] = np.nan
    reader = StatisticsReader.fit(log, np.arange(20, 90), "factors", strength=3.0)
    assert list(reader.names) == wanted
    loop, events = Loop(log, reader), np.random.default_rng(seed).permutation(110)
    for place, name in enumerate(reader.names):
        own = statistic(name).signal
        known = loop.known(range(20, 90), own, "user")
        scale = np.std([loop.left(event, own) for event in known])
        assert reader.numbers[own][1] == pytest.approx(scale or 1.0)
        found, expected = reader.raw(log, events)[:, place], [loop.value(event, name) for event in events]
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
        assert len(loop.fits(own)) >= 3
        assert np.ptp(expected) > 0.5


def test_factors_that_training_leaves_at_nothing_have_no_scale_of_their_own(monkeypatch):
    """A ridge shrinks them to rounding; by its spread, a score as small that comes later would be hundreds of standard deviations."""
    monkeypatch.setattr(factors, "FIRST", 20)
    log = make_log(0, num_events=110)
    reader = StatisticsReader.fit(log, np.arange(20, 90), "factors")
    spread = reader.raw(log, np.arange(20, 90)).std()
    assert 0 < spread < 1e-3 * factors.LEAST_SPREAD
    assert reader.scale == (factors.LEAST_SPREAD,)
    assert np.abs(reader.scaled(np.full((1, 1), 300 * spread))).max() < 0.3
    monkeypatch.setattr(factors, "RIDGE", 1.0)
    monkeypatch.setattr(factors, "_counted", {})
    assert StatisticsReader.fit(log, np.arange(20, 90), "factors").scale[0] > 3 * factors.LEAST_SPREAD


def test_factors_do_not_change_when_the_log_goes_on(monkeypatch):
    for name, value in {"FIRST": 20, "RIDGE": 1.0}.items():
        monkeypatch.setattr(factors, name, value)
    draw = np.random.default_rng(0)
    user, item, left = draw.integers(0, 9, 400), draw.integers(0, 30, 400), draw.standard_normal(400)
    time = np.sort(draw.integers(0, 300, 400))
    whole = factors.factor_scores(user, item, time, left)
    for size in (np.searchsorted(time, now) for now in (50, 120, 299)):
        some = factors.factor_scores(*(column[:size] for column in (user, item, time, left)))
        np.testing.assert_allclose(some, whole[:size], rtol=1e-9, atol=1e-12)
    assert np.abs(whole[200:]).mean() > 0.1


def test_factors_of_items_are_fitted_once_with_the_scores(monkeypatch):
    for name, value in {"FIRST": 20, "_counted": {}}.items():
        monkeypatch.setattr(factors, name, value)
    draw = np.random.default_rng(0)
    events = draw.integers(0, 9, 200), draw.integers(0, 30, 200), np.arange(200), draw.standard_normal(200)
    fresh = factors.ItemFactors.of_events(*events, 40).factors
    factors.factor_scores(*events)
    monkeypatch.setattr(factors, "_fits_anew", None)
    again = factors.ItemFactors.of_events(*events, 40).factors
    np.testing.assert_array_equal(again, fresh)
    assert again.shape[0] == 40
    assert not again[30:].any()
    assert np.abs(again[:30]).max(1).min() > 0


@pytest.mark.parametrize("room", [1 << 28, 9000])
def test_factor_scores_of_few_events_are_those_of_all_and_need_no_other_fit(monkeypatch, room):
    for name, value in {"FIRST": 20, "RIDGE": 1.0, "_counted": {}, "_FITS_KEPT": room}.items():
        monkeypatch.setattr(factors, name, value)
    draw = np.random.default_rng(0)
    user, item = np.sort(draw.integers(0, 9, 400)), draw.integers(0, 30, 400)
    time, left = draw.integers(0, 300, 400), draw.standard_normal(400)
    whole, of_all = factors.factor_scores(user, item, time, left), factors._fits_anew
    some, late = draw.choice(400, 40, replace=False), np.argsort(time)[-40:]
    assert np.abs(whole[late]).min() > 0
    monkeypatch.setattr(factors, "_counted", {})
    for events in (some, late, some)[: 2 + (room == 9000)]:
        np.testing.assert_allclose(
            factors.factor_scores(user, item, time, left, events=events, alone=True), whole[events]
        )
        (_, kept), *_ = factors._counted.values()
        assert (sum(fit[-1].nbytes for fit in kept) <= 9000) is (room == 9000)  # the last ones
        monkeypatch.setattr(factors, "_fits_anew", of_all if room == 9000 and events is late else None)
    # a query more tells nothing of the others: their factors are those that are kept
    longer = [np.append(column, last) for column, last in zip((user, item, time, left), (8, 3, 301, np.nan))]
    (of_query,) = factors.factor_scores(*longer, events=np.array([400]), alone=True)
    monkeypatch.setattr(factors, "_fits_anew", of_all)
    np.testing.assert_allclose(of_query, factors.factor_scores(*longer)[400])
    assert factors.factor_scores(user, item, time, left, events=np.arange(0)).shape == (0,)


def test_factor_scores_of_samples_are_the_same_bits_whatever_is_asked_beside_them(monkeypatch):
    """A run that is resumed asks for fewer of them, and trains to the same weights."""
    for name, value in {"FIRST": 20, "RIDGE": 1.0, "_counted": {}}.items():
        monkeypatch.setattr(factors, name, value)
    log = make_log(0, num_events=2000)
    reader = StatisticsReader.fit(log, np.arange(1500), "factors")
    some, every = np.arange(7, 2000, 20), np.arange(2000)
    monkeypatch.setattr(factors, "_counted", {})
    alone = reader.raw(log, some)
    monkeypatch.setattr(factors, "_counted", {})
    np.testing.assert_array_equal(alone, reader.raw(log, every)[some])
    assert (alone != 0).mean() > 0.9


def test_items_that_factors_do_not_know_tell_nothing_and_get_nothing():
    own = factors.ItemFactors(np.random.default_rng(0).standard_normal((5, factors.NUM_FACTORS)))
    asked, left = [np.array([0, 4, -1])], np.array([0.5, -1.0])
    scores = own.scores(asked, [np.array([2, -1])], [left])
    np.testing.assert_array_equal(scores, own.scores(asked, [np.array([2])], [left[:1]]))
    assert scores[2] == 0
    assert np.abs(scores[:2]).min() > 0


def test_a_set_gives_what_the_log_can_give():
    names = resolve_statistics("full", make_log())
    without = resolve_statistics("full", make_log(genres=False, values=False))
    assert set(without) == {
        n for n in names if not statistic(n).graded and not statistic(n).column and not n.endswith(("year", "price"))
    }
    assert resolve_statistics("basic", make_log()) == STATISTIC_SETS["basic"]
    assert resolve_statistics(["log_user_count", "basic"], make_log())[:2] == ("user_count", "user_rate")
    assert resolve_statistics(["item_rate", "kind_rate_max"], make_log()) == ("item_rate", "kind_rate_max")


def test_columns_of_many_categories_are_counted_by_behind_those_of_few():
    """Skills of problems and brands of things number hundreds; five items of each are enough."""
    numbers = np.arange(1200)
    kinds = {"brand": 240, "author": 241, "topic": 101, "skill": 100, "shop": 2}
    catalogue = pa.table({name: [f"v{number % kind}" for number in numbers] for name, kind in kinds.items()})
    assert category_columns(catalogue) == ("skill", "shop", "brand")
    assert category_columns(catalogue.drop_columns(["skill"])) == ("shop", "brand", "topic")
    codes = catalogue.select(["topic", "shop"]).append_column("kind", pa.array(numbers % 30))
    assert category_columns(codes.append_column("year", pa.array(numbers % 30))) == ("shop", "topic", "kind")
    for counted in ("price", "earlier_ratings", "pages"):  # no codes, by their names
        assert category_columns(codes.append_column(counted, pa.array(numbers % 30))) == ("shop", "topic", "kind")
    named = {name: pa.array(numbers % 30) for name in ("pages", "cateID", "sellerCode", "skill_id")}
    assert category_columns(pa.table(named)) == ("cateID", "sellerCode", "skill_id")
    lists = catalogue.append_column("genres", pa.array([[f"v{number % 900}"] for number in numbers]))
    assert category_columns(lists) == ("genres", "skill", "shop")


def test_fingerprints_are_those_of_earlier_releases():
    """Tables of items and states of users hold them."""
    reader = StatisticsReader(("rate_factor_score", "user_rate"), 0.25, numbers={"residual": [0.0, 0.5]})
    assert reader.fingerprint == "f88d3c81"


def test_genre_beside_other_columns_and_beside_genres():
    """Statistics of `genre` have the names of those of `genres`, wherever it stands; of both columns `genres` has them."""
    log, rows = make_log(genres=False, values=False), range(30)
    plain = log.catalogue.append_column("kind", pa.array([f"k{row % 3}" for row in rows]))
    for name in ("genre", "genres"):
        log.catalogue = plain.append_column(name, pa.array([f"g{row % 4}" for row in rows]))
        assert category_columns(log.catalogue) == ("kind", "genres")
        names = resolve_statistics("full", log)
        assert {"kind_rate_mean", "genre_rate_mean"} < set(names)
        assert "genres_rate_mean" not in names  # the same once more
    many = log.catalogue.drop_columns(["genres"]).append_column("genres", pa.array([f"g{row}" for row in rows]))
    assert category_columns(many.append_column("genre", plain["kind"])) == ("kind",)  # not "genres", of another column


def test_codes_of_items_are_no_numbers_that_users_have_a_taste_for():
    log = make_log(genres=False)
    log.catalogue = pa.table({"brand_id": np.arange(30) % 5, "price": np.arange(30), "item_id": np.arange(30)})
    tastes = {name for name in resolve_statistics("full", log) if "_taste_" in name}
    assert {name.rpartition("_taste_")[2] for name in tastes} == {"mean", "count", "price"}
    assert resolve_statistics("rate_taste_brand_id", log) == ("rate_taste_brand_id",)  # by its own name it is one


def test_a_single_name_that_cannot_be_given_is_an_error():
    log, bare = make_log(), make_log(genres=False, values=False)
    with pytest.raises(ValueError, match="'user_rat' is no statistic; did you mean 'user_rate'"):
        resolve_statistics(["user_rat"], log)
    with pytest.raises(ValueError, match="column 'genres', which is absent or holds neither texts nor codes"):
        resolve_statistics(["genre_rate_mean"], bare)
    with pytest.raises(ValueError, match="'user_value', but the log has no graded feedback"):
        resolve_statistics("user_value", bare)
    with pytest.raises(ValueError, match="no numeric column 'year'"):
        resolve_statistics("release_year", bare)
    with pytest.raises(ValueError, match="no numeric column 'kind'; its numeric columns are price"):
        resolve_statistics("rate_taste_kind", log)
    with pytest.raises(ValueError, match=r"0 training events of 0 class\(es\)"):
        StatisticsReader.fit(log, np.array([], dtype=int), "basic")


def test_a_name_that_is_never_known_is_an_error_and_in_a_set_it_is_not():
    log = make_log(genres=False)
    log.catalogue = log.catalogue.append_column("year", pa.nulls(30, pa.int32()))
    with pytest.raises(
        ValueError, match="'release_year', which is known for no training event: the catalogue has no year"
    ):
        StatisticsReader.fit(log, np.arange(100), ["user_rate", "release_year"])
    assert "release_year" in StatisticsReader.fit(log, np.arange(100), "basic").names


def test_scaling_and_the_stored_form():
    log = make_log()
    train = np.arange(100)
    reader = StatisticsReader.fit(log, train, ["user_rate", "user_count", "last_5_mean", "release_year"])
    raw = reader.raw(log, train)
    scaled = reader.scaled(raw)
    assert (scaled.dtype, scaled.shape) == (np.float32, (100, 4))
    transformed = np.column_stack([np.log(raw[:, 0] / (1 - raw[:, 0])), np.log1p(raw[:, 1]), raw[:, 2:]])
    expected = (transformed - np.nanmean(transformed, 0)) / np.nanstd(transformed, 0)
    np.testing.assert_allclose(scaled, np.where(np.isnan(expected), 0, expected), atol=1e-5)
    assert np.isnan(raw).any()
    assert (scaled[np.isnan(raw)] == 0).all()
    stored = json.loads(json.dumps(reader.to_dict()))
    assert StatisticsReader.from_dict(stored) == reader
    np.testing.assert_array_equal(reader.scaled(raw.reshape(20, 5, 4)), scaled.reshape(20, 5, 4))
    with pytest.raises(ValueError, match="4 columns: user_rate"):
        reader.scaled(raw[:, :3])
    with pytest.raises(ValueError, match="unknown key 'priro' in statistics_reader; did you mean 'prior'"):
        StatisticsReader.from_dict(stored | {"priro": 1})
    with pytest.raises(ValueError, match="statistics_reader lacks scale"):
        StatisticsReader.from_dict({key: value for key, value in stored.items() if key != "scale"})
    with pytest.raises(ValueError, match=r"statistics_reader\.mean has 1 numbers for 4"):
        StatisticsReader.from_dict(stored | {"mean": [0.0]})


def test_what_lies_beyond_the_training_events_is_read_as_their_edge():
    """Counts grow as a log goes on; a model that is no tree would say ever more of what it was never shown."""
    log = make_log()
    train, _, later = np.split(np.argsort(log.time, kind="stable"), [60, 100])
    reader = StatisticsReader.fit(log, train, ["user_rate", "item_count", "last_5_mean", "release_year"])
    without = dataclasses.replace(reader, low=(), high=())
    raw = reader.raw(log, train)
    np.testing.assert_array_equal(reader.scaled(raw), without.scaled(raw))
    edges = np.nanmin(reader.scaled(raw), 0), np.nanmax(reader.scaled(raw), 0)
    after, free = reader.scaled(reader.raw(log, later)), without.scaled(reader.raw(log, later))
    np.testing.assert_array_equal(after[:, 1], np.clip(free[:, 1], edges[0][1], edges[1][1]))
    assert free[:, 1].max() > after[:, 1].max() == edges[1][1]
    np.testing.assert_array_equal(reader.of_events(log, later), after)
    far = np.array([[1 - 1e-9, 1e12, 1.0, -1e12], [1e-9, 0, 0, 1e12]])
    assert np.abs(without.scaled(far)).max() > 1e6
    limits = [reader.low, reader.high] - np.array(reader.mean)
    assert np.abs(reader.scaled(far)).max() <= np.abs(limits / reader.scale).max() + 1e-6

    stored = json.loads(json.dumps(without.to_dict()))
    assert not {"low", "high"} & stored.keys()  # a file from before there were limits
    assert StatisticsReader.from_dict(stored) == without == without.widened(log, later)
    with pytest.raises(ValueError, match=r"statistics_reader\.high has 1 numbers for 4"):
        StatisticsReader.from_dict(reader.to_dict() | {"high": [0.0]})

    wider = reader.widened(log, later)
    np.testing.assert_array_equal(wider.scaled(reader.raw(log, later)), free)
    both = StatisticsReader.fit(log, np.r_[train, later], list(reader.names))
    assert dataclasses.replace(wider, low=(), high=()) == without
    names = reader.names.index("user_rate")  # of another prior
    for own, expected in ((wider.low, both.low), (wider.high, both.high)):
        np.testing.assert_allclose(np.delete(own, names), np.delete(expected, names))


def test_what_no_training_event_knows_stays_unknown():
    """A statistic of a set that is known only later has no scale, and no limits but 0."""
    log = make_log(genres=False)
    log.catalogue = log.catalogue.append_column("year", pa.nulls(30, pa.int32()))
    reader = StatisticsReader.fit(log, np.arange(100), "basic")
    place = reader.names.index("release_year")
    raw = reader.raw(log, np.arange(100))
    raw[:, place] = 1999.0
    assert (reader.scaled(raw)[:, place] == 0).all()


def test_only_training_events_are_fitted_on_and_another_label_may_stand_in():
    log = make_log()
    train = np.arange(50)
    other = SimpleNamespace(**vars(log) | {"label": np.where(np.arange(160) < 50, log.label, -1)})
    assert StatisticsReader.fit(log, train, "full").prior == StatisticsReader.fit(other, train, "full").prior
    flipped = np.where(log.label < 0, -1, 1 - log.label)
    reader = StatisticsReader.fit(log, train, "basic", label=flipped)
    given = SimpleNamespace(**vars(log) | {"label": flipped})
    assert reader == StatisticsReader.fit(given, train, "basic")
    np.testing.assert_array_equal(reader.raw(log, train, label=flipped), reader.raw(given, train))


def test_running_sums_hold_over_years_without_overflow():
    """A factor that fades to nothing within a second must not spoil what comes after, whatever the number of rows."""
    draw = np.random.default_rng(0)
    keep = draw.choice([0.0, 1e-300, 1e-3, 0.5, 1.0], 5000)
    values = draw.normal(size=(2, 5000)) * 1e6
    expected, last = np.empty_like(values), np.zeros(2)
    for row in range(5000):
        last = keep[row] * last + values[:, row]
        expected[:, row] = last
    np.testing.assert_allclose(scan(keep, values), expected, rtol=1e-9)


def test_a_hundred_thousand_events_take_seconds_of_a_processor():
    import time

    draw = np.random.default_rng(0)
    size = 100_000
    genres = [["a", "b", "c", "d"][: i % 5] for i in range(5000)]
    log = InteractionLog.from_columns(
        draw.integers(0, 900, size),
        draw.integers(0, 5000, size),
        10**9 + draw.integers(0, 3 * 10**8, size),
        draw.integers(0, 2, size),
        catalogue=pa.table({"item_id": list(range(5000)), "genres": genres}),
    )
    object.__setattr__(log, "feedback_values", draw.normal(size=size).astype(np.float32))
    start = time.process_time()
    values = StatisticsReader(resolve_statistics("full", log), 0.5).raw(log, np.arange(size))
    assert time.process_time() - start < 5
    assert values.shape[1] > 55


def test_hidden_events_look_and_are_not_seen():
    log = make_log(3)
    hidden = np.random.default_rng(0).uniform(size=160) < 0.3
    seen = np.flatnonzero(~hidden)
    columns = ("user", "item", "time", "label", "feedback_values")
    less = SimpleNamespace(catalogue=log.catalogue, **{name: getattr(log, name)[seen] for name in columns})
    log.hidden = hidden
    reader = StatisticsReader.fit(less, np.arange(100), "full")
    np.testing.assert_allclose(reader.raw(log, seen), reader.raw(less, np.arange(len(seen))), rtol=1e-9, atol=1e-9)
    event = int(np.flatnonzero(hidden)[-1])
    loop = Loop(
        SimpleNamespace(
            **vars(less) | {name: np.append(getattr(less, name), getattr(log, name)[event]) for name in columns}
        ),
        reader,
    )
    expected = [loop.value(len(seen), name) for name in reader.names]
    np.testing.assert_allclose(reader.raw(log, [event])[0], expected, rtol=1e-9, atol=1e-9)
    table, other = (ItemStatistics.from_log(one, reader, int(log.time.max()) + 1) for one in (log, less))
    for name, values in other.state.items():
        np.testing.assert_allclose(table.state[name], values, rtol=1e-9, atol=1e-9)


def test_counting_in_parts_is_counting_in_the_whole(monkeypatch):
    log = make_log(3, num_events=300)
    names = (*resolve_statistics("full", log), *resolve_statistics("repeats", log))
    events = np.random.default_rng(0).permutation(300)[:200]
    whole = StatisticsReader.fit(log, events, names)
    expected, table = whole.raw(log, events), ItemStatistics.from_log(log, whole)
    sizes, init = [], KeyedRows.__init__
    monkeypatch.setattr(KeyedRows, "__init__", lambda self, *given: sizes.append(len(given[1])) or init(self, *given))
    monkeypatch.setattr("lmctr.statistics.events._PART", 40)
    reader = StatisticsReader.fit(log, events, names)
    np.testing.assert_allclose(reader.mean, whole.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(reader.scale, whole.scale, rtol=1e-9)
    np.testing.assert_array_equal(whole.raw(log, events), expected)
    np.testing.assert_array_equal(whole.of_events(log, events), whole.scaled(expected))
    parts = ItemStatistics.from_log(log, whole)
    for name, values in (table.state | table.course).items():
        np.testing.assert_array_equal((parts.state | parts.course)[name], values)
    assert max(sizes) < 150  # 40, and the events of one more user or item, each with its categories


def test_parts_hold_what_was_asked_and_all_of_its_keys(monkeypatch):
    monkeypatch.setattr("lmctr.statistics.events._PART", 3)
    key, asked = np.array([4, -1, 7, 4, 7, 7, -1, 9]), np.array([3, 2, 6, 0])
    parts = [(places.tolist(), seen.tolist()) for places, seen in key_parts(key, asked)]
    assert sorted(place for places, _ in parts for place in places) == [0, 1, 2, 3]
    for places, seen in parts:
        assert seen == sorted(np.flatnonzero(np.isin(key, key[asked[places]])))
    assert len(parts) > 1
    assert list(key_parts(key, np.zeros(0, dtype=np.int64))) == []


def test_items_as_categories_are_counted_without_their_texts():
    codes, lengths, known = category_values(pa.table({"item_id": pa.array(["a", "b", "a2"])}), ITEM)
    assert (codes.tolist(), lengths.tolist(), known) == ([0, 1, 2], [1, 1, 1], range(3))


def test_what_others_did_in_one_second_has_no_order():
    """Times of days alone: an item's events of a day are those of many users, whose ids say nothing of who was first."""
    draw = np.random.default_rng(0)
    user, day = (each.ravel() for each in np.meshgrid(np.arange(40), np.arange(30)))
    item, label = draw.integers(0, 6, len(user)), draw.integers(0, 2, len(user))
    catalogue, stars = pa.table({"item_id": range(6)}), (label + (user + item) % 3).astype(np.float32)
    found = []
    for ids in (np.arange(40), draw.permutation(40)):
        log = InteractionLog.from_columns(
            ids[user], item, day * DAY, label, catalogue=catalogue, feedback_values=stars
        )
        events = np.arange(log.num_events)
        reader = StatisticsReader.fit(log, events, ["full", "factors"])
        places = np.lexsort((np.argsort(ids)[np.asarray(log.user)], log.time))
        found.append(reader.raw(log, events)[places])
        assert {"item_rate_5_events", "value_factor_score"} < {*reader.names}
        assert np.abs(found[-1][600:, reader.names.index("value_factor_score")]).mean() > 1e-3
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-9)
