"""Leaks planted in sound data, one by one: what the validators find, and that they find nothing in what is sound."""

import dataclasses
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lmctr.data.leaks as leaks
from lmctr.data import (
    InteractionLog,
    Splits,
    TabularFeatureProcessor,
    TabularStore,
    load_impressions,
    load_log,
    load_tabular,
    split_log,
    synthetic_log,
    validate_histories,
    validate_log,
)
from lmctr.data.impressions.store import ImpressionStore
from lmctr.data.impressions.validation import validate_impressions
from lmctr.data.leaks import future_attribute, rank_auc, settle, telling_fields
from lmctr.data.logs import copies
from lmctr.data.logs.negatives import with_negatives
from lmctr.data.tables.load import table_source
from lmctr.data.tables.validation import table_findings, validate_table
from lmctr.evaluation.metrics import auc

START = 1_500_000_000
FIELDS = [{"name": name, "type": "categorical"} for name in ("user", "item", "site")]
FIELDS += [{"name": name, "type": "numeric"} for name in ("price", "age")]


def table(count=6000, seed=0, **more):
    """Clicks that depend a little on item and price."""
    rng = np.random.default_rng(seed)
    item, price = rng.integers(0, 150, count), rng.normal(size=count)
    taste = np.random.default_rng(9).normal(size=150)
    label = (rng.random(count) < 1 / (1 + np.exp(1 - taste[item] - 0.3 * price))).astype(int)
    columns = {"label": label, "user": rng.integers(0, 300, count), "item": item, "site": rng.integers(0, 9, count)}
    columns |= {"price": price, "age": rng.integers(18, 70, count).astype(float), "ts": START + np.arange(count) * 60}
    return columns | more


def store_of(columns, fields=FIELDS, processor=None, **options):
    options = {"time": "ts", "split": "time"} | options
    source = table_source(columns, fields=fields, **options)
    return TabularStore.build(source, processor), source


def check_table(columns, fields=FIELDS, processor=None, allow=None, **options):
    return validate_table(*store_of(columns, fields, processor, **options), allow)


def log_of(count=4000, seed=0, **changes):
    rng = np.random.default_rng(seed)
    user, time = rng.integers(0, 200, count), START + np.sort(rng.choice(count * 50, count, replace=False))
    item = np.concatenate([rng.permutation(4000)[: int((user == one).sum())] for one in range(200)])
    order = np.argsort(user, kind="stable")
    items = np.empty(count, np.int64)
    items[order] = item
    columns = {"user": user, "item": items, "time": time, "label": rng.integers(0, 2, count)} | changes
    catalogue = pa.table(
        {"item_id": np.arange(4000), "year": rng.integers(1990, 2020, 4000), "price": rng.random(4000)}
    )
    return columns, catalogue


def make_log(columns, catalogue=None):
    return InteractionLog.from_columns(**columns, catalogue=catalogue)


def check_log(columns, catalogue=None, splits=None, **options):
    log = make_log(columns, catalogue)
    return validate_log(log, split_log(log) if splits is None else splits, **options)


def added(columns, rows, **changes):
    """The columns with some of their rows at the end once more."""
    return {name: np.concatenate([values, changes.get(name, values[rows])]) for name, values in columns.items()}


# ---- plants in logs -----------------------------------------------------------------------------------------------


def history_reaches_the_future():
    columns, catalogue = log_of()
    log = make_log(columns, catalogue)
    log.__dict__["history_end"] = np.minimum(log.history_end + 1, log.num_events)
    validate_log(log)


def target_in_its_own_history():
    columns, catalogue = log_of()
    log = make_log(columns, catalogue)
    log.__dict__["history_end"] = np.arange(log.num_events) + 1
    validate_log(log)


def chosen_histories_from_the_future():
    log = make_log(*log_of())
    event = int(log.offsets[1]) - 3
    validate_histories(log, np.array([event]), np.array([[event + 1]]))


def item_met_before():
    columns, catalogue = log_of()
    last = len(columns["time"]) - 1
    validate_log(make_log(added(columns, [5], time=[columns["time"][last] + 60]), catalogue), allow_repeats=False)


