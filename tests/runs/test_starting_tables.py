"""`lmctr init` and `lmctr train FILE --model FAMILY` on rows of clicks without users, items and times."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import lmctr
from lmctr.cli.main import main
from lmctr.models.families import families
from lmctr.runs import starting
from lmctr.runs.inputs import config_class
from lmctr.runs.options import TrainOptions
from lmctr.runs.starting import recipe_for_file
from lmctr.training.tokenizers import train_tokenizer

ROWS = 1200


@pytest.fixture
def clicks(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    site, slot, visits = rng.integers(0, 40, ROWS), rng.integers(0, 5, ROWS), rng.integers(0, 60, ROWS)
    clicked = rng.random(ROWS) < 1 / (1 + np.exp(2 - (site % 4) - visits / 30))
    rows = np.column_stack([clicked.astype(int), site, slot, visits])
    lines = [",".join(map(str, row)) for row in rows]
    (tmp_path / "clicks.csv").write_text("\n".join(["click,site,slot,visits", *lines]) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_file_of_clicks_to_a_scored_file(clicks, capsys, caplog):
    assert main(["init", "clicks.csv", "--yes"]) == 0
    told = capsys.readouterr().out
    assert "\nno time: rows of a table" in told
    assert "lmctr train clicks/deepfm.yaml" in told
    assert sorted(path.name for path in (clicks / "clicks").iterdir()) == ["deepfm.yaml", "schema.yaml"]
    few = ["--training.epochs", "2", "--training.use_cpu", "true"]
    assert main(["train", "clicks/deepfm.yaml", "--output-dir", "runs/one", *few]) == 0
    assert "samples per step, 2 epochs, " in capsys.readouterr().out
    assert main(["train", "clicks.csv", "--model", "deepfm", "--output-dir", "exp:2", *few]) == 0
    one, two = (json.loads((clicks / name / "metrics.json").read_text()) for name in ("runs/one", "exp:2"))
    assert one["split metrics"] == two["split metrics"]
    assert set(one["baselines"]) == {"field_counting", "field_gradient_boosting"}
    assert main(["evaluate", "exp:2", "--predictions", "own:scores.parquet"]) == 0
    assert main(["predict", "runs/one", "--input", "clicks.csv", "--output", "scores.csv"]) == 0
    assert len((clicks / "scores.csv").read_text().splitlines()) == ROWS + 1
    capsys.readouterr()
    shutil.copy("clicks.csv", "same.csv")
    (clicks / "new.csv").write_text("\n".join((clicks / "clicks.csv").read_text().splitlines()[:301]) + "\n")
    assert main(["evaluate", "runs/one", "--data.path", "same.csv"]) == 0
    assert "measured on" not in caplog.text
    assert main(["evaluate", "runs/one", "--data.path", "new.csv"]) == 0
    assert re.search(r"measured on \d\d of the 300 samples of other data than the run's", caplog.text)
    assert main(["evaluate", "runs/one", "--data.path", "absent.csv"]) == 2
    assert "absent.csv: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["deepfm", "din"])
def test_a_folder_of_parquet_files_is_one_data_file(clicks, family, capsys):
    frame = pd.read_csv("clicks.csv")
    if family == "din":
        frame = frame.rename(columns={"site": "user_id", "slot": "item_id"}).assign(
            timestamp=range(1_600_000_000, 1_600_000_000 + ROWS)
        )
    (clicks / "days").mkdir()
    for day, rows in enumerate((frame[: ROWS // 2], frame[ROWS // 2 :])):
        rows.to_parquet(clicks / "days" / f"{day}.parquet", index=False)
    frame.to_parquet("days.parquet", index=False)
    few = ["--training.epochs", "1", "--training.use_cpu", "true", "--training.boosting_share", "0"]
    assert main(["train", "days", "--model", family, *few]) == 0
    run = f"runs/days_{family}"
    assert main(["predict", run, "--input", "days", "--output", "parts.csv"]) == 0
    assert main(["predict", run, "--input", "days.parquet", "--output", "whole.csv"]) == 0
    assert (clicks / "parts.csv").read_text() == (clicks / "whole.csv").read_text()
    assert len((clicks / "whole.csv").read_text().splitlines()) == ROWS + 1
    capsys.readouterr()
    assert main(["train", "days"]) == 2
    assert "days is a data file, no recipe: name the family too" in capsys.readouterr().err
    assert main(["train", run]) == 2
    assert f"give {run}/recipe.yaml" in capsys.readouterr().err
    assert main(["predict", run, "--input", "runs"]) == 2
    assert "--input runs is a folder" in capsys.readouterr().err


def test_the_next_commands_are_those_of_the_recipes_that_were_written(clicks, capsys, monkeypatch):
    def told(*arguments):
        assert main(["init", *arguments, "--yes"]) == 0
        return [line.strip() for line in capsys.readouterr().out.partition("next:")[2].splitlines() if line.strip()]

    assert told("clicks.csv", "--output", "my clicks")[1:] == [
        "lmctr train 'my clicks/deepfm.yaml'",
        "lmctr train 'my clicks/deepfm.yaml' --model.family dcnv2 --output-dir runs/dcnv2",
        "lmctr predict runs/deepfm --input impressions.csv --output scores.csv",
    ]
    log = {"user": np.arange(ROWS) % 90, "item": np.arange(ROWS) % 70, "ts": 1_700_000_000 + np.arange(ROWS)}
    log["click"] = np.arange(ROWS) // 7 % 2
    pd.DataFrame(log).to_csv("log.csv", index=False)
    monkeypatch.setattr(starting, "FAMILIES", ("ctr_sink", "wukong", "hstu"))
    assert told("log.csv")[1:] == [
        "lmctr train log/ctr_sink.yaml    # items have no titles: there is little to read",
        "lmctr train log/wukong.yaml",
        "lmctr train log/hstu.yaml",
        "lmctr evaluate runs/hstu --compare runs/wukong",
        "lmctr predict runs/hstu --input impressions.csv --output scores.csv",
        "lmctr recommend runs/hstu --top 10 --output best.csv    # for each user",
    ]
    pd.DataFrame(log | {"title": [f"film {item}" for item in log["item"]]}).to_csv("titled.csv", index=False)
    assert told("titled.csv")[1] == "lmctr train titled/ctr_sink.yaml"
    for name, is_title in (("app_title", True), ("offerText", True), ("brand_name", False)):
        pd.DataFrame(log | {name: [f"film {item}" for item in log["item"] % 40]}).to_csv(f"{name}.csv", index=False)
        assert ("no titles" not in told(f"{name}.csv")[1]) == is_title, name
    pd.DataFrame(log | {"item": log["item"] % 3}).rename(columns={"item": "floor"}).to_csv("floors.csv", index=False)
    assert main(["init", "floors.csv", "--yes"]) == 0
    assert "\nno item: rows of a table" in capsys.readouterr().out
    measure = "lmctr analyze next runs/hstu{}    # what such lists hold of what users took next"
    plays = pd.DataFrame(log).drop(columns="click")
    plays.to_csv("plays.csv", index=False)
    assert told("plays.csv", "--negatives", "2")[-1] == measure.format(" --seen")  # people come back to things
    plays.assign(item=np.arange(ROWS) // 90).to_csv("once.csv", index=False)
    assert told("once.csv", "--negatives", "2")[-1] == measure.format("")


def test_a_second_file_does_not_meet_the_runs_of_the_first(clicks, capsys):
    shutil.copy("clicks.csv", "other.csv")
    for file in ("clicks.csv", "other.csv"):
        assert main(["init", file, "--yes"]) == 0
    few = ["--training.epochs", "1", "--training.use_cpu", "true", "--data.baselines", "false"]
    assert main(["train", "clicks/deepfm.yaml", *few]) == 0
    assert main(["train", "other/deepfm.yaml", *few]) == 2
    assert "or --overwrite to train it again (its data: clicks/schema.yaml)" in capsys.readouterr().err

    def told(file):
        assert main(["init", file, "--yes", "--overwrite"]) == 0
        return [line.strip() for line in capsys.readouterr().out.partition("next:")[2].splitlines() if line.strip()][
            1:
        ]

    assert told("clicks.csv")[0] == "lmctr train clicks/deepfm.yaml"
    assert told("other.csv") == [
        "lmctr train other/deepfm.yaml --output-dir runs/other_deepfm",
        "lmctr train other/deepfm.yaml --model.family dcnv2 --output-dir runs/dcnv2",
        "lmctr predict runs/other_deepfm --input impressions.csv --output scores.csv",
    ]


@pytest.mark.parametrize(("rows", "size"), [(300, 32), (700, 32), (1400, 64), (4000, 128), (5200, 256), (9000, 256)])
def test_small_tables_are_read_in_small_batches(rows, size, clicks):
    head, *lines = (clicks / "clicks.csv").read_text().splitlines()
    (clicks / "more.csv").write_text("\n".join([head, *(lines * 8)[:rows]]) + "\n")
    training = recipe_for_file(TrainOptions(recipe="more.csv", model="deepfm"), say=lambda line: None)["training"]
    assert training["per_device_train_batch_size"] == size
    assert training["boosting_share"] == "auto"
    assert training.get("metric_for_best_model") == ("eval_log_loss" if rows < 5000 else None)


@pytest.mark.parametrize("family", [row.model_type for row in families() if row.input == "tabular"])
def test_a_recipe_for_a_file_goes_with_every_number_of_fields(family, clicks):
    """Token mixers cut the embeddings of the fields into equal tokens."""
    model = recipe_for_file(TrainOptions(recipe="clicks.csv", model=family), say=lambda line: None)["model"]
    model.pop("family")
    for fields in range(3, 12):
        assert config_class(family)(vocab_sizes=[5] * fields, **model).num_fields == fields


def test_a_file_of_lists_alone_is_trained_on(tmp_path):
    """Boosted trees read them too, with a number beside them or without."""
    rng = np.random.default_rng(0)
    lists = [list(rng.choice(["a", "b", "c"], rng.integers(1, 3))) for _ in range(200)]
    columns = {"tags": lists, "click": rng.integers(0, 2, 200), "price": rng.random(200)}
    for names in (["tags", "click"], [*columns]):
        pq.write_table(pa.table(columns).select(names), tmp_path / "rows.parquet")
        options = {"overrides": {"training.max_steps": 2}, "overwrite": True, "quiet": True}
        run = lmctr.runs.train(tmp_path / "rows.parquet", model="dnn", output_dir=tmp_path / "run", **options)
        assert "boosting_share" in run.metrics
        assert np.isfinite(run.metrics["test"]["log_loss"])


def test_a_token_mixer_is_trained_on_a_file(clicks, capsys):
    few = ["--training.max_steps", "2", "--training.use_cpu", "true", "--data.baselines", "false"]
    assert main(["train", "clicks.csv", "--model", "rank_elastor", "--output-dir", "runs/mixer", *few]) == 0
    assert "RankElastorForCTR" in capsys.readouterr().out


def test_only_tabular_families_read_a_table(clicks):
    recipe = recipe_for_file(TrainOptions(recipe="clicks.csv", model="dcnv2"), say=lambda line: None)
    assert recipe["data"]["split"] == "random"
    assert [field["name"] for field in recipe["data"]["options"]["fields"]] == [
        "site",
        "site_number",
        "site_bin",
        "slot",
        "slot_number",
        "visits",
        "visits_number",
        "visits_bin",
    ]
    with pytest.raises(ValueError, match=r"clicks.csv: no column looks like the time.*--model deepfm"):
        recipe_for_file(TrainOptions(recipe="clicks.csv", model="din"))


def test_a_log_is_read_as_a_table_where_that_is_stated(clicks, capsys):
    rng = np.random.default_rng(2)
    columns = {
        "user": rng.integers(0, 90, ROWS),
        "item": rng.integers(0, 70, ROWS),
        "ts": 1_700_000_000 + np.arange(ROWS),
    }
    pd.DataFrame(columns | {"click": rng.integers(0, 2, ROWS)}).to_csv("log.csv", index=False)

    def recipe(model="deepfm", **stated):
        return recipe_for_file(TrainOptions(recipe="log.csv", model=model, **stated), say=lambda line: None)["data"]

    assert (
        set(recipe()["options"]["columns"])
        == set(recipe(kind="log")["options"]["columns"])
        == {"user", "item", "time", "label"}
    )
    table = recipe(kind="table")["options"]
    assert (table["label"], table["time"], table["group"]) == ("click", "ts", "user")
    assert {field["name"] for field in table["fields"]} >= {"user", "item"}
    assert recipe(kind="table", user="item")["options"]["group"] == "item"
    with pytest.raises(ValueError, match=r"--kind table: din reads histories.*--model deepfm"):
        recipe("din", kind="table")
    with pytest.raises(
        ValueError, match=r"--item item: of a table it says which ids .*; leave out --item or --kind table"
    ):
        recipe(kind="table", item="item")
    with pytest.raises(ValueError, match=r"clicks.csv: no column looks like the time"):
        recipe_for_file(TrainOptions(recipe="clicks.csv", model="deepfm", kind="log"))
    assert main(["init", "log.csv", "--yes", "--kind", "table"]) == 0
    assert "\nrows of a table" in capsys.readouterr().out
    assert sorted(path.name for path in (clicks / "log").iterdir()) == ["deepfm.yaml", "schema.yaml"]
    for kind, says in (("log", "samples with an empty history"), ("table", "fields (in the training part)")):
        assert main(["data", "inspect", "log.csv", "--kind", kind]) == 0
        assert says in capsys.readouterr().out


def test_ratings_without_times_beside_files_of_items_and_users(tmp_path, monkeypatch, capsys):
    """Their columns are fields of a table, which later rows of ids alone are completed with; the click follows from nothing else."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 400, 3000), rng.integers(0, 900, 3000)
    films = pd.DataFrame({"id": [f"{n:04}" for n in range(900)], "title": [f"Film {n}" for n in range(900)]})
    films = films.assign(kind=rng.choice(["war", "joy", "art"], 900), country=rng.choice(["no", "se"], 900))
    people = pd.DataFrame({"user": range(400), "taste": rng.choice(["war", "joy", "art"], 400), "country": "no"})
    people.loc[::2, "country"] = "se"
    alike = films["kind"].to_numpy()[item] == people["taste"].to_numpy()[user]
    liked = alike ^ (rng.random(3000) < 0.1)  # without exceptions trees learn for a thousand rounds
    ratings = pd.DataFrame(
        {"user": user, "film": [f"{n:04}" for n in item], "rating": np.where(liked, 5, 1 + user % 3)}
    )
    for name, frame in {"ratings": ratings, "films": films, "people": people}.items():
        frame.to_csv(f"{name}.csv", index=False)
    assert (
        main(["init", "ratings.csv", "--items", "films.csv", "--users", "people.csv", "--yes", "--output", "a/b"]) == 0
    )
    told = capsys.readouterr().out
    assert "no column looks like the time" in told
    assert re.search(r"id +id +100.0% of the ids of 'film' stand there", told)
    assert re.search(r"left out +title +another value for \(almost\) every item", told)
    schema = yaml.safe_load((tmp_path / "a/b/schema.yaml").read_text())
    films_spec = {"path": "../../films.csv", "by": "film", "id": "id", "columns": ["kind", "country"]}
    people_spec = {"path": "../../people.csv", "by": "user", "columns": {"taste": "taste", "user_country": "country"}}
    assert schema["joined"] == [films_spec, people_spec]
    few = ["--training.epochs", "4", "--training.use_cpu", "true", "--quiet"]
    assert main(["train", "a/b/deepfm.yaml", "--output-dir", "runs/one", *few]) == 0
    files = ["--items", "films.csv", "--users", "people.csv"]
    assert main(["train", "ratings.csv", *files, "--model", "deepfm", "--output-dir", "runs/two", *few]) == 0
    one, two = (json.loads((tmp_path / f"runs/{name}/metrics.json").read_text()) for name in ("one", "two"))
    assert one["split metrics"] == two["split metrics"]
    assert one["split metrics"]["test"]["auc"] > 0.8  # ids alone are met too seldom
    ratings[["user", "film"]].head(50).to_csv("new.csv", index=False)
    scores = {}
    for name in ("one", "two"):
        assert main(["predict", f"runs/{name}", "--input", "new.csv", "--output", "scores.csv"]) == 0
        scores[name] = pd.read_csv("scores.csv")["logit"].to_numpy()
        run = lmctr.runs.load(f"runs/{name}")
        for rows in (pd.read_csv("new.csv", dtype={"film": str}), [{"user": int(user[0]), "film": f"{item[0]:04}"}]):
            np.testing.assert_allclose(run.predict(rows), scores[name][: len(rows)], rtol=1e-5, atol=1e-5)
    assert ((scores["one"] > 0) == alike[:50]).mean() > 0.8
    tasteful = pd.read_csv("new.csv", dtype={"film": str}).assign(kind=people["taste"].to_numpy()[user[:50]])
    assert (run.predict(tasteful) > 0).mean() > 0.9  # the other columns come from the files
    own = pd.read_csv("new.csv").assign(kind="war", country="no", taste="war", user_country="no")
    assert (run.predict(own) > 0).mean() > 0.9  # what rows say themselves holds
    shutil.move("films.csv", "films_of_old.csv")
    with pytest.raises(FileNotFoundError, match=r"films.csv"):
        run.predict(pd.read_csv("new.csv"))
    np.testing.assert_allclose(run.predict(own)[:1], run.predict(own.head(1)), rtol=1e-5)  # and needs no file


