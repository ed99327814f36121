"""Items drawn beside the events of a log of clicks alone."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from sklearn.linear_model import LogisticRegression

from lmctr.data import load_log, log_from_table, split_log, validate_log
from lmctr.data.builders.movielens_table import movielens_table
from lmctr.data.guess import guess_files
from lmctr.data.inspection import describe_log
from lmctr.data.logs.negatives import with_negatives
from lmctr.evaluation.baselines import counting_baseline
from lmctr.evaluation.metrics import log_loss
from lmctr.runs.options import InitOptions
from lmctr.runs.recipe import load_recipe
from lmctr.runs.starting import init
from lmctr.statistics import StatisticsReader
from lmctr.utils.files import read_yaml

USERS, ITEMS, EVENTS = 30, 60, 3000


def clicks(seed=0, size=EVENTS, **more):
    """Baskets of several items at one second, items that come late, and users who come back to items."""
    rng = np.random.default_rng(seed)
    time = np.sort(rng.integers(0, 5 * size // 4, size))
    newest = 5 + (ITEMS - 5) * time // time[-1]
    item = (rng.random(size) ** 2 * newest).astype(int)
    rows = {"user": rng.integers(0, USERS, size), "item": item, "time": 1_000 + time // 2}
    while len(repeated := np.setdiff1d(np.arange(size), firsts(rows))):
        rows["user"][repeated] = rng.integers(0, USERS, len(repeated))
    return rows | more


def firsts(rows):
    """The rows that repeat no earlier one's user, item and time."""
    return np.sort(np.unique(np.stack([rows["user"], rows["item"], rows["time"]]), axis=1, return_index=True)[1])


def log_of(rows, schema=(), **more):
    keys = {"user": "user", "item": "item", "time": "time", **dict(schema)}
    return log_from_table(rows, {"columns": keys, "negatives": 2, **more})


def drawn(log):
    return np.flatnonzero(log.hidden)


@pytest.mark.parametrize("draw", ["uniform", "popular"])
def test_each_draw_is_of_an_item_met_before_and_none_of_that_seconds_clicks(draw):
    log = log_of(clicks(), negatives={"per_event": 3, "draw": draw, "seed": 4})
    validate_log(log)
    assert not log.label[drawn(log)].any()
    assert not log.feedback[drawn(log)].any()
    first = {}
    for event in np.flatnonzero(~log.hidden):
        first[log.item[event]] = min(first.get(log.item[event], np.inf), log.time[event])
    pairs = [(log.user[e], log.time[e], log.item[e]) for e in range(log.num_events)]
    assert len(set(pairs) - {pairs[e] for e in np.flatnonzero(~log.hidden)}) == len(drawn(log))
    assert all(first[log.item[event]] < log.time[event] for event in drawn(log))
    samples = {*log.sample_events().tolist()}
    for event in np.flatnonzero(~log.hidden):
        assert log.label[event] == 1
        assert (event in samples) == (first[log.item[event]] < log.time[event])
    assert samples > {*drawn(log).tolist()}
    late = log.sample_events()[
        log.time[log.sample_events()] > np.quantile(log.time, 0.2)
    ]  # from when on there is enough to draw
    assert log.label[late].mean() == pytest.approx(0.25, abs=0.01)


def test_uniform_draws_are_alike_and_popular_ones_follow_the_clicks_so_far():
    size = 60_000
    columns = clicks(size=size)
    shares = np.bincount(columns["item"], minlength=ITEMS) / size
    found = {}
    for draw in ("uniform", "popular"):
        log = log_of(columns, negatives={"per_event": 2, "draw": draw})
        late = drawn(log)[log.time[drawn(log)] > np.quantile(log.time, 0.98)]
        found[draw] = np.bincount(log.item[late], minlength=ITEMS) / len(late)
    assert np.abs(found["uniform"] - 1 / ITEMS)[:-3].max() < 0.007  # the last ones have just come
    assert np.corrcoef(found["popular"], shares)[0, 1] > 0.98
    assert np.abs(shares - 1 / ITEMS).max() > 0.03


def test_several_of_one_item_at_one_time_are_one_click():
    rows = clicks()
    assert log_of(rows).info.notes is None
    again = np.sort(np.r_[np.arange(EVENTS), 7, 7, 2000])
    log = log_of({name: values[again] for name, values in rows.items()})
    assert log.info.notes == "3 rows that repeat another one's user, item and time were left out."
    np.testing.assert_array_equal(log.item, log_of(rows).item)


