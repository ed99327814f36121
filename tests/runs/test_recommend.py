"""`lmctr recommend` and `Run.recommend`: the best items for users, against every pair scored by itself."""

import csv
import io
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from tiny_backbones import TINY_BERT

import lmctr
from lmctr.cli.main import main
from lmctr.runs.answers import recommend
from lmctr.runs.answers.joined import JoinedRows
from lmctr.runs.inputs.sequence import SequenceInput

TEXT = {"backbone": TINY_BERT, "tokenizer": {"type": "wordpiece", "vocab_size": 200}}
STATISTICS = {"baselines": False, "statistics": "basic"}
RECIPES = {
    "sequence": ({**STATISTICS, "tasks": ["label", "like"], "max_history_length": 5}, {"family": "din"}),
    "text": ({**STATISTICS, "num_behaviors": 3, "prompt": "generic/en"}, TEXT),
    "decoder": (
        {**STATISTICS, "num_behaviors": 3, "prompt": "generic/en"},
        {**TEXT, "backbone": {**TINY_BERT, "model_type": "qwen2", "num_key_value_heads": 1}},
    ),
    "prefix": (
        {"baselines": False, "num_behaviors": 3},
        {**TEXT, "backbone": {**TINY_BERT, "initializer_range": 0.3}, "encoder_prefix": True},
    ),
    "table": (STATISTICS, {"family": "deepfm", "embedding_dim": 4, "hidden_units": [8]}),
}
COLUMNS = "{user: who, item: what, time: at, label: click, scenario: place, extra_labels: {like: like}}"
NOW, LATER = 1_700_800_000, 1_700_900_000
NOON = 1_700_740_800  # of 2023-11-23, UTC


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The schema and the rows of a log, whose last items come late."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("log")
    time = np.sort(rng.integers(1_700_000_000, LATER, 900))
    item = np.where(time < NOW, rng.integers(0, 20, 900), rng.integers(0, 26, 900))
    rows = {"who": rng.integers(100, 130, 900), "what": [f"i{number}" for number in item], "at": time}
    rows |= {name: rng.integers(0, 2, 900) for name in ("click", "like")} | {
        "place": rng.choice(["home", "search"], 900)
    }
    frame = pd.DataFrame(rows)
    frame.to_csv(folder / "clicks.csv", index=False)
    titles = pd.DataFrame({"what": [f"i{number}" for number in range(30)], "title": [f"Thing {n}" for n in range(30)]})
    titles.to_csv(folder / "items.csv", index=False)
    (folder / "schema.yaml").write_text(f"events: clicks.csv\ncolumns: {COLUMNS}\ncatalogue: items.csv\n")
    return folder / "schema.yaml", frame


