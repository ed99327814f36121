"""Impressions of one's own: a file with a row for each ad, through a schema, against plain loops."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

import lmctr
import lmctr.runs.options
import lmctr.runs.starting
from lmctr.cli.main import main
from lmctr.data import load, load_impressions, load_log, load_tabular
from lmctr.data.impressions.store import ImpressionStore
from lmctr.data.impressions.validation import validate_impressions
from lmctr.data.options import UserSampleOptions
from lmctr.data.sampling import sample_data
from lmctr.evaluation.comparison import read_predictions
from lmctr.evaluation.ranking_evaluator import RankingSettings, ranking_per_impression

COUNT = 90


def rows(seed=0):
    """Rows of impressions, mixed; ads of a user and an hour, with a position and what they earn."""
    rng, made = np.random.default_rng(seed), []
    quality = np.linspace(-1, 1, 20)
    for number in range(COUNT):
        ads = rng.choice(20, rng.integers(2, 8), replace=False)
        value = np.exp(quality[ads] + 0.2 * rng.normal(size=len(ads))).round(3)
        positions = np.empty(len(ads), int)
        positions[np.argsort(-value)] = np.arange(1, len(ads) + 1)
        about = {
            "request": f"r{number}",
            "user": f"u{number % 11}",
            "ts": 1_700_000_000_000 + 60_000 * number,
            "hour": number % 3,
        }
        for ad, place, earned in zip(ads, positions, value):
            made.append(about | {"ad": f"a{ad}", "bid": round(quality[ad], 2), "position": place, "ecpm": earned})
    return pd.DataFrame(made).sample(frac=1, random_state=seed).reset_index(drop=True)


def schema(folder, table, name="ads.csv", **changes):
    if table is not None:
        table.to_csv(folder / name, index=False)
    columns = {"impression": "request", "position": "position", "ecpm": "ecpm", "user": "user"}
    columns |= {"time": {"column": "ts", "unit": "ms"}} | changes.pop("columns", {})
    content = {"impressions": name, "columns": {key: value for key, value in columns.items() if value is not None}}
    (folder / "schema.yaml").write_text(yaml.safe_dump(content | changes))
    return folder / "schema.yaml"


def test_the_index_that_pandas_wrote_is_left_out_and_said_to_be(tmp_path):
    table = rows()
    table.to_csv(tmp_path / "ads.csv")
    source = load_impressions(schema(tmp_path, None))
    assert [field["name"] for field in (*source.user_fields, *source.ad_fields)] == ["user", "hour", "ad", "bid"]
    assert source.info.notes == "Column 1, which has no name and numbers the rows, is left out."
    table.rename(columns={"bid": ""}).to_csv(tmp_path / "ads.csv", index=False)
    with pytest.raises(ValueError, match=r"ads.csv: column 6 has no name; write one into the line of names"):
        load_impressions(schema(tmp_path, None))


def test_the_blocks_are_what_loops_gather(tmp_path):
    table = rows()
    source = load_impressions(schema(tmp_path, table))
    (block,) = source.blocks()
    assert [field["name"] for field in source.user_fields] == ["user", "hour"]
    assert [(field["name"], field["type"]) for field in source.ad_fields] == [
        ("ad", "categorical"),
        ("bid", "numeric"),
    ]
    groups = dict(list(table.groupby("request", sort=False)))
    assert block.counts.tolist() == [len(group) for group in groups.values()]
    users, first = {}, 0
    for number, group in enumerate(groups.values()):
        assert block.users["user"][number].as_py() == group["user"].iloc[0]
        assert block.groups[number] == users.setdefault(group["user"].iloc[0], block.groups[number])
        assert block.times[number] == group["ts"].iloc[0] // 1000
        own = slice(first, first + len(group))
        assert block.ads["ad"].to_pylist()[own] == group["ad"].tolist()
        assert block.ranks[own].tolist() == [group["position"].max() + 1 - place for place in group["position"]]
        assert block.ecpm[own].tolist() == group["ecpm"].tolist()
        first += len(group)
    assert len(set(users.values())) == 11
    newest = np.argsort(block.times)
    parts = [*[0] * 72, *[1] * 9, *[2] * 9]
    assert block.split[newest].tolist() == parts
    drawn = [
        next(load_impressions(tmp_path / "schema.yaml", split="random", seed=seed).blocks()).split
        for seed in (0, 0, 1)
    ]
    assert sorted(drawn[0].tolist()) == parts
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()


def test_ranks_weights_and_fields_as_the_schema_says(tmp_path):
    table = rows().assign(v=lambda some: 9.5 - some["position"], w=lambda some: some["hour"] + 0.5)
    fields = {"user_fields": [{"name": "who", "column": "user", "type": "categorical", "min_count": 2}]}
    path = schema(
        tmp_path, table, columns={"position": None, "rank": "v", "weight": "w", "time": None, "user": None}, **fields
    )
    source = load(path)
    (block,) = source.blocks()
    assert block.users.column_names == ["user"]
    assert set(block.ads.column_names) == {"ts", "hour", "ad", "bid", "position"}
    assert block.groups is None
    assert block.times is None
    first = table.drop_duplicates("request")
    assert block.weight.tolist() == first["w"].tolist()
    np.testing.assert_array_equal(np.sort(block.ranks), np.sort(table["v"]))
    table.to_parquet(tmp_path / "ads.parquet")
    moved = load_impressions(path, path=tmp_path / "ads.parquet")
    (again,) = moved.blocks()
    np.testing.assert_array_equal(again.ranks, block.ranks)
    assert moved.fingerprint != source.fingerprint
    held = load(path)
    table.assign(v=0.5).to_csv(tmp_path / "ads.csv", index=False)
    assert held.fingerprint == source.fingerprint != load(path).fingerprint  # it is that of what was read


def test_from_a_file_to_a_scored_request(tmp_path, capsys):
    path = schema(tmp_path, rows())
    assert main(["data", "inspect", str(path)]) == 0
    assert "impressions" in capsys.readouterr().out
    recipe = {
        "data": {"name": str(path), "metrics": {"m": 2}},
        "model": {"family": "retrieval_mlp", "embedding_dim": 4},
        "training": {"epochs": 2, "use_cpu": True},
    }
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert run.metrics["test"]["num_samples"] == 9
    assert 0 < run.metrics["test"]["revenue_ratio"] < 1
    request = {"user": {"user": "u3", "hour": 1}, "ads": [{"ad": "a1", "bid": 0.2}, {"ad": "a19", "bid": 1.0}]}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request) + "\n")
    words = ["predict", str(run.path), "--input", str(tmp_path / "requests.jsonl"), "--quiet"]
    capsys.readouterr()
    assert main(words) == 0
    assert len(json.loads(capsys.readouterr().out)["scores"]) == 2


def test_a_limit_that_lets_all_ads_go_on_is_told(tmp_path, capsys):
    recipe = {
        "data": {"name": str(schema(tmp_path, rows())), "baselines": False},
        "model": {"family": "retrieval_mlp"},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"training": {"epochs": 1, "use_cpu": True}}))
    assert main(["train", str(tmp_path / "recipe.yaml"), "--output-dir", str(tmp_path / "run")]) == 0
    told = capsys.readouterr()
    assert (
        "has more than 7 ads, of which data.metrics.m lets 10 go on: R/R* is 1 whatever the scores"
        in told.out + told.err
    )


MIXED = rows()["request"]
SOON = rf"column 'ts': .*\(row {MIXED[MIXED[40] == MIXED].index[0] + 1}: 'soon'"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.assign(user=[*t["user"][:-1], "u99"]), r"the column 'user', .*, differs within an impression: .* in row \d+ and .* in row \d+"),
        (lambda t: t.assign(ecpm=[*t["ecpm"][:-1], -1.0]), rf"column 'ecpm': -1 in row {len(rows())}; accepted: finite numbers"),
        (lambda t: t.assign(position=[0, *t["position"][1:]]), "column 'position': 0 in row 1; positions count from 1"),
        (lambda t: t.assign(request=[None, *t["request"][1:]]), r"column 'request': 1 of \d+ values are empty \(row 1: ''\)"),
        (lambda t: t.assign(position=t["position"].astype(object).where(t.index != 40, "top")), r"column 'position': 1 of \d+ .*\(row 41: 'top'\)"),
        (lambda t: t.assign(ts=t["ts"].astype(object).where(t["request"] != t["request"][40], "soon")), SOON),
        (lambda t: t.drop_duplicates("request"), "no column differs within an impression, .*; 90 impressions have 90 ads"),
        (lambda t: t.drop(columns="ecpm"), "the ecpm: no column 'ecpm'; its columns: "),
        (lambda t: t.assign(hour=[*t["hour"][:-1], 7]), r"'hour' differs within 1 of 90 impressions only \(.* in row \d+ .*: mend these rows"),
    ],
)  # fmt: skip
def test_rows_that_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        list(load_impressions(schema(tmp_path, change(rows()))).blocks())


def test_what_came_after_the_impression_and_ads_that_stand_twice(tmp_path):
    table = rows()
    validate_impressions(ImpressionStore.build(load_impressions(schema(tmp_path, table))))
    clicked = table.assign(adClicked=np.random.default_rng(0).integers(0, 2, len(table)))
    store = ImpressionStore.build(load_impressions(schema(tmp_path, clicked)))
    with pytest.raises(ValueError, match=r"'ad.adClicked' is called like what a user did once.*field:ad.adClicked"):
        validate_impressions(store)
    assert len(validate_impressions(store, {"field:ad.adClicked": "of an earlier day"})) == 1
    twice = ImpressionStore.build(load_impressions(schema(tmp_path, pd.concat([table, table]))))
    count = f"{len(table):,} of {2 * len(table):,}"
    with pytest.raises(ValueError, match=f"{count} ads stand in their impression a second time, with equal fields"):
        validate_impressions(twice)


@pytest.mark.parametrize("ascending", [True, False])
def test_a_copy_of_the_position_in_whole_numbers_is_found(tmp_path, ascending):
    """Whole numbers are categorical fields, whose values tell the order as numbers do."""
    table = rows()
    slot = table["position"] if ascending else 50 - table["position"]
    store = ImpressionStore.build(load_impressions(schema(tmp_path, table.assign(slot=slot))))
    with pytest.raises(
        ValueError, match=r"'ad.slot' alone puts 100.0% of \S+ pairs of ads in order: it holds the rank"
    ):
        validate_impressions(store)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"position": None}}, "give `rank`, of which higher is better, or `position`"),
        ({"columns": {"rank": "position"}}, "give `rank`, of which higher is better, or `position`"),
        ({"columns": {"time": None}, "split": {"rule": "time"}}, "accepted: time, random; time needs a column of times"),
        ({"user_fields": [{"name": "age", "type": "numeric"}]}, "has no column 'age'"),
        ({"user_fields": [{"name": "bid", "type": "numeric"}]}, "the column 'bid', of the user's fields, differs within an impression"),
        ({"splits": {}}, "splits"),
    ],
)  # fmt: skip
def test_schemas_that_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_impressions(schema(tmp_path, rows(), **changes))


def test_schemas_of_another_kind_are_told(tmp_path):
    path = schema(tmp_path, rows())
    for wrong in (load_log, load_tabular):
        with pytest.raises(
            ValueError, match="is the schema of impressions, which retrieval families, such as two_tower read"
        ):
            wrong(path)
    with pytest.raises(
        ValueError, match=r"is the schema of impressions, .* and that of an interaction log is wanted here"
    ):
        sample_data(UserSampleOptions(name=str(path), output=str(tmp_path / "half.csv"), share=0.5))
    (tmp_path / "table.yaml").write_text("files: ads.csv\nlabel: hour\n")
    with pytest.raises(
        ValueError, match="is the schema of a table, which tabular families read, and that of impressions is wanted"
    ):
        load_impressions(tmp_path / "table.yaml")
    rows().drop(columns="ecpm").to_csv(tmp_path / "ads.csv", index=False)
    with pytest.raises(ValueError, match=r"no column looks like the ecpm \(.*state it: --ecpm COLUMN"):
        lmctr.runs.starting.recipe_for_file(
            lmctr.runs.options.TrainOptions(recipe=str(tmp_path / "ads.csv"), model="two_tower")
        )


def test_weights_of_impressions_count_in_all_that_is_measured(tmp_path):
    table = rows()
    number = table["request"].str[1:].astype(int)
    table["w"] = number % 3  # a third of them weighs nothing
    path = schema(tmp_path, table, columns={"weight": "w"})
    recipe = {
        "data": {"name": str(path), "metrics": {"m": 2}},
        "model": {"family": "retrieval_mlp", "embedding_dim": 4, "hidden_units": [8]},
        "training": {"stage2_epochs": 1},
    }
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run", quiet=True)
    scores = read_predictions(run.path)
    assert {0.0, 1.0, 2.0} == set(scores.weight)
    for name, value in scores.metrics.items():
        assert run.metrics["test"][name] == pytest.approx(value)
    ads = {name: scores.columns[name] for name in ("ecpm", "label", "logit")}
    _, starts, counts = np.unique(scores.columns["impression"], return_index=True, return_counts=True)
    values = ranking_per_impression(counts, ads["label"], ads["logit"], ads["ecpm"], RankingSettings(m=2))
    for name, own in values.items():
        twice = np.repeat(own, scores.weight[starts].astype(int))  # an impression of weight 2 is two of them
        assert run.metrics["test"][name] == pytest.approx(np.nanmean(twice), abs=1e-9)
    table["w"] = np.where(number < 80, 1, 0)
    recipe["data"]["name"] = str(schema(tmp_path, table, columns={"weight": "w"}))
    with pytest.raises(
        ValueError, match="test part has no ad with an eCPM above 0 in an impression of a weight above 0"
    ):
        lmctr.runs.train(recipe, output_dir=tmp_path / "none", quiet=True)


def test_impressions_without_times_have_no_age_which_is_told_before_they_are_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(ImpressionStore, "build", lambda *_: pytest.fail("a store was built"))
    path = schema(tmp_path, rows(), columns={"time": None}, split={"rule": "random"})
    recipe = {"data": {"name": str(path)}, "model": {"family": "two_tower"}, "training": {"recency_half_life": 3}}
    with pytest.raises(ValueError, match=r"recency_half_life=3\.0 needs the time of each training sample"):
        lmctr.runs.train(recipe, output_dir=tmp_path / "run", quiet=True)
