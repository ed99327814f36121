"""`lmctr train RECIPE --from RUN` with a later log: items, values of features and users that are new extend the tables of a DIN."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from optimisers import steps_at_best
from safetensors.torch import load_file
from tiny_backbones import TINY_BERT

import lmctr
from lmctr.cli.main import main
from lmctr.data import InteractionLog
from lmctr.data.batches.rows import CONTEXTS
from lmctr.data.processors.extend_sequence import extend_sequence_processor, sequence_sources
from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.runs.recipe import load_recipe

RECIPE = {
    "data": {
        "item_features": ["kind"],
        "user_features": ["city"],
        "max_history_length": 10,
        "max_idle": 1,
        "baselines": False,
    },
    "model": {"family": "din", "embedding_dim": 4, "initializer_range": 0.1},
    "training": {"epochs": 1, "learning_rate": 1e-2, "per_device_train_batch_size": 64, "use_cpu": True, "seed": 0},
}
STILL = {"training.learning_rate": 0.0, "training.weight_decay": 0.0}


def make_log(day, seed=0):
    """A day's events: items, kinds and cities move on from day to day."""
    draw = np.random.default_rng([seed, day])
    items, users = np.arange(60) + 20 * day, np.arange(40) + 15 * day
    catalogue = pa.table({"item_id": items, "kind": [f"k{item // 10}" for item in items]})
    table = pa.table({"user_id": users, "city": [f"c{user // 10}" for user in users]})
    count = 1200
    time = 86_400 * (100 + day) + draw.integers(0, 86_400, count)
    user, item = draw.choice(users, count), draw.choice(items, count)
    return InteractionLog.from_columns(
        user, item, time, ((item + user) % 3 == 0) * 1, catalogue=catalogue, users=table
    )


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    return [str(make_log(day).save(folder / f"day{day}")) for day in range(2)]


@pytest.fixture(scope="module")
def first(days, tmp_path_factory):
    """A finished run of day 0. Read it only."""
    recipe = {**RECIPE, "data": {**RECIPE["data"], "name": days[0]}}
    return lmctr.runs.train(recipe, output_dir=tmp_path_factory.mktemp("run") / "day0")


@pytest.fixture(scope="module")
def second(first, days, tmp_path_factory):
    """Day 1 from day 0, at a learning rate of 0: the weights are those that it began with."""
    recipe = {**RECIPE, "data": {**RECIPE["data"], "name": days[1]}}
    folder = tmp_path_factory.mktemp("run") / "day1"
    return lmctr.runs.train(recipe, output_dir=folder, overrides={**STILL, "training.from_run": str(first.path)})


def vectors(run):
    """By vocabulary and value, the row of its table."""
    processor = SequenceProcessor.from_pretrained(run.path)
    weights = load_file(run.path / "model.safetensors")
    found = {}
    for name, table, values in (
        ("items", "item_embedding.items", processor.items["item_id"].to_pylist()),
        ("kind", "item_embedding.features.0", processor.features["kind"]),
        ("city", "context.user_features.0", processor.features["city"]),
    ):
        rows = weights[f"model.{table}.weight"]
        assert len(rows) == len(values) + 2
        found[name] = dict(zip(values, rows[2:])) | {None: rows[1]}
    return found


def test_values_keep_their_vectors_new_ones_get_some_and_old_ones_go(first, second):
    before, after = vectors(first), vectors(second)
    for name, gone, new in (("items", 19, 60), ("kind", "k1", "k6"), ("city", "c0", "c5")):
        assert gone in before[name]
        assert gone not in after[name]  # max_idle
        assert new not in before[name]
        assert 0 < after[name][new].abs().max() < 1
        both = before[name].keys() & after[name].keys()
        assert len(both) > 2
        for value in both:
            torch.testing.assert_close(after[name][value], before[name][value], atol=0, rtol=0)
    old, new = (load_file(run.path / "model.safetensors") for run in (first, second))
    torch.testing.assert_close(
        new["model.layers.0.linear.weight"], old["model.layers.0.linear.weight"], atol=0, rtol=0
    )


def test_the_optimiser_goes_on_too(first, second):
    assert steps_at_best(first) == {first.metrics["best_step"]}
    assert steps_at_best(second) == {first.metrics["best_step"] + second.metrics["best_step"]}