@pytest.fixture(scope="module")
def runs(log, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run_of(kind):
        if kind not in made:
            data, model = RECIPES[kind]
            recipe = {"data": {**data, "name": str(log[0])}, "model": model}
            made[kind] = lmctr.runs.train(
                {**recipe, "training": {"max_steps": 3, "learning_rate": 0.05, "use_cpu": True}},
                output_dir=folder / kind,
            )
        return made[kind]

    return run_of


def plain(run, frame, user, time, top, seen=False, candidates=None, place="home"):
    """The best items of a user, by a loop over the rows of the log and one prediction for each pair."""
    before = frame[frame["at"] < time]
    known = list(dict.fromkeys(before["what"])) if candidates is None else candidates
    left = [item for item in known if seen or item not in set(before[before["who"] == user]["what"])]
    pairs = {"who": [user] * len(left), "what": left, "at": [time] * len(left), "place": [place] * len(left)}
    with pytest.MonkeyPatch.context() as patch:  # a row of the model for each
        patch.setattr(SequenceInput, "shares_histories", False)
        patch.setattr(JoinedRows, "_score_shared", lambda self, view, order, *_: order)
        logits = run.predict(pairs).reshape(len(left), -1)
    best = np.argsort(-logits[:, 0], kind="stable")[:top]
    return [left[number] for number in best], logits[best]


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize(("seen", "pairs"), [(False, 1 << 18), (True, 7)])
def test_the_best_are_those_of_all_pairs(runs, log, monkeypatch, kind, seen, pairs):
    monkeypatch.setattr(recommend.BestItems, "_at_once", pairs)  # a user's candidates may be more
    run, frame = runs(kind), log[1]
    second = int(frame[frame["what"] == "i24"]["at"].min())  # in which the item is none yet
    asked = {"who": [101, 999, 107], "at": [NOW, NOW, second], "place": ["home", "home", "search"]}
    table = run.recommend(asked, 30, seen=seen, allow_unknown=True)
    names = ["row", "who", "rank", "what", "logit", "probability"]
    assert table.column_names == names + (["logit_like", "probability_like"] if kind == "sequence" else [])
    found = table.to_pandas()
    for row, (user, time, place) in enumerate(zip(*asked.values()), 1):
        own = found[found["row"] == row]
        items, logits = plain(run, frame, user, time, 30, seen, place=place)
        assert list(own["rank"]) == list(range(1, len(items) + 1))
        assert set(own["who"]) == {user}
        np.testing.assert_allclose(own["logit"], logits[:, 0], atol=1e-5)
        assert np.ptp(logits[:, 0]) > 1e-3
        assert list(own["what"]) == items
        if kind == "sequence":
            np.testing.assert_allclose(own["logit_like"], logits[:, 1], atol=1e-5)


@pytest.mark.parametrize("kind", ["text", "table"])
@pytest.mark.parametrize("renamed", [False, True])
def test_new_items_bring_their_columns(runs, log, tmp_path, kind, renamed):
    """As if the catalogue had them; what it knows of its own items stays."""
    run, given = runs(kind), {"what": ["i3", "n1", "n2", "n1"], "title": ["?", "Thing 4", "Thing 29", "?"], "more": 1}
    asked = {"who": [101], "at": [NOW], "place": ["home"]}
    if renamed:  # by a list of another name for the ids, and a schema that calls the columns otherwise
        given = {"item": given["what"], "named": given["title"]}
        recipe = yaml.safe_load((run.path / "recipe.yaml").read_text())
        schema = (
            log[0].read_text().replace("catalogue: items.csv", "catalogue: {path: items.csv, columns: {title: named}}")
        )
        shutil.copytree(log[0].parent, tmp_path / "log")
        shutil.copytree(run.path, tmp_path / "run")
        (tmp_path / "log" / "schema.yaml").write_text(schema)
        items = tmp_path / "log" / "items.csv"
        items.write_text(items.read_text().replace("title", "named", 1))
        recipe["data"]["name"] = str(tmp_path / "log" / "schema.yaml")
        (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        (tmp_path / "run" / "lmctr_manifest.json").unlink()
        run = lmctr.runs.load(tmp_path / "run")
    found = run.recommend(asked, items=given, seen=True, allow_unknown=True).to_pandas().set_index("what")["logit"]
    assert len(found) == 3
    shutil.copytree(log[0].parent, tmp_path / "whole")
    with open(tmp_path / "whole" / "items.csv", "a") as file:
        file.write("n1,Thing 4\nn2,Thing 29\n")
    pairs = {"who": [101] * 3, "what": list(found.index), "at": [NOW] * 3, "place": ["home"] * 3}
    whole = runs(kind).predict(pairs, log=tmp_path / "whole" / "schema.yaml", allow_unknown=True)
    np.testing.assert_allclose(found, whole.reshape(-1), atol=1e-5)
    if kind == "text":
        assert abs(found["n1"] - found["n2"]) > 1e-4
        with pytest.raises(ValueError, match="are not in the log's catalogue"):
            run.recommend(asked, items=["n1"], seen=True)


@pytest.mark.parametrize("kind", ["sequence", "table"])
@pytest.mark.parametrize("columns", [None, {"tribe": "kind"}])
def test_new_users_bring_their_columns(log, tmp_path, kind, columns):
    """As if the table of users had them; what it knows of its own users stays."""
    shutil.copytree(log[0].parent, tmp_path / "log")
    schema, own = tmp_path / "log" / "schema.yaml", ["elf" if user % 2 else "orc" for user in range(100, 130)]
    users = pd.DataFrame({"id": range(100, 130), "kind": own}).rename(columns={} if columns else {"kind": "tribe"})
    users.to_csv(tmp_path / "log" / "users.csv", index=False)
    spec = {"path": "users.csv", "user": "id"} | ({"columns": columns} if columns else {})
    schema.write_text(schema.read_text() + yaml.safe_dump({"users": spec}))
    data, model = {"baselines": False, "name": str(schema)}, RECIPES[kind][1]
    data |= {"user_features": ["tribe"]} if kind == "sequence" else {}
    training = {"max_steps": 3, "learning_rate": 0.05, "use_cpu": True}
    run = lmctr.runs.train({"data": data, "model": model, "training": training}, output_dir=tmp_path / "run")
    told = {"who": [101, 901, 902, 901], users.columns[1]: ["orc", "elf", "orc", "orc"], "place": ["home"] * 4}
    found = run.recommend(told, 3, time=NOW, items=["i3", "i5", "i7"], seen=True, allow_unknown=True)
    with open(tmp_path / "log" / "users.csv", "a") as file:
        file.write("901,elf\n902,orc\n")
    told.pop(users.columns[1])
    whole = run.recommend(told, 3, time=NOW, items=["i3", "i5", "i7"], seen=True, allow_unknown=True)
    assert found.equals(whole)
    tops = found.to_pandas().groupby("row")["logit"].max()
    assert abs(tops[2] - tops[3]) > 1e-4
    assert tops[2] == tops[4]  # the first row of a user tells
    told[users.columns[1]] = ["elf", "orc", "elf", "elf"]
    assert run.recommend(told, 3, time=NOW, items=["i3", "i5", "i7"], seen=True, allow_unknown=True).equals(found)
    rows = {"who": [901, 902], "what": ["i3"] * 2, "at": [NOW] * 2, "place": ["home"] * 2}
    scores = run.predict(rows, allow_unknown=True).reshape(-1)
    kept = found.to_pandas().query("what == 'i3'").set_index("who")["logit"]
    np.testing.assert_allclose(scores, [kept[901].iloc[0], kept[902]], atol=1e-5)


def test_it_says_early_how_long_it_takes(runs, log, monkeypatch, tmp_path, capsys):
    """After the candidates of a few users, of how many."""
    monkeypatch.setattr(recommend, "PAIRS", 200)
    monkeypatch.setattr("lmctr.utils.progress.PATIENCE", 0.0)
    run, sizes = runs("text"), []
    own = recommend.BestItems._ranked
    monkeypatch.setattr(
        recommend.BestItems, "_ranked", lambda self, *given: sizes.append(len(given[1])) or own(self, *given)
    )
    assert main(["recommend", str(run.path), "--seen", "--output", str(tmp_path / "best.csv")]) == 0
    assert len(log[1]) // 4 in range(209, 235)  # which are more than 200
    assert sizes == [1, *[9] * 3, 2]  # users, of 26 candidates
    assert "ranking items: 3% of 30 users" in capsys.readouterr().err


def test_new_users_are_counted_once_however_many_candidates_they_have(runs, log, tmp_path, capsys):
    asked = pd.DataFrame({"who": [101, 999, 998, 107], "place": "home"})
    asked.to_csv(tmp_path / "users.csv", index=False)
    words = ["--users", str(tmp_path / "users.csv"), "--output", str(tmp_path / "best.csv")]
    assert main(["recommend", str(runs("sequence").path), *words]) == 0
    told = capsys.readouterr().err
    assert "the best 10 items of 4 users; unknown values: users not in the log 50.0%" in told
    assert "are they written as in the log" not in told  # of four users none is a wonder


def test_candidates_of_a_user_and_second_share_a_history(runs, log, monkeypatch):
    """Also those that rows of a table name; not those of other users and seconds."""
    run, given = runs("sequence"), []
    own = run.model.forward
    monkeypatch.setattr(run.model, "forward", lambda **batch: given.append(batch["candidate_items"]) or own(**batch))
    rows = {"who": [101, 107, 101, 101, 101], "what": ["i1", "i1", "i2", "i3", "i4"], "at": [NOW] * 4 + [NOW - 9]}
    rows["place"] = ["home", "home", "search", "home", "home"]
    together = run.predict(rows)
    assert sorted(batch.shape for batch in given) == [(3, 3)]
    assert (given[0] == 0).sum() == 4  # filled up
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SequenceInput, "shares_histories", False)
        np.testing.assert_allclose(together, run.predict(rows), atol=1e-6)
    assert given[1].shape == (5,)


@pytest.mark.parametrize("kind", ["text", "decoder", "prefix"])
def test_texts_that_begin_alike_are_read_once(runs, log, monkeypatch, kind):
    run, given = runs(kind), []
    own = run.model.forward
    monkeypatch.setattr(run.model, "forward", lambda **batch: given.extend(batch["input_ids"]) or own(**batch))
    rows = {
        "who": [107, 107] + [101] * 5,
        "what": ["i1", "i2", "i1", "i2", "i3", "i5", "i4"],
        "at": [NOW] * 6 + [NOW - 9],
    }
    together = run.predict(rows)
    assert len(given) == (7 if kind == "text" else 3)  # the user's four at once go another way
    monkeypatch.setattr(JoinedRows, "_score_shared", lambda self, view, order, *_: order)
    np.testing.assert_allclose(together, run.predict(rows), atol=1e-5)
    assert np.ptp(together) > 1e-3


def test_all_users_at_the_end_of_the_log_and_candidates_of_ones_own(runs, log, caplog):
    run, frame = runs("sequence"), log[1]
    last = int(frame["at"].max()) + 1
    found = run.recommend(
        {"who": sorted(set(frame["who"])), "place": ["home"] * 30}, np.int64(1), seen=True
    ).to_pandas()
    assert list(found["who"]) == sorted(set(frame["who"]))
    assert found["what"][3] == plain(run, frame, found["who"][3], last, 1, seen=True)[0][0]
    given = ["i29", "i3", "i5", "i29"]  # one that nobody met
    asked = {"who": [101], "place": ["home"]}
    found = run.recommend(asked, items=given, seen=True, time="2023-11-23 12:00:00").to_pandas()
    expected, _ = plain(run, frame, 101, 1_700_740_800, 10, seen=True, candidates=["i29", "i3", "i5"])
    assert list(found["what"]) == expected
    same = run.recommend([{"who": 101, "place": "home"}], items=pd.Series(given), seen=True, time=1_700_740_800)
    assert same.to_pandas().equals(found)
    with caplog.at_level("WARNING", logger="lmctr"):
        few = run.recommend(asked, items={"what": ["i3"]})  # met before: nothing is left
    assert few.num_rows == 0
    assert "1 of the users have no candidate, as they have met all there are; --seen ranks these too" in caplog.text
    caplog.clear()
    with caplog.at_level("WARNING", logger="lmctr"):
        assert run.recommend(asked, time="2023-01-01").num_rows == 0  # before the log begins
    assert "1 of the users have no candidate: nobody had met an item at their time" in caplog.text
    assert "--seen" not in caplog.text


def test_users_without_a_candidate_leave_the_types_of_columns(runs, log, monkeypatch, tmp_path):
    """Also where none of some users, the last or all, has one."""
    monkeypatch.setattr(recommend, "PAIRS", 8)  # a block for each user with candidates
    run, frame = runs("table"), log[1]
    users = sorted(set(frame["who"]), key=lambda who: "i3" in set(frame[frame["who"] == who]["what"]))
    met = [who for who in users if "i3" in set(frame[frame["who"] == who]["what"])]
    assert 0 < len(met) < len(users)
    whole, none = run.recommend(users, items=["i3"]), run.recommend(met, items=["i3"])
    assert whole["who"].to_pylist() == users[: -len(met)]
    assert (none.num_rows, none.schema) == (0, whole.schema)
    for name, own in (("whole", users), ("none", met)):
        pd.DataFrame({"who": own}).to_csv(tmp_path / "users.csv", index=False)
        pd.DataFrame({"what": ["i3"]}).to_csv(tmp_path / "items.csv", index=False)
        words = ["--users", str(tmp_path / "users.csv"), "--items", str(tmp_path / "items.csv")]
        assert main(["recommend", str(run.path), *words, "--output", str(tmp_path / f"{name}.parquet")]) == 0
        assert pd.read_parquet(tmp_path / f"{name}.parquet").dtypes.astype(str).to_list()[-2:] == ["float64"] * 2


def next_of(run, frame, first, top, seen, time=None, items=None):
    """By user of the test part what the user took next, and the model's list, by loops."""
    test = frame[frame["at"] >= max(first, time or 0)]
    wanted, lists, count = {}, {}, 0
    for user, own in test.groupby("who"):
        at = int(own["at"].min()) if time is None else time
        before = frame[frame["at"] < at]
        own = set(own[own["click"] == 1]["what"]) & set(frame["what"] if items is None else items)
        own -= set() if seen else set(before[before["who"] == user]["what"])
        if own:
            place = test[(test["who"] == user)]["place"].iloc[0]
            wanted[user], lists[user] = own, plain(run, frame, user, at, top, seen, items, place)[0]
            met = set(before["what"]) if items is None else set(items)
            count += len(own - met)
    return wanted, lists, count / sum(map(len, wanted.values()))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("sequence", {}),
        ("sequence", {"seen": True, "items": ["i3", "i25", "i7", "none", "i24"]}),
        ("table", {"seen": True, "time": 1_700_850_000}),
        ("decoder", {}),
    ],
)
def test_what_users_took_next(runs, log, kind, options):
    run, frame = runs(kind), log[1]
    first = runs("sequence").folder.data()["split"]["times"]["test"][0]
    wanted, lists, unmet = next_of(
        run, frame, first, 3, options.get("seen", False), options.get("time"), options.get("items")
    )
    found = run.next_items(top=3, **options)
    assert (found.num_users, found.shown, found.top) == (len(wanted), True, 3)
    assert found.wanted == pytest.approx(np.mean([*map(len, wanted.values())]))
    assert found.unmet == pytest.approx(unmet)
    model = found.lists["model"]
    hits = {user: [item in wanted[user] for item in lists[user]] for user in wanted}
    assert model.recall == pytest.approx(np.mean([sum(hits[user]) / len(wanted[user]) for user in wanted]))
    assert model.hit_rate == pytest.approx(np.mean([any(own) for own in hits.values()]))
    assert 0 < model.hit_rate < 1
    assert model.items == len({item for own in lists.values() for item in own})
    gains = 1 / np.log2(np.arange(2, 5))
    ndcg = [gains[: len(hits[user])] @ hits[user] / gains[: len(wanted[user])].sum() for user in wanted]
    assert model.ndcg == pytest.approx(np.mean(ndcg))
    plain_lists = {name: own.ndcg for name, own in found.lists.items() if name != "model"}
    assert ("the user's most clicked" in plain_lists) is options.get("seen", False)
    assert found.strongest == max(plain_lists, key=plain_lists.get)
    assert found.difference == pytest.approx(model.ndcg - plain_lists[found.strongest])
    assert found.low < found.difference < found.high
    with pytest.raises(ValueError, match="top: got 0, accepted"):
        run.next_items(top=0)
    few = run.next_items(top=3, num_users=4, seed=1, **options)
    assert few.num_users == 4