def event_in_two_parts():
    log = make_log(*log_of())
    parts = split_log(log)
    validate_log(log, dataclasses.replace(parts, test=np.append(parts.test, parts.train[:5])))


def doubled_events():
    columns, catalogue = log_of()
    check_log(added(columns, np.arange(300)), catalogue)


def training_copied_into_the_test_period():
    columns, catalogue = log_of()
    first = columns["time"][int(len(columns["time"]) * 0.92)]
    check_log(added(columns, np.arange(0, 1200, 6), time=first + np.arange(200) * 7), catalogue)


def parts_out_of_order(rule):
    log = make_log(*log_of())
    parts = split_log(log)
    validate_log(log, Splits(parts.test, parts.validation, parts.train, rule))


def user_in_two_parts():
    log = make_log(*log_of())
    validate_log(log, dataclasses.replace(split_log(log), rule="user"))


def milliseconds_as_seconds():
    columns, catalogue = log_of()
    check_log(columns | {"time": columns["time"] * 1000}, catalogue)


def some_milliseconds():
    columns, catalogue = log_of()
    check_log(
        columns | {"time": np.where(np.arange(4000) % 7 == 0, columns["time"] * 1000, columns["time"])}, catalogue
    )


def seconds_as_milliseconds():
    columns, catalogue = log_of()
    check_log(columns | {"time": columns["time"] // 1000}, catalogue)


def a_third_of_the_times_by_1000():
    columns, catalogue = log_of()
    check_log(
        columns | {"time": np.where(np.arange(4000) % 3 == 0, columns["time"] // 1000, columns["time"])}, catalogue
    )


def half_the_users_eight_hours_ahead():
    columns, catalogue = log_of()
    check_log(columns | {"time": columns["time"] + np.where(columns["user"] < 100, 8 * 3600, 0)}, catalogue)


def texts_with_time_zones():
    columns, catalogue = log_of()
    check_log(columns | {"time": ["2020-01-01T00:00:00+08:00"] * 4000}, catalogue)


def catalogue_of_future_clicks():
    columns, catalogue = log_of()
    columns["item"] %= 300
    late = columns["time"] > np.quantile(columns["time"], 0.8)
    clicks = np.bincount(columns["item"][late], columns["label"][late], minlength=4000)
    check_log(columns, catalogue.append_column("popularity", pa.array(clicks)))


def catalogue_that_holds_the_label():
    columns, catalogue = log_of()
    columns["label"] = (columns["item"] % 2).astype(int)
    noise = np.random.default_rng(1).normal(size=4000) * 0.05
    check_log(columns, catalogue.append_column("quality", pa.array(np.arange(4000) % 2 + noise)))


def context_that_comes_after(*, of_texts):
    """A share read to the end, or the word of a step, beside an honest column of each kind."""
    columns, catalogue = log_of()
    rng, clicked = np.random.default_rng(1), columns["label"] == 1
    read = np.where(clicked, rng.integers(1, 100, 4000), 0)
    context = {"slot": rng.integers(0, 5, 4000), "app": rng.choice(["a", "b", None], 4000)}
    context["after"] = np.where(clicked, "opened", None) if of_texts else read
    check_log(columns | {"context": pa.table(context)}, catalogue)


def acts_of_two_steps(*, apart=60, direct=0.0, seed=0):
    """Users who view an item seconds to an hour after the other; of a third of them, the cart and `apart` s later the purchase."""
    rng, rows = np.random.default_rng(seed), []
    for user in range(100):
        time = START + int(rng.integers(0, 30 * 86_400))
        for item in rng.permutation(4000)[:30]:
            time += int(3 * 1000 ** rng.random())
            rows.append((user, item, time, 0))
            if rng.random() < 0.3:
                time += int(3 * 1000 ** rng.random())
                rows += [(user, item, time, 0)] * (rng.random() >= direct)
                time += apart
                rows.append((user, item, time, 1))
    return dict(zip(("user", "item", "time", "label"), np.array(rows).T)), log_of()[1]


def times_of_the_end(*, shown):
    """Films watched to the end or left after seconds, each shown when the one before was over."""
    rng, count = np.random.default_rng(0), 4000
    label = rng.integers(0, 2, count)
    watched = np.where(label == 1, rng.integers(150, 300, count), rng.integers(1, 40, count))
    pause = np.where(rng.random(count) < 0.02, 86_400, 1)
    ends = START + np.cumsum((watched + pause).reshape(40, 100), axis=1).ravel()
    columns = {"user": np.repeat(np.arange(40), 100), "item": rng.permutation(count), "label": label}
    check_log(columns | {"time": ends - watched * shown}, log_of()[1])


# ---- plants in tables ---------------------------------------------------------------------------------------------


def label_as_a_field():
    check_table(table(), [*FIELDS, {"name": "label", "type": "categorical"}])


def label_under_another_name():
    check_table(table(clicked=table()["label"]), [*FIELDS, {"name": "clicked", "type": "categorical"}])


def label_with_noise():
    columns = table()
    noisy = columns["label"] + np.random.default_rng(2).normal(size=6000) * 0.2
    check_table(columns | {"score": noisy}, [*FIELDS, {"name": "score", "type": "numeric"}])


def label_with_flips():
    columns = table()
    flipped = np.where(np.random.default_rng(2).random(6000) < 0.05, 1 - columns["label"], columns["label"])
    check_table(columns | {"flag": flipped}, [*FIELDS, {"name": "flag", "type": "categorical"}])


def cases_of_several_rows(**options):
    """Orders whose label stands on each of their eight rows, of another item each."""
    order = np.arange(6000) // 8
    columns = table(order=np.random.default_rng(3).permutation(750)[order])
    columns["label"] = columns["label"][order * 8]
    return check_table(
        columns, [*FIELDS, {"name": "order", "type": "categorical"}], group="order", time=None, **options
    )


def encoding_over_all_rows():
    columns = table()
    sums, counts = (np.bincount(columns["item"], weights) for weights in (columns["label"], None))
    encoded = ((sums + 5 * 0.3) / (counts + 5))[columns["item"]]
    check_table(columns | {"item_rate": encoded}, [*FIELDS, {"name": "item_rate", "type": "numeric"}])


def table_rows_in_two_parts():
    columns = table()
    check_table(added(columns, np.arange(200)), split="rows", time=None)


def random_split_of_a_table_with_times():
    check_table(table(), split="random")


def processor_fitted_on_the_test():
    columns = table()
    processor = TabularFeatureProcessor(FIELDS).fit(columns)
    check_table(columns, processor=processor)


def table_times_by_1000():
    columns = table()
    check_table(columns | {"ts": np.where(np.arange(6000) % 3 == 0, columns["ts"] // 1000, columns["ts"])})


PLANTS = {
    "1 future event in a history": (history_reaches_the_future, "at or after their own time"),
    "2a target in its own history": (target_in_its_own_history, "stand in their own history"),
    "2b chosen histories from the future": (chosen_histories_from_the_future, "at or after the sample's time"),
    "2c item met before": (item_met_before, "have their item in their own history"),
    "3a event in two parts": (event_in_two_parts, "stand in 'test' twice or in an earlier part"),
    "3b doubled events": (doubled_events, "300 of 4,300 events repeat another in every column.*duplicates"),
    "3c training in the test period": (
        training_copied_into_the_test_period,
        "test samples repeat user, item and label",
    ),
    "3d rows of a table in two parts": (table_rows_in_two_parts, "rows of validation and test stand in training too"),
    "4a label under another name": (label_under_another_name, "'clicked' alone ranks .* AUC of 1.0000"),
    "4b label with noise": (label_with_noise, r"'score' alone ranks .*holds the label\. Mend"),
    "4c label as a field": (label_as_a_field, "reads the label column 'label'"),
    "4d label with flips": (label_with_flips, "'flag' alone ranks .*noisy copy"),
    "4k cases of several rows": (
        lambda: cases_of_several_rows(split="random"),
        r"'order' alone ranks .*: it holds the label, or the rows of one of its 7\d\d values are one case .* split: group",
    ),
    "4e label in the catalogue": (catalogue_that_holds_the_label, "'catalogue.quality' alone ranks"),
    "4f context after the label": (
        lambda: context_that_comes_after(of_texts=False),
        "'after' alone ranks .* AUC of 1.0",
    ),
    "4g words after the label": (lambda: context_that_comes_after(of_texts=True), "'after' alone ranks .* AUC of 1.0"),
    "4h a step before": (
        lambda: check_log(*acts_of_two_steps(apart=2)),
        r"the statistic 'log_seconds_since_last_event' alone .*: it holds the label \(median 2 s before positive samples, \d+ s before the others\): the step before"
        ".*'user_item_seconds_since_last_event' alone .* an hour or more before the others.*'field:log_seconds_since_last_event': <why>",
    ),
    "4i a step before most": (lambda: check_log(*acts_of_two_steps(apart=2, direct=0.1)), "noisy copy .* step before"),
    "4j times of the end": (
        lambda: times_of_the_end(shown=False),
        r"median 2\d\d s before positive samples, 2\d s before the others",
    ),
    "5a encoding over all rows": (
        encoding_over_all_rows,
        "'item_rate' follows the mean label of 'item' over all rows",
    ),
    "5b processor fitted on the test": (processor_fitted_on_the_test, "fitted on 6,000 rows"),
    "7a ms as s": (milliseconds_as_seconds, "milliseconds"),
    "7b s as ms": (seconds_as_milliseconds, "all 4,000 times lie in January and February 1970"),
    "7c some ms": (some_milliseconds, "milliseconds"),
    "7d a third / 1000": (a_third_of_the_times_by_1000, "1,334 of 4,000 times are a thousandth of the others"),
    "7e a third / 1000, table": (table_times_by_1000, "2,000 of 6,000 times are a thousandth of the others"),
    "8a half the users 8 h ahead": (half_the_users_eight_hours_ahead, None),
    "8b texts with time zones": (texts_with_time_zones, "times of type string are not accepted"),
    "9a parts out of order": (lambda: parts_out_of_order("time"), "are later than the first of"),
    "9b given parts out of order": (lambda: parts_out_of_order("given"), "are later than the first of"),
    "9c users in two parts": (user_in_two_parts, "users stand in two parts"),
    "9d random split with times": (random_split_of_a_table_with_times, "parted at random although .* 'ts'"),
    "10 catalogue of future clicks": (
        catalogue_of_future_clicks,
        "'catalogue.popularity' follows the .* after training",
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_plants(name):
    plant, message = PLANTS[name]
    if message is None:  # nothing in the data tells a shifted clock from other habits
        plant()
        return
    with pytest.raises(ValueError, match=message):
        plant()


# ---- nothing where nothing is -------------------------------------------------------------------------------------


def test_a_number_of_a_category_whose_rate_is_the_same_everywhere(recwarn):
    """As that of all users is where two negatives are drawn beside each click."""
    codes, labels = np.repeat(np.arange(2, 62), 30), np.tile([1.0, 0.0, 0.0], 600)
    train = np.tile(np.arange(30) < 24, 60)
    age = codes * 7.3 % 50
    assert leaks.encodings({"age": age}, {"user": codes}, labels, train, ~train) == []
    assert [str(own.message) for own in recwarn] == []


@pytest.mark.parametrize("step", [3600, 86_400])
def test_events_of_days_or_hours_alone_may_be_alike(step):
    """What a user did twice on a day, which nothing tells apart."""
    columns, catalogue = log_of()
    columns = added(columns, np.arange(300))
    last = columns["time"].max()
    columns["time"] = last - (last - columns["time"]) * 100  # months
    with pytest.raises(ValueError, match="events repeat another in every column"):
        check_log(columns, catalogue)
    minutes = check_log(
        columns | {"time": columns["time"] // 60 * 60}, catalogue
    )  # learners who answer again within one
    assert minutes.allowed == ()
    (note,) = minutes.notes
    assert note.startswith("300 of 4,300 events repeat another in every column: times tell minutes alone")
    columns["time"] = columns["time"] // step * step
    found = check_log(columns, catalogue)
    assert found.allowed + found.notes == ()


def test_sound_data_of_the_same_make():
    columns, catalogue = log_of()
    check_log(columns, catalogue)
    rng = np.random.default_rng(1)
    context = {"place": rng.integers(0, 900, 4000), "price": rng.random(4000), "app": rng.choice(["a", None], 4000)}
    context["tags"] = [["x"], None, ["x", "y"], []] * 1000
    assert check_log(columns | {"context": pa.table(context)}, catalogue).allowed == ()
    assert check_table(table()) == []
    assert check_table(table(), time=None, split="random") == []
    columns = table()
    train = np.arange(6000) < 4800
    sums, counts = (np.bincount(columns["item"][train], weights) for weights in (columns["label"][train], None))
    encoded = ((sums + 5 * 0.3) / (counts + 5))[columns["item"]]  # of training rows alone: their business
    assert check_table(columns | {"item_rate": encoded}, [*FIELDS, {"name": "item_rate", "type": "numeric"}]) == []


def test_cases_that_parts_keep_together_tell_nothing():
    assert cases_of_several_rows(split="group") == []


def test_what_was_long_before_or_of_drawn_clicks_tells_as_it_should():
    """Purchases a day behind their cart, times at which items were shown, and users who hear a song again and again."""
    assert check_log(*acts_of_two_steps(apart=86_400)).allowed == ()
    times_of_the_end(shown=True)
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(60), 80)
    plays = {
        "user": user,
        "item": user * 5 + rng.integers(0, 5, 4800),
        "time": START + np.tile(np.arange(80), 60) * 200,
    }
    plays["time"] += user * 50_000
    log = with_negatives(make_log(plays | {"label": np.ones(4800, dtype=int)}), 2)
    assert validate_log(log, split_log(log)).allowed == ()


def copied_users(columns, *, share=1.0, **changes):
    """The columns with the events of eight users, or a share of them, once more under other ids."""
    chosen = (columns["user"] < 8) & (np.random.default_rng(5).random(len(columns["user"])) < share)
    rows = np.flatnonzero(chosen)
    changes = {name: change(columns[name][rows]) for name, change in changes.items()}
    return added(columns, rows, user=columns["user"][rows] + 1000, **changes)


@pytest.mark.parametrize(("hashed", "some"), [(4_000_000, ""), (6000, " of 1 in 3")])
def test_users_who_stand_twice_are_told(monkeypatch, hashed, some):
    monkeypatch.setattr(copies, "_HASHED", hashed)
    columns, catalogue = log_of(12_000)
    columns["item"] = columns["item"] % 300
    (note,) = check_log(copied_users(columns, share=0.9), catalogue).notes
    start = "users whose events stand under another user's id too: 16 of 208"
    assert re.match(rf"{start}, such as (\d) and 100\1 \(\d+ of \d+ events{some}, to the second\); ", note)
    log = make_log(copied_users(columns), catalogue)
    by_user = split_log(log, "user")
    report = validate_log(log, by_user)
    theirs = int((log.user_ids[log.user[by_user.test]] % 1000 < 8).sum())
    assert (
        f"; {theirs:,} of {len(by_user.test):,} test samples are theirs. Leave one of each out" in report.lines()[-1]
    )
    assert f" of {log.num_events:,} samples are theirs" in validate_log(log).notes[0]


def lessons(label, classes=10):
    """Forty learners who answer most of their class's questions, each in an order and at times of their own."""
    rng, rows = np.random.default_rng(0), []
    for user in range(40):
        items = rng.permutation(np.random.default_rng(user % classes).choice(2000, 250, replace=False))[:230]
        time = START + rng.integers(0, 10_000_000) + np.cumsum(rng.integers(20, 400, 230))
        rows.append(np.stack([np.full(230, user), items, time, label(items, rng)]))
    return dict(zip(("user", "item", "time", "label"), np.concatenate(rows, axis=1)))


@pytest.mark.parametrize(("hashed", "different", "some"), [(4_000_000, 40, ""), (6000, 20, " of 1 in 2")])
def test_users_who_stand_twice_in_another_order_are_told(monkeypatch, hashed, different, some):
    monkeypatch.setattr(copies, "_HASHED", hashed)
    monkeypatch.setattr(copies, "_DIFFERENT", different)
    columns = lessons(lambda items, rng: (rng.random(len(items)) < 0.6).astype(int))
    assert validate_log(make_log(columns, log_of()[1])).notes == ()
    again = copied_users(columns, share=0.9, time=lambda values: values[::-1] - 5000)
    again["label"][-1] ^= 1
    (note,) = validate_log(make_log(again, log_of()[1])).notes
    told = (
        rf"id too: 16 of 48, such as (\d) and 100\1 \(\d+ of \d+ items{some}, with the same label\); 3,\d\d\d of 10,"
    )
    assert re.search(told, note)


@pytest.mark.parametrize("label", [
    lambda items, rng: items % 3 // 2,  # a matter of the question
    lambda items, rng: (rng.random(len(items)) < 0.97).astype(int),
    lambda items, rng: np.ones(len(items), dtype=int),
])  # fmt: skip
def test_users_who_answer_as_the_questions_ask_are_no_copies(label):
    columns = lessons(label)
    assert validate_log(make_log(columns, log_of()[1])).notes == ()


@pytest.mark.parametrize("changes", [
    {"time": lambda values: values + 1},
    {"label": lambda values: 1 - values},
    {"item": lambda values: np.where(np.arange(len(values)) % 2, values, 5)},
    {"share": 0.05},
])  # fmt: skip
def test_users_who_do_alike_are_no_copies(changes):
    columns, catalogue = log_of()
    assert check_log(copied_users(columns, **changes), catalogue).notes == ()


def test_users_of_the_same_steps_are_no_copies():
    """Courses that two take in their order, with places for times or on the same days, and most answers right."""
    user, step = np.repeat(np.arange(100), 40), np.tile(np.arange(40), 100)
    columns = {"user": user, "item": user // 2 * 40 + step}
    columns["label"] = (np.random.default_rng(0).random(4000) < 0.99).astype(int)
    day = START // 86_400 * 86_400
    for time in (day + step * 60, day + (user // 2 + step) * 86_400):
        assert validate_log(make_log(columns | {"time": time}, log_of()[1])).notes == ()
    own = day + user // 2 * 5000 + step * 60
    assert len(validate_log(make_log(columns | {"time": own}, log_of()[1])).notes) == 1


def test_events_without_a_label_may_repeat():
    columns, catalogue = log_of()
    rows = np.arange(300)
    unlabelled = added(added(columns, rows, label=np.full(300, -1)), rows, label=np.full(300, -1))
    report, plain = check_log(unlabelled, catalogue), check_log(columns, catalogue)
    assert (report.num_events - plain.num_events, report.num_samples - plain.num_samples) == (600, 0)
    assert report.duplicate_events >= 600
    with pytest.raises(ValueError, match="events repeat"):
        check_log(added(added(columns, rows), rows), catalogue)


@pytest.mark.parametrize("as_list", [False, True])
def test_events_of_another_context_are_no_doubles(as_list):
    columns, catalogue = log_of()
    columns = added(columns, np.arange(300))
    count = len(columns["time"])
    for words, message in (
        ([str(row) for row in range(count)], None),
        ([None if row % 2 else "home" for row in range(count - 300)] + ["home"] * 300, "150 of 4,300 events repeat"),
    ):
        values = [None if word is None else [word, "a"] for word in words] if as_list else words
        log = InteractionLog.from_columns(**columns, catalogue=catalogue, context=pa.table({"place": values}))
        if message is None:
            validate_log(log, split_log(log))
        else:
            with pytest.raises(ValueError, match=message):
                validate_log(log, split_log(log))


@pytest.mark.parametrize("seed", range(3))
def test_synthetic_data(seed):
    log = synthetic_log(num_users=150, seed=seed)
    assert validate_log(log, split_log(log)).allowed == ()
    source = load_tabular("synthetic_table", num_rows=6000, seed=seed)
    assert validate_table(TabularStore.build(source), source) == []
    impressions = ImpressionStore.build(load_impressions("synthetic_cascade", num_impressions=600, seed=seed))
    assert validate_impressions(impressions) == []


SMALL = os.environ.get("LMCTR_MOVIELENS_SMALL", "")


@pytest.mark.skipif(
    not Path(SMALL, "ratings.csv").is_file(), reason="LMCTR_MOVIELENS_SMALL names no folder of ml-latest-small"
)
def test_movielens():
    from lmctr.data.builders.movielens_table import movielens_table

    log = load_log("movielens", path=SMALL)
    parts = split_log(log)
    assert validate_log(log, parts).allowed == ()
    source = movielens_table(log, parts)
    assert validate_table(TabularStore.build(source), source) == []


# ---- impressions, overrides, parts of it --------------------------------------------------------------------------


def cascade(**changes):
    source = load_impressions("synthetic_cascade", num_impressions=600)
    store = ImpressionStore.build(source)
    return ImpressionStore(
        store._arrays() | {name: make(store) for name, make in changes.items()}, store.processor, store.info
    )


def test_plants_in_impressions():
    def of_ranks(store):
        values = np.array(store.ad_numeric_values)
        values[:, 0] = store.ranks
        return values

    with pytest.raises(ValueError, match=r"the field 'ad\..*' alone puts 100.0% of .* pairs of ads in order"):
        validate_impressions(cascade(ad_numeric_values=of_ranks))
    store = cascade()
    train = store.splits["train"]
    rows = np.concatenate([np.arange(len(store)), train[:30]])
    ads = np.concatenate([np.arange(store.offsets[row], store.offsets[row + 1]) for row in rows])
    of_ads = {name: values[ads] for name, values in store._arrays().items() if len(values) == store.num_ads}
    of_users = {name: values[rows] for name, values in store._arrays().items() if len(values) == len(store)}
    of_users["split"] = np.append(store.split, np.full(30, 2, np.int8))
    with pytest.raises(ValueError, match=r"30 of .* rows of validation and test stand in training too"):
        validate_impressions(ImpressionStore(of_users | of_ads, store.processor, store.info))


@pytest.mark.parametrize("label", [0, 1])
def test_copies_of_one_label_are_no_leak(label):
    """As visits that end at once are: alike, and never followed by a click."""
    columns = table()
    alike = np.flatnonzero(columns["label"][:1000] == label)[:200]
    assert len(alike) == 200
    check_table(added(columns, alike), split="rows", time=None)


def test_rows_repeated_to_balance_labels():
    """A file whose rarer label was repeated before it came here: parted at random, copies stand on both sides."""
    columns = table()
    rarer = np.flatnonzero(columns["label"] == 1)
    assert len(rarer) < 2500
    check_table(columns, split="random", time=None)
    with pytest.raises(ValueError, match=r"stand in training too, .*the rarer one, as where its rows were repeated"):
        check_table(added(columns, rarer), split="random", time=None)


def test_rows_of_few_values_meet_by_chance():
    """Ages and salaries of people who are others, and alike decide alike; two files put together have more of them."""
    rng = np.random.default_rng(0)
    age, pay = rng.integers(18, 60, 3000), rng.integers(0, 1000, 3000)
    columns = {"age": age, "pay": pay, "label": (age + pay / 20 > 64).astype(int)}
    fields = [{"name": name, "type": "categorical"} for name in ("age", "pay")]
    fields += [{"name": "pay_number", "column": "pay", "type": "numeric"}]
    check_table(columns, fields, split="random", time=None)
    with pytest.raises(ValueError, match="rows of validation and test stand in training too"):
        check_table(added(columns, np.arange(1500)), fields, split="random", time=None)


def test_what_is_allowed_says_why():
    columns = table(clicked=table()["label"])
    fields = [*FIELDS, {"name": "clicked", "type": "categorical"}]
    (line,) = check_table(columns, fields, allow={"field:clicked": "a rehearsal"})
    assert line.startswith("allowed (a rehearsal): the field 'clicked' alone ranks")
    assert len(check_table(columns, fields, allow={"field": "a rehearsal"})) == 1
    with pytest.raises(
        ValueError,
        match=r"allow_leaks: \{'field:clicked': <why>\} \(in a recipe: data.allow_leaks; on the command line: --data.allow_leaks\)",
    ):
        check_table(columns, fields, allow={"field:price": "a rehearsal"})
    for allow, message in (
        ({"feild:price": "x"}, "unknown check 'feild'; accepted: field, .*Did you mean 'field'"),
        ({"field:price": ""}, "field:price is ''; accepted: a text that says why"),
        ({"duplicates": True}, "duplicates is True; accepted: a text"),
    ):
        with pytest.raises(ValueError, match=message):
            settle([], allow, "x")
    report = check_log(added(log_of()[0], np.arange(300)), log_of()[1], allow={"duplicates": "two taps"})
    assert "allowed (two taps): 300 of 4,300 events" in str(report)


def test_a_known_benchmark_keeps_its_random_split():
    store, source = store_of(table(), split="random")
    assert [finding.check for finding in table_findings(store, source)] == ["random_split"]
    assert table_findings(store, dataclasses.replace(source, published_split=True)) == []
    assert store_of(table(), split=None)[1].split.rule == "time"
    assert store_of(table(), split=None, time=None)[1].split.rule == "random"


def test_rank_auc_against_pairs():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 9, 60), rng.integers(0, 2, 60)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels == 1] for b in scores[labels == 0]]
    assert rank_auc(scores, labels) == pytest.approx(np.mean(pairs))
    assert rank_auc(scores, labels) == pytest.approx(auc(labels, scores), abs=1e-15)
    assert np.isnan(rank_auc(scores, np.zeros(60)))


def test_an_attribute_that_foretells_as_the_past_does_is_none_of_the_future():
    rng = np.random.default_rng(0)
    rate = rng.gamma(2, 5, 400)
    past, future = (np.stack([rng.poisson(rate * 3), rng.poisson(rate)], 1) for _ in range(2))
    assert future_attribute("popular", past[:, 1].astype(float), past, future) == []
    assert future_attribute("true rate", rate, past, future) == []
    assert len(future_attribute("clicks of all time", (past + future)[:, 1].astype(float), past, future)) == 1


def test_a_few_rows_tell_which_numbers_are_no_function_of_a_category(monkeypatch):
    """What is told of some rows is never another verdict than that of all; and it spares nearly all of the work."""
    rng = np.random.default_rng(0)
    count, judged = 40_000, []
    labels = (rng.random(count) < 0.3).astype(int)
    train, held = np.arange(30_000), np.arange(30_000, count)
    categories = {f"c{size}": rng.integers(2, size + 2, count) for size in (3, 60, 900, 15_000, 400_000)}
    mean = {name: np.bincount(codes, labels) / np.maximum(np.bincount(codes), 1) for name, codes in categories.items()}
    numbers = {f"mean of {name}": of[categories[name]] for name, of in mean.items()}
    numbers |= {"noisy": numbers["mean of c900"] + rng.normal(size=count) * 1e-3, "none": np.full(count, np.nan)}
    numbers |= {f"n{n}": rng.lognormal(size=count) for n in range(20)} | {"one": np.ones(count)}
    numbers["holes"] = np.where(rng.random(count) < 0.9, np.nan, numbers["mean of c900"])
    whole = leaks._encodes
    monkeypatch.setattr(leaks, "_encodes", lambda *given: judged.append(1) or whole(*given))
    found = leaks.encodings(numbers, categories, labels, train, held)
    # Left are a category's own mean, and the 400,000 values of which too few stand in two of the rows; what has no spread is not asked.
    assert len(judged) < 26 + 3 * 6
    monkeypatch.setattr(leaks, "_differs", lambda *given: False)
    assert leaks.encodings(numbers, categories, labels, train, held) == found
    assert {one.name for one in found} >= {"mean of c60", "mean of c900", "noisy"}


def test_users_who_always_click_are_no_copy_of_the_label():
    """A category of many values that ranks well holds tastes; one of few is a copy with noise."""
    rng = np.random.default_rng(1)
    for values, found in ((1000, False), (40, True)):
        user = rng.integers(0, values, 9000)
        rate = np.where(np.arange(values) % 2 == 0, 0.07, 0.93)
        label = (rng.random(9000) < rate[user]).astype(int)
        findings = telling_fields(
            {"user": user, "noise": rng.normal(size=9000)}, label, np.arange(6000), np.arange(6000, 9000)
        )
        assert bool(findings) == found


def test_a_leak_is_told_of_fifty_rows_of_each_label():
    rng = np.random.default_rng(2)
    for positive, found in ((40, False), (60, True)):
        label = np.concatenate(
            [rng.permutation(np.arange(6000) < 300), rng.permutation(np.arange(3000) < positive)]
        ).astype(int)
        findings = telling_fields({"copy": label.copy()}, label, np.arange(6000), np.arange(6000, 9000))
        assert bool(findings) == found