def test_rows_with_a_time_are_parted_by_it(clicks):
    lines = (clicks / "clicks.csv").read_text().splitlines()
    timed = [f"{line},{'ts' if not place else 1_700_000_000 + place}" for place, line in enumerate(lines)]
    (clicks / "timed.csv").write_text("\n".join(timed) + "\n")
    assert main(["init", "timed.csv", "--yes", "--output", "out"]) == 0
    schema = yaml.safe_load((clicks / "out/schema.yaml").read_text())
    assert (schema["files"], schema["label"], schema["time"]) == ("../timed.csv", "click", {"column": "ts"})
    assert yaml.safe_load((clicks / "out/deepfm.yaml").read_text())["data"]["split"] == "time"


def test_a_file_as_a_spreadsheet_writes_it(clicks, capsys):
    """Semicolons, decimal commas and a label of words: looked at, trained on and scored as it is, also by a log's run."""
    rng = np.random.default_rng(1)
    lines = (clicks / "clicks.csv").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    text = [
        f"{'ja' if click == '1' else 'nein'};{site};{place},5;{visits}"
        for place, (click, site, _, visits) in enumerate(rows)
    ]
    (clicks / "excel.csv").write_text("\n".join(["gekauft;site;preis;visits", *text]) + "\n")
    assert main(["data", "inspect", "excel.csv"]) == 0
    told = capsys.readouterr().out
    assert "1,200 rows, delimiter ';', decimal ','" in told
    assert re.search(r"label +gekauft +two values, 'ja' in", told)
    assert "  label    gekauft = ja\n" in told
    few = ["--training.epochs", "1", "--training.use_cpu", "true", "--quiet"]
    assert main(["train", "excel.csv", "--model", "deepfm", "--output-dir", "runs/table", *few]) == 0
    (clicks / "plain.csv").write_text("site,preis,visits\n3,1.5,7\n")
    upload = clicks / "upload"  # what of the run is shared: no recipe, which would name the data
    shutil.copytree(
        clicks / "runs/table", upload, ignore=shutil.ignore_patterns("recipe.yaml", "checkpoints", "data*")
    )
    for folder, scores in (("runs/table", "one.csv"), (upload, "two.csv")):
        assert main(["predict", str(folder), "--input", "excel.csv", "--output", scores]) == 0
    assert (clicks / "one.csv").read_text() == (clicks / "two.csv").read_text()
    run = lmctr.runs.load(upload)
    frame = pd.read_csv(clicks / "excel.csv", sep=";", decimal=",")
    np.testing.assert_allclose(run.predict(frame), pd.read_csv(clicks / "one.csv")["logit"], atol=1e-6)
    np.testing.assert_allclose(run.predict(frame.head(5).to_dict("records")), run.predict(frame)[:5], atol=1e-6)
    assert main(["predict", str(upload), "--input", "plain.csv", "--output", "three.csv"]) == 2
    assert "column 'preis': row 1 is no number" in capsys.readouterr().err

    log = [f"{row};u{rng.integers(40)};{1_700_000_000 + 60 * place}" for place, row in enumerate(text)]
    (clicks / "log.csv").write_text("\n".join(["gekauft;item;preis;visits;user;time", *log]) + "\n")
    assert main(["train", "log.csv", "--model", "deepfm", "--output-dir", "runs/log", *few]) == 0
    assert main(["predict", "runs/log", "--input", "log.csv", "--output", "log_scores.csv"]) == 0
    frame = pd.read_csv(clicks / "log.csv", sep=";", decimal=",")
    scores = pd.read_csv(clicks / "log_scores.csv")["logit"]
    run = lmctr.runs.load("runs/log")
    run.model.train()  # whatever was done with it, rows are scored as ever
    np.testing.assert_allclose(run.predict(frame), scores, atol=1e-6)
    assert run.model.training


