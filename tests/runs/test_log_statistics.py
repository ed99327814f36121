"""`data.statistics` in recipes of sequences and of tables that read a log."""

import numpy as np
import pandas as pd
import pytest

from lmctr.data.leaks import rank_auc
from lmctr.runs import train
from lmctr.runs.folder import ITEM_STATISTICS
from lmctr.runs.inputs import input_of
from lmctr.runs.options import TrainOptions
from lmctr.runs.recipe import RecipeError, load_recipe
from lmctr.runs.starting import recipe_for_file
from lmctr.statistics import ItemStatistics, factors

OPTIONS = {"num_users": 30, "num_items": 20, "events_per_user": 30}


def opened(family, **data):
    recipe = {
        "data": {"name": "synthetic_sequence", "options": OPTIONS, **data},
        "model": {"family": family},
        "training": {},
    }
    view = input_of(load_recipe(recipe))
    view.load()
    return view


def test_sets_and_names_mix():
    view = opened("din", statistics=["basic", "item_rate_30_days"])
    reader = view.statistics_reader()
    assert reader.names[:2] == ("user_rate", "user_count")
    assert reader.names[-1] == "item_rate_30_days"
    assert len(opened("din", statistics="full").statistics_reader().names) > len(reader.names)
    assert opened("din").statistics_reader() is None


def test_a_table_of_a_log_has_the_readers_columns(tmp_path):
    view = opened("dnn", statistics="full")
    reader = view.source.statistics_reader
    view.check()
    processor = view.make_processor()
    numeric = [field for field in processor.fields if field.type == "numeric"]
    assert [field.name for field in numeric] == list(reader.names)
    events = np.concatenate([own for _, own in view.log_splits.items()])
    expected = reader.scaled(reader.raw(view.log, events))
    np.testing.assert_allclose(view.store.numeric_values, expected, atol=2e-5)
    view.save_beside(tmp_path, processor)
    items = tmp_path / ITEM_STATISTICS
    assert ItemStatistics.load(items, processor.statistics_reader).time == int(view.log.time.max()) + 1
    plain = opened("dnn")
    assert plain.source.statistics_reader is None
    plain.check()
    assert next(field.name for field in plain.make_processor().fields if field.type == "numeric") == "user_rate"
    items.unlink()
    plain.save_beside(tmp_path, plain.make_processor())
    assert not items.exists()


@pytest.mark.parametrize(("data", "message"), [
    ({"name": "synthetic_table", "options": {}, "statistics": "full"}, "counts the events of an interaction log"),
    ({"statistics": "ful"}, "did you mean"),
    ({"statistics": ["user_rate", "user_rate"]}, "accepted: all different"),
])  # fmt: skip
def test_recipes_that_tables_cannot_follow(data, message):
    with pytest.raises(RecipeError, match=message):
        opened("dnn", **data)


def _clicks(path, comes_back):
    """Users who click on three items of their own, met again and again or once."""
    draw = np.random.default_rng(0)
    lines = [".user,item,ts,click"]  # `.user` is no path to a field
    for user in range(50):
        items = draw.integers(0, 40, 50) if comes_back else draw.permutation(400)[:50]
        liked = draw.permutation(40)[:6]
        for place, item in enumerate(items):
            click = int(draw.random() < (0.85 if item in liked else 0.1))
            lines.append(f"{user},{item},{1_700_000_000 + place * 3600 + user},{click}")
    path.write_text("\n".join(lines) + "\n")


def test_items_that_users_come_back_to_have_statistics_of_their_own(tmp_path):
    """A file's recipe reads them where users come back, and then the baselines do too; they are what tells such clicks."""
    for name, wanted in (("again", ["full", "repeats", "factors"]), ("once", ["full", "factors"])):
        _clicks(tmp_path / f"{name}.csv", name == "again")
        for family in ("din", "deepfm", "ctr_sink"):
            options = TrainOptions(recipe=str(tmp_path / f"{name}.csv"), model=family)
            recipe = recipe_for_file(options, say=lambda line: None)
            assert recipe["data"]["statistics"] == wanted, (name, family)
    _baselines_gain_by("repeats", tmp_path / "again.csv")


def _baselines_gain_by(chosen, path):
    """Test AUC of boosting in the views of two families, with `full` and with a set more."""
    for family in ("din", "deepfm"):
        recipe = recipe_for_file(TrainOptions(recipe=str(path), model=family), say=lambda line: None)
        found = []
        for names in ("full", ["full", chosen]):
            view = input_of(load_recipe({**recipe, "data": {**recipe["data"], "statistics": names}}))
            view.load()
            view.check()
            found.append(view.baselines(0)[0]["gradient_boosting"]["test"]["auc"])
            assert ("statistics" in view.baseline_data_keys(view.data)) == (names != "full")
        assert found[1] > found[0] + 0.1, family