def test_a_draw_has_what_its_click_has():
    rng = np.random.default_rng(2)
    more = {"device": rng.choice(["a", "b"], EVENTS), "w": rng.uniform(1, 2, EVENTS).astype(np.float32)}
    part = np.repeat([0, 1, 2], [2000, 500, 500])
    schema = {"context": ["device"], "weight": "w", "part": "part", "scenario": "device"}
    columns = clicks(part=part, **more)
    log = log_of(columns | {"user": np.arange(EVENTS)}, schema)  # one click each
    own = {int(log.user[e]): e for e in np.flatnonzero(~log.hidden)}
    for event in drawn(log):
        click = own[int(log.user[event])]
        for name in ("time", "weight", "part", "scenario"):
            assert getattr(log, name)[event] == getattr(log, name)[click], name
        assert log.context["device"][int(event)] == log.context["device"][int(click)]
    assert len(split_log(log, "given").test) > 1000


def test_later_events_change_no_draw_and_seeds_do():
    columns = clicks()
    early = columns["time"] < np.quantile(columns["time"], 0.5)
    whole = log_of(columns)
    part = log_of({name: values[early] for name, values in columns.items()})

    def draws(log):
        rows = drawn(log)[log.time[drawn(log)] < columns["time"][~early].min()]
        return {
            (int(log.user_ids[log.user[e]]), int(log.time[e]), log.catalogue["item_id"][int(log.item[e])].as_py())
            for e in rows
        }

    assert draws(part) == draws(whole)
    assert len(draws(part)) > 1000
    assert draws(log_of(columns, negatives={"per_event": 2, "seed": 1})) != draws(whole)


def test_counting_reads_counts_where_all_rates_are_one():
    log = log_of(clicks())
    splits = split_log(log)
    found = counting_baseline(log, splits)
    fitted = LogisticRegression(C=0.1, max_iter=500)
    reader = StatisticsReader.fit(log, splits.train, ["user_count", "item_count"])
    fitted.fit(reader.of_events(log, splits.train), log.label[splits.train])
    expected = fitted.predict_proba(reader.of_events(log, splits.test))[:, 1]
    np.testing.assert_allclose(found["test"], expected, rtol=1e-5)
    label = log.label[splits.test]
    assert log_loss(label, found["test"]) < log_loss(label, np.full(len(label), label.mean()))


def test_a_table_of_clicks_has_no_field_of_other_items():
    log = log_of(clicks())
    source = movielens_table(log, split_log(log))
    names = [field["name"] for field in source.fields]
    assert "liked_items" in names
    assert "other_items" not in names
    row = next(source.rows(part="test")).table.slice(0, 1).to_pylist()[0]
    before = [
        e
        for e in np.flatnonzero(~log.hidden)
        if log.user_ids[log.user[e]] == row["user_id"] and log.time[e] < row["time"]
    ]
    assert row["liked_items"] == [str(log.catalogue["item_id"][int(log.item[e])]) for e in before[-20:]]


def test_no_statistic_knows_of_the_draws():
    log = log_of(clicks())
    reader = StatisticsReader.fit(log, log.sample_events(), ["full", "repeats", "factors"])
    assert "click_factor_score" in reader.names
    assert "rate_factor_score" not in reader.names
    alone = log_from_table(
        clicks() | {"label": [1] * EVENTS},
        {"columns": {"user": "user", "item": "item", "time": "time", "label": "label"}},
    )
    seen, same = (
        np.flatnonzero(~log.hidden),
        dataclasses.replace(log, label=np.where(log.hidden, 0, 1).astype(np.int8)),
    )
    np.testing.assert_allclose(reader.raw(same, seen), reader.raw(alone, np.arange(EVENTS)), rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"negatives": 0}, r"negatives of schema: expected keys \(draw, per_event, seed\), got 0"),
        ({"negatives": {"per_event": 0}}, "per_event of negatives of schema: expected a whole number from 1, got 0"),
        ({"negatives": True}, "negatives of schema"),
        ({"negatives": {"per_event": 2, "draw": "hard"}}, "accepted: 'uniform', 'popular'|accepted: uniform, popular"),
        ({"negatives": {"per_event": 2, "by": 1}}, "per_event"),
        ({"negatives": None}, "`label` of `columns` is missing.*write `negatives: 2`"),
        ({"columns": {"user": "user", "item": "item", "time": "time", "label": "user"}}, "leave one of them out"),
    ],
)
def test_a_wrong_schema_is_told(change, message):
    with pytest.raises(ValueError, match=message):
        log_of(clicks(), **change)