def test_users_are_ranked_where_they_are(runs, log, monkeypatch):
    """In the scenario of each one's first sample of the part, at its second."""
    run, frame, given = runs("sequence"), log[1], []
    own = recommend.BestItems.ranked
    monkeypatch.setattr(
        recommend.BestItems, "ranked", lambda self, asked, *rest: given.append(asked) or own(self, asked, *rest)
    )
    run.next_items("validation", top=1)
    first = run.folder.data()["split"]["times"]["validation"][0]
    for user, time, place in zip(*(list(given[0][name]) for name in ("user", "time", "scenario"))):
        row = frame[(frame["at"] >= first) & (frame["who"] == user.as_py())].iloc[0]
        assert (row["at"], row["place"]) == (time, ["home", "search"][place])
    assert len({*given[0]["scenario"]}) == 2


def test_plain_lists_of_what_users_took_next(runs, log):
    """The most clicked items, against a count of rows."""
    run, frame = runs("table"), log[1]
    first = runs("sequence").folder.data()["split"]["times"]["test"][0]
    wanted, _, _ = next_of(run, frame, first, 2, False)
    test, hits = frame[frame["at"] >= first], []
    for user, own in wanted.items():
        before = frame[frame["at"] < test[test["who"] == user]["at"].min()]
        counts = before[before["click"] == 1]["what"].value_counts()
        left = [
            item for item in dict.fromkeys(before["what"]) if item not in set(before[before["who"] == user]["what"])
        ]
        best = sorted(left, key=lambda item: -counts.get(item, 0))[:2]
        hits.append(len(own & set(best)) / len(own))
    found = run.next_items(top=2).lists["most clicked"]
    assert found.recall == pytest.approx(np.mean(hits))
    assert found.recall > 0