def test_a_step_before_a_click_is_told_alike_of_every_view(tmp_path):
    """Carts, and purchases two seconds later; what is allowed is allowed for every family."""
    draw, lines = np.random.default_rng(0), ["user,item,ts,event"]
    for user in range(60):
        time = 1_700_000_000 + user * 60
        for item in draw.integers(0, 40, 40):
            time += int(draw.integers(60, 4000))
            lines.append(f"{user},{item},{time},view")
            if draw.random() < 0.4:
                lines += [f"{user},{item},{time + 300},cart", f"{user},{item},{time + 302},purchase"]
                time += 302
    (tmp_path / "shop.csv").write_text("\n".join(lines) + "\n")
    words = set()
    for family in ("din", "deepfm", "ctr_sink"):
        options = TrainOptions(recipe=str(tmp_path / "shop.csv"), model=family, label="event=purchase")
        recipe = recipe_for_file(options, say=lambda line: None)
        view = input_of(load_recipe(recipe))
        view.load()
        with pytest.raises(ValueError, match=r"'log_seconds_since_last_event' alone .* the step before") as error:
            view.check()
        words.add(str(error.value))
        recipe["data"]["allow_leaks"] = {"field": "the basket is open when we ask"}
        view = input_of(load_recipe(recipe))
        view.load()
        allowed = [line for line in view.check() if "since_last_event" in line]
        assert [line.startswith("allowed (the basket is open") for line in allowed] == [True, True]
    assert len(words) == 1


def test_a_table_of_drawn_negatives_may_know_what_users_come_back_to(tmp_path):
    draw, lines = np.random.default_rng(0), ["user,item,ts"]
    for user in range(80):
        favourites = draw.integers(0, 4000, 6)
        lines += [
            f"{user},{draw.choice(favourites)},{1_700_000_000 + user * 60 + place * 5000}" for place in range(60)
        ]
    (tmp_path / "plays.csv").write_text("\n".join(lines) + "\n")
    options = TrainOptions(recipe=str(tmp_path / "plays.csv"), model="deepfm", negatives=2)
    view = input_of(load_recipe(recipe_for_file(options, say=lambda line: None)))
    view.load()
    view.check()
    test = view.store.splits["test"]
    place = [field.name for field in view.store.processor.ordered_fields() if field.kind == "value"].index(
        "user_item_count"
    )
    known = view.store.numeric_values[test, place] > view.store.numeric_values[:, place].min()
    assert rank_auc(known, view.store.labels[test]) > 0.98


def test_users_who_think_alike_say_what_a_user_will_think(tmp_path, monkeypatch):
    """Nothing but the users' clicks tells the two kinds of items apart."""
    draw = np.random.default_rng(0)
    lines = ["user,item,ts,click"]
    for user in range(80):
        for place, item in enumerate(draw.permutation(60)[:40]):
            click = int(draw.random() < (0.8 if item % 2 == user % 2 else 0.2))
            lines.append(f"{user},{item},{1_700_000_000 + place * 3600 + user},{click}")
    (tmp_path / "alike.csv").write_text("\n".join(lines) + "\n")
    counted, count = [], factors._scores
    monkeypatch.setattr(factors, "_counted", {})
    monkeypatch.setattr(factors, "_scores", lambda *given: counted.append(1) or count(*given))
    _baselines_gain_by("factors", tmp_path / "alike.csv")
    assert counted == [1]  # for fit, samples and baselines of both families


def test_users_of_one_event_each_have_no_statistics_of_their_own_and_no_history(tmp_path):
    rng, count = np.random.default_rng(0), 400
    rows = {"user_id": np.arange(count), "item_id": rng.integers(0, 9, count), "ts": 1_600_000_000 + np.arange(count)}
    pd.DataFrame(rows | {"clicked": rng.integers(0, 2, count)}).to_csv(tmp_path / "log.csv", index=False)
    recipe = {
        "data": {
            "name": str(tmp_path / "log.yaml"),
            "options": {"history_length": 5},
            "statistics": ["full"],
            "baselines": False,
        },
        "model": {"family": "dnn", "embedding_dim": 2, "hidden_units": [4]},
        "training": {"max_steps": 1},
    }
    (tmp_path / "log.yaml").write_text(
        "events: log.csv\ncolumns: {user: user_id, item: item_id, time: ts, label: clicked}\n"
    )
    run = train(recipe, output_dir=tmp_path / "run", quiet=True)
    names = {field.name for field in run.processor.fields}
    assert {"user_rate", "item_rate", "item_rate_5_events", "item_age"} <= names
    assert not {"last_5_mean", "seconds_since_first_event", "liked_items", "other_items"} & names
    assert run.evaluate("test")["auc"] == pytest.approx(run.metrics["test"]["auc"])
    asked = [{"user_id": user, "item_id": 3, "ts": 1_600_000_400} for user in (5, 999)]
    assert np.isfinite(run.predict(asked)).all()