def test_what_cannot_be_drawn_is_told():
    for column in ("time", "item"):
        with pytest.raises(ValueError, match="there is nothing to draw"):
            log_of(clicks() | {column: np.full(EVENTS, 7)})
    log = log_of(clicks())
    with pytest.raises(ValueError, match="no hidden ones"):
        with_negatives(log, 2)


def test_lists_of_a_click_are_told_from_those_of_an_item(tmp_path):
    rng, columns = np.random.default_rng(0), {name: own.tolist() for name, own in clicks().items()}
    seen = [[f"w{code}" for code in sorted(rng.integers(0, 9, 2))] for _ in range(EVENTS)]
    tags = [[f"t{item % 5}", *(["new"] if rng.random() < 0.3 else [])] for item in columns["item"]]
    columns |= {"time": [1_700_000_000 + second for second in columns["time"]], "words": seen, "tags": tags}
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    (tmp_path / "clicks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    guess = guess_files(tmp_path / "clicks.jsonl", negatives=2)
    assert [one.column for one in guess.guesses if one.role == "left out"] == ["tags"]
    assert guess.schema["columns"]["context"] == ["words"]


def test_init_writes_a_log_of_clicks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, columns = np.random.default_rng(0), clicks()
    names = [f"c{code}" for code in columns["item"] % 4]
    price = np.round(columns["item"] * 3.0 + (columns["time"] > 2000), 2)  # changes once for each item
    changing = np.round(columns["item"] + rng.integers(0, 3, EVENTS) / 4, 2)
    columns |= {
        "category": names,
        "price": price,
        "offer": changing,
        "device": [f"d{code}" for code in columns["user"] % 3],
    }
    columns |= {"position": rng.integers(0, 24, EVENTS)}
    columns["time"] = 1_700_000_000 + columns["time"]
    pacsv.write_csv(pa.table(columns), "clicks.csv")
    with pytest.raises(ValueError, match=r"no column looks like the label.*--negatives 2 draws items beside each"):
        init(InitOptions(events="clicks.csv", yes=True), print)
    said = []
    init(InitOptions(events="clicks.csv", yes=True, negatives=2), said.append)
    text = "\n".join(said)
    assert "every row a click; 2 items are drawn beside each" in text
    assert "goes with the item, and changes" in text
    log = load_log("clicks/schema.yaml")
    figures = describe_log(log, None, validate_log(log), None)
    assert figures["columns"]["feedback"] == {"clicked": EVENTS}
    assert figures["counts"]["events_in_no_history"] == log.num_events - EVENTS > EVENTS
    assert log.catalogue.column_names == ["item_id", "category", "price"]
    assert log.users.column_names == ["user_id", "device"]
    for family in ("din", "deepfm", "ctr_sink"):  # draws say how often they are clicks
        assert load_recipe(f"clicks/{family}.yaml").training["calibration"] == "intercept"
    assert log.context.column_names == ["position"]
    assert log.info.label_rule == "every row a click, 2 items drawn beside each (uniformly)"
    recipe = read_yaml(tmp_path / "clicks/ctr_sink.yaml")
    assert recipe["data"]["prompt"]["feedback"] == []
    assert (recipe["data"]["feedback"], recipe["model"]["sink_signal"]) == ("none", ["recency"])
    for options, message in (
        ({"negatives": 0}, "accepted: a number from 1"),
        ({"negatives": 2, "label": "position"}, "accepted: no --label"),
        ({"negatives": 2, "kind": "table"}, "--negatives 2: they are drawn from the items of a log"),
    ):
        with pytest.raises(ValueError, match=message):
            init(InitOptions(events="clicks.csv", yes=True, overwrite=True, **options), print)
    pacsv.write_csv(pa.table(columns | {"clicked": rng.integers(0, 2, EVENTS)}), "told.csv")
    with pytest.raises(ValueError, match="has a label, clicked"):
        init(InitOptions(events="told.csv", yes=True, negatives=2), print)