def test_the_measure_of_runs(runs, log, tmp_path, capsys):
    folders = [str(runs(kind).path) for kind in ("sequence", "table")]
    assert (
        main(["analyze", "next", *folders, "--top", "3", "--seen", "--num-users", "9", "--output", str(tmp_path)]) == 0
    )
    printed = capsys.readouterr().out
    assert re.search(
        r"sequence: test: 9 users, [0-9]+ items ranked for each; of the [0-9.]+ that one took next", printed
    )
    assert re.search(r"the user's most clicked +0\.[0-9]{4} +0\.[0-9]{4} +0\.[0-9]{4} +[0-9]+\n", printed)
    rows = list(csv.DictReader((tmp_path / "next_comparison.csv").read_text().splitlines()))
    assert [(row["run"], row["list"]) for row in rows[:2]] == [("sequence", "model"), ("sequence", "most clicked")]
    content = yaml.safe_load((tmp_path / "next_comparison.json").read_text())
    assert content["runs"][1]["lists"]["model"]["recall"] == pytest.approx(float(rows[4]["recall"]))
    assert main(["analyze", "next", folders[1], "--num-users", "3", "--output", str(tmp_path)]) == 0
    assert "had met before; --seen ranks such items too" in capsys.readouterr().err
    assert main(["analyze", "next", folders[0], "--top", "0"]) == 2
    assert "--top must be at least 1" in capsys.readouterr().err
    assert main(["analyze", "next", folders[0], "--time", "1700899999"]) == 2
    assert "test: no user of its" in capsys.readouterr().err


