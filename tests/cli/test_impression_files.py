"""From a file of impressions of one's own to a run: what its columns are, `lmctr init`, `lmctr train FILE --model two_tower`."""

import numpy as np
import pandas as pd
import pytest
import yaml
from cli_helpers import error_of

import lmctr
from lmctr.cli.main import main
from lmctr.data import load_impressions
from lmctr.data.guess import guess_impressions
from lmctr.data.impressions.load import impressions_from_schema

FEW = {"training.use_cpu": True, "training.epochs": 1, "data.baselines": False}
ADS = 6


def frame(impressions=240, **more):
    """(1,440 rows) six ads for each request, in order of an eCPM that follows from the taste of the user and the bid."""
    rng = np.random.default_rng(0)
    user = rng.integers(30, size=impressions)
    ad = np.stack([rng.choice(40, ADS, replace=False) for _ in range(impressions)])
    bid = rng.lognormal(size=ad.shape).round(2)
    ecpm = np.exp(np.sin(user[:, None] + ad) + 0.1 * rng.normal(size=ad.shape)) * bid
    place = np.argsort(np.argsort(-ecpm, axis=1), axis=1) + 1
    spread = {"request_id": np.arange(impressions), "user_id": user, "ts": 1_700_000_000 + 60 * np.arange(impressions)}
    columns = {name: values.repeat(ADS) for name, values in spread.items()}
    columns |= {"device": np.where(user % 2, "web", "app").repeat(ADS)}
    columns |= {"ad_id": ad.ravel(), "bid": bid.ravel(), "position": place.ravel(), "ecpm": ecpm.ravel().round(4)}
    return pd.DataFrame(columns).assign(**{name: make(ad.ravel(), place.ravel()) for name, make in more.items()})


def written(folder, **more):
    frame(**more).to_csv(folder / "ranked.csv", index=False)
    return folder / "ranked.csv"


def names_of(fields):
    return {field.get("column", field["name"]) for field in fields}


def test_columns_by_their_names(tmp_path):
    path = written(
        tmp_path,
        tags=lambda ad, place: np.array(["a|b", "c", "a|c|d"])[ad % 3],
        clicked=lambda ad, place: (place == 1).astype(int),
        slot=lambda ad, place: place,
    )
    guess = guess_impressions(path)
    schema = guess.schema
    assert schema["columns"] == {
        "impression": "request_id", "ecpm": "ecpm", "position": "position", "user": "user_id", "time": "ts"
    }  # fmt: skip
    assert names_of(schema["user_fields"]) == {"user_id", "device"}
    assert names_of(schema["ad_fields"]) == {"ad_id", "bid", "tags"}
    assert {field["type"] for field in schema["ad_fields"]} == {"categorical", "numeric"}
    said = {entry.column: entry for entry in guess.guesses}
    assert (said["clicked"].role, said["slot"].role) == ("left out", "left out")
    assert said["position"].sure
    assert not said["tags"].sure


def test_a_time_of_each_ad_is_no_time_of_the_impression(tmp_path, capsys):
    table = frame()
    table.assign(ts=table["ts"] + table["position"]).to_csv(tmp_path / "ranked.csv", index=False)
    guess = guess_impressions(tmp_path / "ranked.csv")
    assert "time" not in guess.schema["columns"]
    assert not names_of(guess.schema["ad_fields"]) & {"ts"}
    assert any(entry.column == "ts" and entry.role == "left out" and not entry.sure for entry in guess.guesses)
    words = ["init", tmp_path / "ranked.csv", "--kind", "impressions", "--time", "ts"]
    assert "the column 'ts' differs within an impression" in error_of(capsys, *words)


@pytest.mark.parametrize(
    ("values", "role", "sure"),
    [
        (lambda ad, place: place, "position", True),
        (lambda ad, place: ADS - place, "rank", True),
        (lambda ad, place: ad % 2, "rank", False),  # of next to no agreement with the eCPM
    ],
)
def test_which_end_of_a_rank_is_the_best_follows_from_the_ecpm(values, role, sure, tmp_path):
    frame(rank=values).drop(columns="position").to_csv(tmp_path / "ranked.csv", index=False)
    guess = guess_impressions(tmp_path / "ranked.csv")
    assert guess.schema["columns"][role] == "rank"
    assert next(entry.sure for entry in guess.guesses if entry.column == "rank") == sure


def test_what_cannot_be_told_is_stated(tmp_path, capsys):
    path = tmp_path / "ranked.csv"
    renamed = {"request_id": "page", "ecpm": "money", "position": "nth", "user_id": "who"}
    frame().rename(columns=renamed).to_csv(path, index=False)
    words = ["init", path, "--kind", "impressions", "--output", tmp_path / "own"]
    stated = []
    for role, option in (("impression", "page"), ("ecpm", "money"), ("rank or position", "nth")):
        error = error_of(capsys, *words, *stated)
        assert f"{path}: no column looks like the {role} (" in error
        assert f"state it: --{role.split(' or ')[0]}" in error
        stated += [f"--{role.split(' or ')[-1]}", option]
    assert main([*map(str, words), *stated, "--user", "who", "--yes"]) == 0
    columns = yaml.safe_load((tmp_path / "own" / "schema.yaml").read_text())["columns"]
    assert columns == {"impression": "page", "ecpm": "money", "position": "nth", "user": "who", "time": "ts"}