def test_a_part_without_rows_is_told(clicks, capsys):
    words = ["train", "clicks.csv", "--model", "deepfm", "--data.fractions", "[0.9, 0.1, 0.0]"]
    assert main(words) == 2
    assert "the test part (0 samples) has no label; AUC needs positives and negatives" in capsys.readouterr().err


@pytest.mark.parametrize(("last", "item"), [("x" * 200, "{title}"), ("a long story " * 300, "{title:.200}")])
def test_the_recipe_of_texts_reads_no_more_of_a_title_than_a_prompt_has_room_for(clicks, capsys, last, item):
    log = {"user": np.arange(ROWS) % 90, "item": np.arange(ROWS) % 70, "ts": 1_700_000_000 + np.arange(ROWS)}
    pd.DataFrame(log | {"click": np.arange(ROWS) // 7 % 2}).to_csv("log.csv", index=False)
    titles = [*(f"Thing number {item}" for item in range(69)), last]
    pd.DataFrame({"item": range(70), "title": titles}).to_csv("things.csv", index=False)
    assert main(["init", "log.csv", "--items", "things.csv", "--yes"]) == 0
    assert yaml.safe_load(Path("log/ctr_sink.yaml").read_text())["data"]["prompt"]["item"] == item
    told = "up to 3,900 characters; the recipe of texts reads 200 of each at most"
    assert (told in capsys.readouterr().out) == (item == "{title:.200}")


@pytest.mark.parametrize("words", [1, 60])
def test_texts_that_are_categories_too_are_in_the_prompt_unless_they_are_long(clicks, capsys, words):
    log = {"user": np.arange(ROWS) % 90, "item": np.arange(ROWS) % 120, "ts": 1_700_000_000 + np.arange(ROWS)}
    pd.DataFrame(log | {"click": np.arange(ROWS) // 7 % 2}).to_csv("log.csv", index=False)
    items = {"item": range(120), "title": [f"Thing {row}" for row in range(120)]}
    items["about"] = [f"about {row} " * words if row < 40 else "" for row in range(120)]
    pd.DataFrame(items).to_csv("things.csv", index=False)
    assert main(["init", "log.csv", "--items", "things.csv", "--yes"]) == 0
    item = yaml.safe_load(Path("log/ctr_sink.yaml").read_text())["data"]["prompt"]["item"]
    assert item == ("{title}[, {about}]" if words == 1 else "{title}")
    assert ("the recipe of texts does not read it" in capsys.readouterr().out) == (words == 60)


def test_the_recipe_of_texts_has_room_for_the_characters_of_chinese_titles(clicks):
    log = {"user": np.arange(ROWS) % 90, "item": np.arange(ROWS) % 70, "ts": 1_700_000_000 + np.arange(ROWS)}
    pd.DataFrame(log | {"click": np.arange(ROWS) // 7 % 2}).to_csv("log.csv", index=False)
    titles = ["".join(chr(0x4E00 + 40 * item + place) for place in range(40)) for item in range(70)]
    pd.DataFrame({"item": range(70), "title": titles}).to_csv("things.csv", index=False)
    assert main(["init", "log.csv", "--items", "things.csv", "--yes"]) == 0
    wanted = yaml.safe_load(Path("log/ctr_sink.yaml").read_text())["model"]["tokenizer"]
    assert len(train_tokenizer(titles, wanted["type"], wanted["vocab_size"])) > 2 * 2800
    log |= {"click": np.arange(ROWS) // 7 % 2, "title": [titles[item] if item else None for item in log["item"]]}
    pd.DataFrame(log).to_csv("whole.csv", index=False)  # the titles stand in the one file
    assert main(["init", "whole.csv", "--yes"]) == 0
    assert yaml.safe_load(Path("whole/ctr_sink.yaml").read_text())["model"]["tokenizer"]["vocab_size"] > 2 * 2800


def test_titles_that_are_long_behind_the_sample_are_bounded(clicks, monkeypatch):
    monkeypatch.setattr("lmctr.data.guess.sample._BYTES", 1000)
    log = {"user": np.arange(ROWS) % 90, "item": np.arange(ROWS) % 70, "ts": 1_700_000_000 + np.arange(ROWS)}
    pd.DataFrame(log | {"click": np.arange(ROWS) // 7 % 2}).to_csv("log.csv", index=False)
    titles = [*(f"Thing number {item}" for item in range(69)), "a long story " * 300]
    pd.DataFrame({"item": range(70), "title": titles}).to_csv("things.csv", index=False)
    assert main(["init", "log.csv", "--items", "things.csv", "--yes"]) == 0
    assert yaml.safe_load(Path("log/ctr_sink.yaml").read_text())["data"]["prompt"]["item"] == "{title:.200}"


def test_what_is_refused_leaves_nothing_that_the_mended_file_would_be_refused_for(clicks, capsys):
    log = {"user": np.arange(ROWS) % 90, "item": np.arange(ROWS) % 70, "ts": 1_700_000_000 + np.arange(ROWS)}
    pd.DataFrame(log | {"click": np.arange(ROWS) // 7 % 2}).to_csv("log.csv", index=False)
    words = ["init", "log.csv", "--items", "things.csv", "--yes"]
    pd.DataFrame({"item": [*range(70), 3], "kind": ["a"] * 70 + ["b"]}).to_csv("things.csv", index=False)
    assert main(words) == 2
    assert "repeat an earlier row" in capsys.readouterr().err
    assert not Path("log").exists()
    pd.DataFrame({"item": range(70), "kind": ["a", "b"] * 35}).to_csv("things.csv", index=False)
    assert main(words) == 0
    recipes = [yaml.safe_load(Path(f"log/{family}.yaml").read_text()) for family in ("ctr_sink", "deepfm", "din")]
    assert [recipe["training"]["boosting_share"] for recipe in recipes] == ["auto"] * 3