def test_the_command_writes_them(runs, log, tmp_path, capsys):
    run = runs("text")
    users, items = tmp_path / "users.csv", tmp_path / "items.csv"
    users.write_text("who,place\n101,home\n107,search\n")
    items.write_text("what\ni3\ni5\ni7\n")
    output = tmp_path / "best.csv"
    words = ["recommend", str(run.path), "--users", str(users), "--items", str(items), "--output", str(output)]
    assert main([*words, "--top", "2", "--seen"]) == 0
    rows = [*csv.DictReader(io.StringIO(output.read_text()))]
    found = run.recommend({"who": [101, 107], "place": ["home", "search"]}, 2, items=["i3", "i5", "i7"], seen=True)
    assert [row["what"] for row in rows] == found["what"].to_pylist()
    assert [float(row["logit"]) for row in rows] == pytest.approx(found["logit"].to_pylist(), abs=1e-5)
    assert "the best 2 items of 2 users" in capsys.readouterr().err
    assert main(["recommend", str(run.path), "--top", "1", "--output", str(output)]) == 0
    rows = [*csv.DictReader(io.StringIO(output.read_text()))]
    assert list(rows[0]) == ["who", "rank", "what", "logit", "probability"]
    assert len(rows) == log[1]["who"].nunique()
    assert re.search(
        r"\d+% of the log's events are of an item that its user had met before; --seen", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top": 0}, "top: got 0, accepted: a whole number from 1"),
        (
            {"time": "soon"},
            "time: 'soon' is no time to rank at; accepted: unix seconds in the past, or a text such as",
        ),
        ({"time": 4_000_000_000}, "time: 4000000000 is no time to rank at"),
        ({"users": {"user": [101]}}, "no column 'who'; its columns are .'user'."),
        ({"users": [101]}, "no column 'place': scores depend on where a candidate is shown"),
        ({"users": 101}, r"users: got 101; accepted: a list of ids, such as \[101\], a table, or a file"),
        ({"users": []}, "users: the list is empty; give at least one id, or None for all"),
        ({"items": np.int64(7)}, "items: got np.int64"),
        ({"users": "u101"}, r"users: there is no file 'u101'; .* in Python also a list of ids, such as \['u101'\]"),
        ({"items": ["i99"]}, r"column 'what': 1 of 1 values are not in the log's catalogue \(row 1: 'i99'\)"),
    ],
)
def test_what_cannot_be_ranked(runs, given, message):
    kind = "text" if "items" in given else "sequence"
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        runs(kind).recommend(**{"users": {"who": [101], "place": ["home"]}, **given})


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ({"format": "%d/%m/%Y %H:%M"}, ["23/11/2023 12:00", "2023-11-23 12:00", NOON]),
        ({"format": "%Y%m%d"}, ["20231123", 20231123, "2023-11-23"]),
        ({"unit": "ms"}, [str(NOON * 1000), NOON * 1000, str(NOON), NOON, "2023-11-23T12:00:00Z"]),
        ({"timezone": "Asia/Tokyo"}, ["2023-11-23 21:00:00", "2023-11-23T12:00:00Z", NOON]),
        ({}, ["2023-11-23 12:00:00", str(NOON), NOON]),
    ],
)
def test_a_moment_is_written_as_in_the_log(runs, log, tmp_path, kind, written):
    """Or as unix seconds, or an ISO time, where the log's own way does not read it."""
    rows = log[1][log[1]["at"] < NOON - 86_400]
    when = pd.to_datetime(rows["at"], unit="s")
    if "format" in kind:
        rows["at"] = when.dt.strftime(kind["format"])
    elif "timezone" in kind:
        rows["at"] = when.dt.tz_localize("UTC").dt.tz_convert(kind["timezone"]).dt.strftime("%Y-%m-%d %H:%M:%S")
    elif kind:
        rows["at"] *= 1000
    rows.to_csv(tmp_path / "clicks.csv", index=False)
    own = (
        log[0]
        .read_text()
        .replace("time: at", f"time: {{column: at, {yaml.safe_dump(kind, default_flow_style=True)[1:-2]}}}")
    )
    (tmp_path / "schema.yaml").write_text(own.replace("items.csv", str(log[0].parent / "items.csv")))
    ranked = [runs("sequence")._ranked(tmp_path / "schema.yaml", None, False, time) for time in written]
    assert {own.at for own in ranked} == {NOON if "%Y%m%d" not in kind.values() else NOON - NOON % 86_400}
    with pytest.raises(
        ValueError, match="time: '31/31/2023' is no time to rank at" + ".*log's format '%" * ("format" in kind)
    ):
        runs("sequence")._ranked(tmp_path / "schema.yaml", None, False, "31/31/2023")