def test_grades_without_revenue(tmp_path, capsys):
    """As sets of queries and documents have them: the grade orders, and is what R/R* counts."""
    table = frame(grade=lambda ad, place: (place < 3).astype(int) + (place < 2)).drop(columns=["position", "ecpm"])
    table.to_csv(tmp_path / "graded.csv", index=False)
    words = ["train", str(tmp_path / "graded.csv"), "--model", "two_tower", "--output-dir", str(tmp_path / "run")]
    error = error_of(capsys, *words, "--rank", "grade")
    assert "no column looks like the ecpm" in error
    assert "of grades without revenue the column of --rank once more" in error
    assert (
        main([*words, "--rank", "grade", "--ecpm", "grade", "--training.epochs", "1", "--data.baselines", "false"])
        == 0
    )
    run = lmctr.runs.load(tmp_path / "run")
    assert run.recipe.data["options"]["columns"]["ecpm"] == run.recipe.data["options"]["columns"]["rank"] == "grade"
    assert "grade" not in names_of(run.recipe.data["options"]["ad_fields"])
    assert 0.3 < run.metrics["test"]["revenue_ratio"] < 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kind", "impressions", "--label", "ecpm"], "--label ecpm: impressions have none"),
        (
            ["--kind", "impressions", "--rank", "bid", "--position", "position"],
            "--rank and --position: give one of them",
        ),
        (["--kind", "impressions", "--ecpm", "cpm"], "no column 'cpm'"),
        (["--kind", "impressions", "--user", "ad_id"], "the column 'ad_id' differs within an impression"),
        (["--kind", "impressions", "--items", "items.csv"], "--items items.csv: it is of logs"),
        (["--kind", "impressions", "--negatives", "2"], "--negatives 2: it is of logs"),
        (["--ecpm", "ecpm"], "--ecpm ecpm: it is of --kind impressions"),
    ],
)
def test_wrong_options(words, message, tmp_path, capsys):
    path = written(tmp_path)
    assert message in error_of(capsys, "init", path, *words)
    assert [file.name for file in tmp_path.iterdir()] == ["ranked.csv"]


def test_families_and_kinds(tmp_path, capsys):
    path = written(tmp_path)
    for family, kind, message in (
        (
            "deepfm",
            "impressions",
            "--kind impressions: deepfm reads tables, or logs; leave --kind out, or give another family: retrieval_mlp and",
        ),
        (
            "two_tower",
            "table",
            "--kind table: two_tower reads impressions; leave --kind out, or give another family: a tabular one",
        ),
        ("din", "table", "--kind table: din reads histories, which a log has"),
    ):
        assert message in error_of(capsys, "train", path, "--model", family, "--kind", kind)


def test_a_file_is_inspected_and_loaded_by_its_columns_only(tmp_path, capsys):
    path = written(tmp_path)
    assert main(["data", "inspect", str(path), "--kind", "impressions"]) == 0
    said = capsys.readouterr().out
    assert "1 is the best: there the eCPM is higher" in said
    assert "1,440" in said
    assert "fields of the ad" in said
    with pytest.raises(ValueError, match="`columns` is missing, which says which column is the impression"):
        load_impressions(path)
    with pytest.raises(ValueError, match="the key 'ecpm' is missing"):
        load_impressions(path, columns={"impression": "request_id", "position": "position"})


def test_init_writes_what_trains(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path)
    assert main(["init", "ranked.csv", "--kind", "impressions"]) == 0
    said = capsys.readouterr().out
    assert "lmctr train ranked/two_tower.yaml" in said
    assert {file.name for file in (tmp_path / "ranked").iterdir()} == {
        "schema.yaml",
        "retrieval_mlp.yaml",
        "two_tower.yaml",
    }
    words = ["--training.epochs", "1", "--data.baselines", "false", "--quiet"]
    assert main(["train", "ranked/two_tower.yaml", *words]) == 0
    assert main(["train", "ranked.csv", "--model", "two_tower", "--output-dir", "runs/file", *words]) == 0
    first, second = (lmctr.runs.load(f"runs/{name}") for name in ("two_tower", "file"))
    assert first.recipe.data["metrics"]["m"] == 2
    assert first.recipe.training["learning_rate"] == second.recipe.training["learning_rate"]
    table = pd.read_csv(path)
    scores = first.predict(table)
    np.testing.assert_allclose(second.predict(table), scores, atol=1e-6)
    assert np.ptp(scores) > 0
    of_file = load_impressions("ranked.csv", **second.recipe.data["options"])
    of_schema = impressions_from_schema("ranked/schema.yaml")
    for one, other in zip(of_file.blocks(), of_schema.blocks(), strict=True):
        assert one.users.equals(other.users)
        assert one.ads.equals(other.ads)
        np.testing.assert_array_equal(one.ranks, other.ranks)
        np.testing.assert_array_equal(one.split, other.split)


def test_a_frame_learns_what_its_order_follows_from(tmp_path):
    """Better than the order of the ads' mean eCPM, which is what most shops begin with."""
    run = lmctr.runs.train(
        frame(1500),
        model="retrieval_mlp",
        output_dir=tmp_path / "run",
        overrides={"training.use_cpu": True},
        quiet=True,
    )
    baselines = {name: own["test"]["revenue_ratio"] for name, own in run.metrics["baselines"].items()}
    assert (
        run.metrics["test"]["revenue_ratio"]
        > max(baselines[name] for name in ("random", "mean_ecpm", "popularity")) + 0.1
    )
    with pytest.raises(ValueError, match=r"no column looks like the ecpm .*state it: ecpm=COLUMN"):
        lmctr.runs.train(frame().drop(columns="ecpm"), model="two_tower", output_dir=tmp_path / "other", overrides=FEW)