def test_it_evaluates_and_predicts_by_itself(second):
    assert main(["evaluate", str(second.path)]) == 0
    history = [{"item": 25, "time": 10, "behavior": "positive"}]
    request = {
        "history": history,
        "time": 20,
        "candidates": [{"item": item, "user": {"city": "c3"}} for item in (30, 70)],
    }
    assert np.isfinite(second.predict([request])).all()


def test_the_command_line_says_what_it_does(first, days, tmp_path, capsys):
    (tmp_path / "day.yaml").write_text(yaml.safe_dump({**RECIPE, "data": {**RECIPE["data"], "name": days[1]}}))
    words = ["train", str(tmp_path / "day.yaml"), "--from", str(first.path), "--output-dir", str(tmp_path / "run")]
    assert main([*words, "--training.max_steps", "2"]) == 0
    said = capsys.readouterr().out
    assert f"going on from {first.path}: values of items 60 (+20 -20), kind 6 (+2 -2), city" in said
    assert "no value" not in said


def test_values_that_are_all_new_are_told(first, tmp_path, capsys):
    log = make_log(1)
    catalogue = log.catalogue.set_column(1, "kind", pa.array([f"K-{kind}" for kind in log.catalogue["kind"]]))
    place = dataclasses.replace(log, catalogue=catalogue).save(tmp_path / "otherwise")
    recipe = {**RECIPE, "data": {**RECIPE["data"], "name": str(place)}}
    overrides = {"training.from_run": str(first.path), "training.max_steps": 2}
    lmctr.runs.train(recipe, output_dir=tmp_path / "run", overrides=overrides)
    words = "; of kind no value of the earlier run is met in these data: if they are coded otherwise, what it learnt of them is lost"
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"model.family": "hstu", "model.hidden_size": 16},
            "holds a model of the type din, the recipe makes one of the type hstu",
        ),
        ({"model.embedding_dim": 8}, "weight has shape"),
        ({"data.item_features": []}, r"data.item_features is \[\] here and \['kind'\] in .*day0"),
        ({"data.max_history_length": 5}, "data.max_history_length is 5 here and 10"),
        ({"training.from_run": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_go_on_is_refused(first, days, tmp_path, overrides, words):
    recipe = {**RECIPE, "data": {**RECIPE["data"], "name": days[1]}}
    if "model.family" in overrides:
        recipe["model"] = {"family": "hstu"}
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        lmctr.runs.train(
            recipe, output_dir=tmp_path / "run", overrides={"training.from_run": str(first.path), **overrides}
        )


@pytest.mark.parametrize("max_idle", [None, 1, 2])
def test_vocabularies_over_three_days_against_plain_sets(max_idle, tmp_path):
    logs = [make_log(day) for day in (0, 1, 2)]
    processor = SequenceProcessor.fit(logs[0], item_features=["kind"], user_features=["city"])
    known = {
        "items": dict.fromkeys(processor.items["item_id"].to_pylist(), 0),
        "kind": dict.fromkeys(processor.features["kind"], 0),
        "city": dict.fromkeys(processor.features["city"], 0),
    }
    for log in logs[1:]:
        before, events = processor, log.sample_events()[:700]
        processor, report = extend_sequence_processor(before, log, events, max_idle=max_idle)
        processor.save_pretrained(tmp_path)
        processor = SequenceProcessor.from_pretrained(tmp_path)
        seen = log.seen_events(events)
        ids = log.catalogue["item_id"].to_pylist()
        shown = {
            "items": {ids[item] for item in log.item[seen]},
            "kind": {f"k{ids[item] // 10}" for item in log.item[seen]},
            "city": {f"c{log.user_ids[user] // 10}" for user in log.user[events]},
        }
        for name, own in known.items():
            idle = {value: 0 if value in shown[name] else count + 1 for value, count in own.items()}
            kept = {value: count for value, count in idle.items() if max_idle is None or count < max_idle}
            new = sorted(shown[name] - own.keys())
            counts = {"added": len(new), "met": len(shown[name] & own.keys()), "evicted": len(own) - len(kept)}
            assert report[name] == {**counts, "size": len(kept) + len(new)}
            known[name] = kept | dict.fromkeys(new, 0)
            values = processor.items["item_id"].to_pylist() if name == "items" else list(processor.features[name])
            assert values == list(known[name])
        kinds = processor.items["kind"].to_numpy()
        for item, code in zip(processor.items["item_id"].to_pylist(), kinds):
            expected = f"k{item // 10}"
            assert (processor.features["kind"][code - 2] if code > 1 else None) == (
                expected if expected in known["kind"] else None
            )
        sources = sequence_sources(before, processor)
        old = before.items["item_id"].to_pylist()
        assert sources["items"].tolist() == [0, 1] + [
            old.index(item) + 2 if item in old else -1 for item in known["items"]
        ]
        old = list(before.features["city"])
        assert sources["user_feature.0"].tolist() == [0, 1] + [
            old.index(city) + 2 if city in old else -1 for city in known["city"]
        ]


class _Counted(list):
    """A list that counts how often it is gone through."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


def test_a_features_values_are_gone_through_as_often_however_many_are_new():
    log = make_log(1)
    cities = ["c1", *(f"d{user}" for user in range(39))]
    passes = []
    for own in ([f"c{number % 5}" for number in range(40)], cities):
        newer = dataclasses.replace(log, users=pa.table({"user_id": log.user_ids, "city": own}))
        processor = SequenceProcessor.fit(make_log(0), user_features=["city"])
        known = processor.features["city"] = _Counted(processor.features["city"])
        report = extend_sequence_processor(processor, newer, log.sample_events())[1]
        passes.append((report["city"]["added"], known.times))
    (few, first), (many, second) = passes
    assert many > few + 30
    assert second == first


def test_ids_of_another_kind_are_named():
    processor = SequenceProcessor.fit(make_log(0))
    log = InteractionLog.from_columns(["u", "u"], ["a", "b"], [5, 6], [0, 1])
    with pytest.raises(
        ValueError, match="item_id: the log's ids have the type string, those of the earlier run int64"
    ):
        extend_sequence_processor(processor, log, np.arange(2))
    with pytest.raises(ValueError, match="train_events: there are none"):
        extend_sequence_processor(processor, make_log(1), np.arange(0))


@pytest.fixture(scope="module")
def both(days, tmp_path_factory):
    """The log of both days."""
    logs = [lmctr.data.load_log(day) for day in days]
    columns = [
        [
            log.user_ids[log.user].tolist(),
            log.catalogue["item_id"].take(pa.array(log.item)).to_pylist(),
            log.time.tolist(),
        ]
        for log in logs
    ]
    user, item, time = (a + b for a, b in zip(*columns))
    label = np.concatenate([log.label for log in logs])
    tables = [[log.catalogue.to_pylist(), log.users.to_pylist()] for log in logs]
    catalogue, users = (
        pa.Table.from_pylist(list({tuple(row.items()): row for row in a + b}.values())) for a, b in zip(*tables)
    )
    log = InteractionLog.from_columns(
        np.array(user), np.array(item), np.array(time), label, catalogue=catalogue, users=users
    )
    return str(log.save(tmp_path_factory.mktemp("both") / "log"))


def test_histories_that_begin_anew_are_told(first, days, both, tmp_path, capsys):
    """The later log holds none of the earlier events; one with both does, of which some were trained on."""
    told = "histories and statistics begin with these data, which all come after those of the earlier run"
    for name, begins in ((days[1], True), (both, False)):
        recipe = {**RECIPE, "data": {**RECIPE["data"], "name": name}}
        overrides = {**STILL, "training.from_run": str(first.path)}
        lmctr.runs.train(recipe, output_dir=tmp_path / f"run{begins}", overrides=overrides)
        said = capsys.readouterr().out
        assert (told in said) == begins
        last = json.loads((first.path / "data.json").read_text())["split"]["times"]["train"][1]
        assert (
            f"of 1,920 training samples are no newer than those that it was trained on: with data.since {last + 1} "
            in said
        ) != begins


def test_no_since_is_named_that_would_leave_no_sample(first, days, tmp_path, capsys):
    recipe = {**RECIPE, "data": {**RECIPE["data"], "name": days[0]}}
    lmctr.runs.train(recipe, output_dir=tmp_path / "run", overrides={**STILL, "training.from_run": str(first.path)})
    said = capsys.readouterr().out
    assert "960 of 960 training samples are no newer than those that it was trained on" in said
    assert "data.since" not in said


@pytest.mark.parametrize("since", ["1970-04-12", "1970-04-12T02:00:00+02:00", "8726400"])
def test_older_events_stand_in_histories_only(first, both, tmp_path, since, capsys):
    (tmp_path / "day.yaml").write_text(yaml.safe_dump({**RECIPE, "data": {**RECIPE["data"], "name": both}}))
    words = ["train", str(tmp_path / "day.yaml"), "--from", str(first.path), "--output-dir", str(tmp_path / "run")]
    assert main([*words, "--data.since", since, "--training.max_steps", "2"]) == 0
    assert "no newer than those" not in capsys.readouterr().out
    run = lmctr.runs.load(tmp_path / "run")
    assert run.recipe.data["since"] == 101 * 86_400
    data = json.loads((run.path / "data.json").read_text())
    assert data["counts"]["samples"] == {"train": 960, "validation": 120, "test": 120}
    assert min(first for first, _ in data["split"]["times"].values()) >= 101 * 86_400
    log = lmctr.data.load_log(both)
    begins = log.history_bounds(np.flatnonzero(log.time >= 101 * 86_400))[0]
    assert (log.time[begins] < 101 * 86_400).mean() > 0.5
    everything = run.evaluate("test", overrides={"data.since": None})
    assert everything["num_samples"] == 240


@pytest.mark.parametrize(
    ("since", "words"),
    [
        ("yesterday", r"is 'yesterday', accepted: unix seconds, or an ISO time such as 2024-03-01"),
        (20240301, "is 20240301, accepted: unix seconds, or an ISO time; did you mean 2024-03-01[?]"),
        (1_709_251_200_000, "is 1709251200000, accepted: unix seconds, or an ISO time; did you mean 1709251200[?]"),
    ],
)
def test_a_time_that_is_none_is_refused(since, words, both):
    recipe = {**RECIPE, "data": {**RECIPE["data"], "name": both, "since": since}}
    with pytest.raises(ValueError, match=f"data.since {words}"):
        load_recipe(recipe)


def test_a_key_is_told_to_be_of_other_families():
    words = "unknown key 'max_idle' in data .*; families of the kind sequence have it, this one has not; known keys: "
    with pytest.raises(ValueError, match=words):
        load_recipe({"data": {"name": "x.yaml", "max_idle": 5}, "model": {"family": "deepfm"}, "training": {}})


def log_of_devices(days, devices):
    """Events of so many days, those of the third from these devices."""
    draw = np.random.default_rng(5)
    time, item = np.sort(draw.integers(0, 3 * 86_400, 600)), draw.integers(0, 30, 600)
    device = np.where(time < 2 * 86_400, np.array(["phone", "desk"])[item % 2], np.array(devices)[item % len(devices)])
    columns = (draw.integers(0, 20, 600), item, time, (draw.integers(0, 3, 600) + item % 3 > 2) * 1)
    kept = time < days * 86_400
    return InteractionLog.from_columns(
        *(column[kept] for column in columns),
        catalogue=pa.table({"item_id": np.arange(30), "title": [f"night {number}" for number in range(30)]}),
        context=pa.table({"device": device[kept]}),
    )


def _assert_went_on(later, reader):
    """Statistics and scales are the earlier run's; the limits hold what the later one was trained on, too."""
    assert dataclasses.replace(later, low=(), high=()) == dataclasses.replace(reader, low=(), high=())
    assert all(np.array(later.low) <= reader.low)
    assert all(np.array(later.high) >= reader.high)


@pytest.mark.parametrize("family", ["din", "ctr_sink"])
def test_statistics_of_the_context_stay_where_it_has_new_values(family, tmp_path, capsys):
    """The earlier run's statistics, as they were fitted; what it has none of is told."""
    recipe = {**RECIPE, "data": {"statistics": ["basic", "context"], "baselines": False}}
    if family == "ctr_sink":
        backbone = TINY_BERT | {"max_position_embeddings": 64}
        tokenizer = {"type": "wordpiece", "vocab_size": 150}
        recipe["model"] = {"family": family, "backbone": backbone, "tokenizer": tokenizer}
        recipe["data"] |= {"prompt": {"base": "generic/en", "item": "{title}"}, "num_behaviors": 4}
        recipe["training"] = {"stage1_epochs": 0, "stage2_epochs": 1, "use_cpu": True, "seed": 0}

    def trained(log, folder, **overrides):
        own = {**recipe, "data": {**recipe["data"], "name": str(log.save(tmp_path / f"log-{folder}"))}}
        return lmctr.runs.train(own, output_dir=tmp_path / folder, overrides=overrides)

    first = trained(log_of_devices(2, ["phone"]), "first")
    capsys.readouterr()
    more = {**STILL, "training.from_run": str(first.path), "data.since": 2 * 86_400}
    newer = log_of_devices(3, ["tv", "phone", "watch"])  # one is gone, two are new
    second = trained(newer, "second", **more)
    words = "; it has no statistic of device=tv, device=watch of the context: read as unknown values"
    assert words in capsys.readouterr().out
    reader = first.processor.statistics_reader
    assert reader.names[-2:] == ("context:device=desk", "context:device=phone")
    later = second.processor.statistics_reader
    _assert_went_on(later, reader)
    assert later.high[reader.names.index("item_count")] > reader.high[reader.names.index("item_count")]
    shares = json.loads((second.path / "data.json").read_text())["unknown_by_field"]["train"]
    assert shares[CONTEXTS] == pytest.approx(2 / 3, abs=0.1)
    told = words.replace("device=tv, device=watch", "device=radio")
    third = log_of_devices(3, ["radio", "desk"])
    trained(third, "third", **more | {"training.from_run": str(second.path)})
    assert told in capsys.readouterr().out

    with pytest.raises(ValueError, match=r"data.statistics is \['.*'\] here and \['.*'\] in .*first; keep it"):
        trained(newer, "other", **more, **{"data.statistics": ["context"]})
    wider = newer.context.append_column("page", pa.array(["home"] * (len(newer.time) - 1) + ["search"]))
    with pytest.raises(ValueError, match=r"'context:page=search'.* here and"):
        trained(dataclasses.replace(newer, context=wider), "wider", **more)


def test_statistics_stay_where_a_column_of_items_has_come_to_be_a_category(tmp_path, capsys, monkeypatch):
    """With more items the same kinds are few of each; and with fewer the earlier run's statistics by them are counted as before."""

    def trained(folder, items, kinds, **overrides):
        draw = np.random.default_rng(6)
        catalogue = {"item_id": np.arange(items), "kind": [f"k{number % kinds}" for number in range(items)]}
        catalogue |= {"shop_id": np.arange(items) // 2, "parent_item_id": np.arange(items) // 10}
        columns = (draw.integers(0, 20, 600), draw.integers(0, items, 600), np.arange(600), draw.integers(0, 2, 600))
        log = InteractionLog.from_columns(*columns, catalogue=pa.table(catalogue))
        data = {"statistics": ["full"], "baselines": False, "name": str(log.save(tmp_path / f"log-{folder}"))}
        return lmctr.runs.train({**RECIPE, "data": data}, output_dir=tmp_path / folder, overrides=overrides)

    with monkeypatch.context() as patch:  # earlier releases took every number for one that users may have a taste for
        patch.setattr("lmctr.statistics.table._is_code", lambda field: False)
        first = trained("first", 30, 10)
    assert "rate_taste_shop_id" in first.processor.statistics_reader.names
    capsys.readouterr()
    second = trained("second", 60, 10, **STILL, **{"training.from_run": str(first.path)})
    assert "; it has no statistic by kind of the items: as it was trained" in capsys.readouterr().out
    _assert_went_on(second.processor.statistics_reader, first.processor.statistics_reader)
    counted = trained("counted", 60, 10)
    names = counted.processor.statistics_reader.names
    assert "kind_rate_mean" in names
    assert not any("taste_shop_id" in name for name in names)
    third = trained("third", 60, 20, **STILL, **{"training.from_run": str(counted.path)})
    _assert_went_on(third.processor.statistics_reader, counted.processor.statistics_reader)