def test_candidates_by_their_ids_for_a_log_without_a_schema(runs):
    """The columns of users are those that the table has, known before the items are looked at."""
    ranked = runs("sequence")._ranked(None, ["i3", "i5"], True, None)
    ranked.names = None
    users = {"user_id": ["101", "107"], "scenario": ["home", "search"]}
    found = recommend.best_table(ranked, users, 1)
    expected = runs("sequence").recommend(
        {"who": [101, 107], "place": ["home", "search"]}, 1, items=["i3", "i5"], seen=True
    )
    assert found["logit"].to_pylist() == pytest.approx(expected["logit"].to_pylist(), abs=1e-5)


@pytest.mark.parametrize("kind", RECIPES)
def test_a_run_of_another_folder(runs, log, kind, tmp_path, monkeypatch, capsys):
    """Whose recipe names its log by a path that begins elsewhere."""
    run, users = runs(kind), {"who": [101], "place": ["home"]}
    moved = tmp_path / kind
    shutil.copytree(run.path, moved, ignore=shutil.ignore_patterns("checkpoints"))
    recipe = yaml.safe_load((moved / "recipe.yaml").read_text())
    recipe["data"]["name"] = "shop/schema.yaml"
    (moved / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (moved / "lmctr_manifest.json").unlink()
    monkeypatch.chdir(tmp_path)
    for verb in ("recommend", "evaluate"):
        assert main([verb, str(moved)]) == 2
        error = capsys.readouterr().err
        assert f"no such schema file in {tmp_path}, where relative paths begin" in error
        assert ("--log" in error) == (verb == "recommend")
    found = lmctr.runs.load(moved).recommend(users, log=log[0])
    assert found.equals(run.recommend(users))


def test_a_run_of_no_log_and_a_folder_without_its_recipe(runs, tmp_path, capsys):
    table = {"name": "synthetic_table", "options": {"num_rows": 600, "num_pairs": 1}, "baselines": False}
    training = {"max_steps": 2, "use_cpu": True}
    run = lmctr.runs.train(
        {"data": table, "model": {"family": "dnn"}, "training": training}, output_dir=tmp_path / "table"
    )
    assert main(["recommend", str(run.path)]) == 2
    words = f"error: {run.path}: its data are no log of users, items and times, whose items could be ranked"
    told = capsys.readouterr().err
    assert words in told
    assert "users.merge(items, how='cross')" in told
    with pytest.raises(ValueError, match="score requests of a user and its ads, by lmctr predict"):
        recommend.BestItems(run.folder, None, SimpleNamespace(request_kind="impressions"), None)
    assert main(["analyze", "next", str(run.path)]) == 2
    assert words in capsys.readouterr().err
    advice = {"sequence": "requests with their histories as JSON lines", "table": "rows that hold the model's columns"}
    for kind, told in advice.items():
        for part in ("model", "processor"):
            getattr(runs(kind), part).save_pretrained(tmp_path / f"bare_{kind}")
        with pytest.raises(FileNotFoundError, match=f"rows cannot be joined with one.* or give .*{told}"):
            lmctr.runs.load(tmp_path / f"bare_{kind}").recommend()


@pytest.mark.parametrize("kind", ["sequence", "table"])
def test_a_folder_without_a_recipe_knows_its_statistics(runs, log, tmp_path, kind):
    run = runs(kind)
    for part in ("model", "processor"):
        getattr(run, part).save_pretrained(tmp_path / "bare")
    tasks = {"data.tasks": ["label", "like"]} if kind == "sequence" else {}
    found = lmctr.runs.load(tmp_path / "bare").evaluate("test", overrides={"data.name": str(log[0]), **tasks})
    assert found["auc"] == pytest.approx(run.evaluate("test")["auc"], abs=1e-6)


def test_rare_items_are_candidates_as_well(tmp_path, caplog):
    """Nearly all items of a log may be rare, while most of its events are of those that are not; other ids are refused, unless a user has met the rest."""
    rng = np.random.default_rng(0)
    item = np.where(rng.random(900) < 0.6, rng.integers(0, 3, 900), np.arange(3, 903) // 2)
    time = np.sort(rng.integers(1_700_000_000, NOW, 900))
    rows = {"user": rng.integers(0, 30, 900), "item": item, "time": time, "click": rng.integers(0, 2, 900)}
    pd.DataFrame(rows).to_csv(tmp_path / "clicks.csv", index=False)
    schema = tmp_path / "schema.yaml"
    schema.write_text("events: clicks.csv\ncolumns: {user: user, item: item, time: time, label: click}\n")
    data = {"name": str(schema), "baselines": False, "min_count": 20}
    recipe = {"data": data, "model": {"family": "din"}, "training": {"max_steps": 2, "use_cpu": True}}
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    for seen in (True, False):  # these users have met what the model knows
        found = run.recommend([1, 2], 5, seen=seen)
        assert found["rank"].to_pylist() == [1, 2, 3, 4, 5] * 2
        assert ("field 'items of candidates': 100.0% of the values are unknown" in caplog.text) is not seen
    pd.DataFrame(rows | {"item": item + 10_000}).to_csv(tmp_path / "clicks.csv", index=False)
    with pytest.raises(ValueError, match=r"field 'items of candidates': 100.0% of the values are unknown"):
        run.recommend([1, 2], 5, log=schema, seen=True)


def test_an_item_without_a_finite_score_is_no_item_of_a_list(runs):
    """A weight that ran over: such scores would stand behind all others, or as empty cells of a joined table."""
    run = lmctr.runs.load(runs("sequence").path)
    users = pd.DataFrame({"who": [103], "place": ["home"]})
    width = run.model.config.num_statistics
    code = run.processor([[]], [["i7"]], times=[NOW], statistics=np.zeros((1, 1, width)))["candidate_items"].item()
    run.model.model.item_embedding.items.weight.data[code] = np.nan
    with pytest.raises(ValueError, match=r"^user 103, item 'i7' gets no finite score"):
        run.recommend(users, items=["i3", "i7"], seen=True, time=NOW)
    assert run.recommend(users, items=["i3"], seen=True, time=NOW).num_rows == 1
    rows = [{"who": 103, "what": what, "at": LATER, "place": "home"} for what in ("i3", "i7")]
    with pytest.raises(ValueError, match=r"row 2 gets no finite score"):
        run.predict(pd.DataFrame(rows))


def test_a_run_of_a_file_of_clicks_alone(tmp_path, monkeypatch, capsys):
    """`lmctr train FILE --negatives 2` writes no schema: scores and lists are made by what the run says of its file."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    time = np.sort(rng.choice(900_000, 600, replace=False)) + 1_700_000_000
    plays = pd.DataFrame({"user": rng.integers(0, 30, 600), "item": rng.integers(0, 20, 600), "time": time})
    plays.to_csv("plays.csv", index=False)
    short = [
        "--training.epochs",
        "1",
        "--training.use_cpu",
        "true",
        "--data.baselines",
        "false",
        "--data.statistics",
        "basic",
    ]
    train = ["train", "plays.csv", "--model", "din", "--negatives", "2", "--output-dir", "run", *short]
    assert main([*train, "--training.boosting_share", "0"]) == 0
    assert main(["predict", "run", "--input", "plays.csv", "--output", "scores.csv"]) == 0
    assert len(pd.read_csv("scores.csv")) == 600
    assert main(["recommend", "run", "--top", "2", "--seen", "--output", "best.csv"]) == 0
    assert pd.read_csv("best.csv").groupby("user").size().tolist() == [2] * plays.user.nunique()
    assert main(["analyze", "next", "run", "--seen", "--num-users", "5"]) == 0
    capsys.readouterr()
    assert len(lmctr.runs.load("run").predict(plays.tail(3))) == 3
