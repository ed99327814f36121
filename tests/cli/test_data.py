import json
import re

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from lmctr.cli.main import main
from lmctr.data import InteractionLog, load, load_log, split_log, synthetic_log, validate_log
from lmctr.data.inspection import describe_log
from lmctr.statistics import ItemStatistics, StatisticsReader

SMALL = ["--option", "num_users=20", "--option", "num_items=60", "--option", "events_per_user=30"]


def csv_schema(folder, rows, name="toy"):
    (folder / "events.csv").write_text("u,i,t,c,title\n" + rows)
    path = folder / "schema.yaml"
    path.write_text(
        f"name: {name}\nevents: events.csv\ncolumns: {{user: u, item: i, time: t, label: c}}\n"
        "catalogue: {columns: [title]}\n"
    )
    return str(path)


@pytest.mark.parametrize("label", ["clicked", "label"])
def test_a_file_is_shown_as_it_would_be_trained_on(label, tmp_path, capsys):
    rows = [f"{row % 40 + 20},c{row % 6},{row % 3 // 2}" for row in range(300)]
    (tmp_path / "rows.csv").write_text("\n".join([f"age,city,{label}", *rows]) + "\n")
    assert main(["data", "inspect", str(tmp_path / "rows.csv"), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert f"label            {label} " in printed
    assert "codes, or counts? Read as both" in printed
    assert "age_bin" in printed


@pytest.mark.parametrize(
    ("row", "more", "options"),
    [
        ("{age},c{place}", [], "--label"),
        ("{time},c{place},{age},{age}", ["--kind", "log"], "--user and --item"),
        ("{age},c{place}", ["--kind", "log"], "--time"),
    ],
)
def test_what_to_state_is_said_of_the_verb_that_takes_it(row, more, options, tmp_path, capsys):
    rows = [row.format(age=place % 40 + 20, place=place % 6, time=1_700_000_000 + place) for place in range(300)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,d"[: len(row.split(",")) * 2 - 1], *rows]) + "\n")
    assert main(["data", "inspect", str(tmp_path / "rows.csv"), *more, "--quiet"]) == 2
    error = capsys.readouterr().err
    assert f"{options.replace(' and ', ' COLUMN ')} COLUMN" in error
    assert error.rstrip().endswith(f"Give {options} with `lmctr init`, which writes a schema to inspect.")


def test_prepare_then_inspect(tmp_path, capsys):
    folder = tmp_path / "log"
    assert main(["data", "prepare", "synthetic", *SMALL, "--output", str(folder), "--num-behaviors", "10"]) == 0
    captured = capsys.readouterr()
    log = load_log(folder)
    assert log.num_events == 600
    assert re.search(r"events\s+600", captured.out)
    assert re.search(r"train\s+480\s+20\s+0\.\d{4}\s+\d{4}-\d\d-\d\d", captured.out)
    assert "events at or after the sample's time in its history: 0 of 600 samples" in captured.out
    assert "0 training samples after the first validation or test sample" in captured.out
    assert f"best reachable AUC: {log.info.best_auc:.4f}" in captured.out
    assert re.search(r"written to .*log: .* bytes per event", captured.out)
    assert captured.err == "", "what is quick shows no progress"
    report = json.loads((folder / "report.json").read_text())
    assert report["counts"]["samples"] == 600

    assert main(["data", "inspect", str(folder), "--num-behaviors", "10", "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == report
    assert captured.err == ""


def test_figures_against_plain_counts():
    log = synthetic_log(num_users=15, num_items=80, events_per_user=25, events_spread=0.5)
    splits = split_log(log)
    figures = describe_log(log, splits, validate_log(log, splits), None, num_behaviors=8)
    for name, events in splits.items():
        lengths = [
            sum(
                1
                for other in range(log.num_events)
                if log.user[other] == log.user[e] and log.time[other] < log.time[e]
            )
            for e in events
        ]
        part = figures["split"]["parts"][name]
        assert part["samples"] == len(events)
        assert part["label_rate"] == pytest.approx(np.mean([int(log.label[e]) for e in events]))
        assert (part["first"], part["last"]) == (min(log.time[events]), max(log.time[events]))
        assert part["history"]["share_truncated"] == pytest.approx(np.mean([length > 8 for length in lengths]))
        cut = sum(max(0, length - 8) for length in lengths)
        assert part["history"]["share_of_behaviors_cut"] == pytest.approx(cut / sum(lengths))
        assert part["history"]["max"] == max(lengths)
    lengths = log.history_lengths(np.arange(log.num_events))
    for step in figures["history_lengths"]:
        assert step["samples"] == sum(step["from"] <= length <= step["to"] for length in lengths)
    assert sum(step["samples"] for step in figures["history_lengths"]) == log.num_events


def test_graded_feedback_is_described(capsys):
    assert main(["data", "inspect", "synthetic", *SMALL, "--option", "stars=true", "--quiet"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "graded feedback" in line)
    assert "0.5 to 5, mean" in line
    assert "10 distinct values, known of 100.0% of the events" in line


def test_prepare_does_not_overwrite_by_accident(tmp_path, capsys):
    folder = tmp_path / "log"
    arguments = ["data", "prepare", "synthetic", *SMALL, "--output", str(folder), "--quiet"]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "holds a log already" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--option", "seed=1"]) == 0
    assert load_log(folder).info.extra["arguments"]["seed"] == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep")
    arguments[-2] = str(tmp_path / "mine")
    assert main([*arguments, "--overwrite"]) == 2
    assert "holds no log" in capsys.readouterr().err
    assert (tmp_path / "mine" / "letter.txt").read_text() == "keep"


def test_split_by_user(capsys):
    assert main(["data", "inspect", "synthetic", *SMALL, "--split", "user", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "split by user" in out
    assert "not required" in out


def test_a_log_too_small_to_split_is_still_described(tmp_path, capsys):
    schema = csv_schema(tmp_path, "a,1,5,1,\na,2,6,0,x\n")
    assert main(["data", "inspect", schema, "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "no split: 2 samples are too few" in out
    assert "items with empty text   title: 1" in out
    schema = csv_schema(tmp_path, "a,1,5,1,x\n" * 9)
    assert main(["data", "inspect", schema, "--quiet"]) == 0
    assert "leaves the part" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "synthetik"], "Did you mean 'synthetic'"),
        (["inspect", "synthetic", "--option", "num_user=3"], "did you mean 'num_users'"),
        (["inspect", "synthetic", "--option", "num_users"], "expected KEY=VALUE"),
        (["inspect", "synthetic", *SMALL, "--split", "random"], "--split: got 'random'"),
        (["inspect", "synthetic", *SMALL, "--fractions", "0.8", "0.8", "0.1"], "fractions: got"),
        (["inspect", "synthetic", *SMALL, "--num-behaviors", "0"], "--num-behaviors: got 0"),
        (["inspect", "synthetic", *SMALL, "--tokenizer", "x"], "go with --prompt"),
        (["inspect", "synthetic", *SMALL, "--prompt", "generic/xx"], "generic/xx"),
        (["inspect", "movielens", "--path", "/nonexistent"], "grouplens.org"),
        (["inspect", "/nonexistent.yaml"], "no such schema file"),
    ],
)
def test_bad_arguments_end_with_a_message(arguments, message, capsys):
    assert main(["data", *arguments, "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


def test_bad_data_end_with_a_message(tmp_path, capsys):
    schema = csv_schema(tmp_path, "a,1,5,1,x\na,2,6,3,x\n")
    assert main(["data", "prepare", schema, "--output", str(tmp_path / "out"), "--quiet"]) == 2
    assert re.search(r"events\.csv, column 'c': .*row 2: 3", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
    log = synthetic_log(num_users=5, num_items=40, events_per_user=10)
    values = {name: getattr(log, name) for name in log.__dataclass_fields__}
    InteractionLog(**values | {"time": log.time[::-1].copy()}).save(tmp_path / "unsorted")
    assert main(["data", "inspect", str(tmp_path / "unsorted"), "--quiet"]) == 2
    assert "must be sorted by user and time" in capsys.readouterr().err


def test_prompt_shows_samples(tmp_path, capsys):
    rows = "".join(f"a,{i},{i},{i % 2},Film {i}\n" for i in range(1, 13))
    schema = csv_schema(tmp_path, rows)
    (tmp_path / "prompt.yaml").write_text(
        'name: plain\nlanguage: en\nitem: "{title}"\nhead: "Seen: "\nseparator: "; "\ntarget: "Next: {item}?"\n'
        "feedback: [{name: disliked, word: 'bad ', header: 'Bad: '}, {name: liked, word: 'good ', header: 'Good: '}]\n"
    )
    arguments = ["data", "inspect", schema, "--prompt", str(tmp_path / "prompt.yaml"), "--num-behaviors", "2"]
    arguments += ["--quiet", "--samples", "1"]
    for feedback, expected in (
        ("inline", "Seen: good Film 9; bad Film 10; Next: Film 11?"),
        ("none", "Seen: Film 9; Film 10; Next: Film 11?"),
        ("groups", "Seen: Bad: Film 8; Film 10; Good: Film 7; Film 9; Next: Film 11?"),
    ):
        assert main([*arguments, "--feedback", feedback, "--json", "--fractions", "0.75", "0.1", "0.15"]) == 0
        assert json.loads(capsys.readouterr().out)["text"]["samples"] == [{"event": 10, "label": 1, "text": expected}]
    assert main(arguments) == 0
    assert "samples as the prompt 'plain' writes them (K = 2)" in capsys.readouterr().out


def test_prompt_with_a_tokenizer_counts_tokens(tmp_path, capsys):
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "film": 4}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "prompt.yaml").write_text(
        'name: plain\nlanguage: en\nitem: "{title}"\nhead: "seen "\nseparator: "; "\ntarget: "next {item}"\n'
    )
    rows = "".join(f"a,{i},{i},{i % 2},film\n" for i in range(1, 13))
    arguments = ["data", "inspect", csv_schema(tmp_path, rows), "--prompt", str(tmp_path / "prompt.yaml"), "--quiet"]
    arguments += ["--tokenizer", str(tmp_path / "tokenizer"), "--num-behaviors", "4", "--feedback", "none", "--json"]
    arguments += ["--fractions", "0.75", "0.1", "0.15"]
    assert main(arguments) == 0
    tokens = json.loads(capsys.readouterr().out)["text"]["tokens"]["test"]
    assert tokens["samples"] == 2
    assert tokens["behaviors_shown"] == 8
    assert tokens["behaviors_dropped"] == 0
    assert main([*arguments, "--max-length", str(tokens["longest"] - 1)]) == 0
    assert json.loads(capsys.readouterr().out)["text"]["tokens"]["test"]["behaviors_dropped"] == 2


TABLE = [
    "--option",
    "num_rows=2000",
    "--option",
    "num_categorical=3",
    "--option",
    "vocab_size=200",
    "--option",
    "num_pairs=1",
]
CASCADE = ["--option", "num_impressions=100", "--option", "num_ads=250"]


def test_tables_are_inspected_and_prepared_like_logs(tmp_path, capsys):
    from lmctr.data import TabularStore

    assert main(["data", "inspect", "synthetic_table", *TABLE, "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert re.search(r"train\s+1,600\s+0\.\d{4}", captured.out)
    assert re.search(r"C3\s+categorical\s+0\.0%\s+\d+\s+\d+", captured.out)
    assert re.search(r"I1\s+numeric\s+1\d\.\d%\s+-\s+-", captured.out)

    assert main(["data", "inspect", "synthetic_table", *TABLE, "--quiet", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    arguments = ["data", "prepare", "synthetic_table", *TABLE, "--output", str(tmp_path / "out"), "--quiet"]
    assert main(arguments) == 0
    assert f"data.cache_dir: {tmp_path / 'out'}" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == figures
    source = load("synthetic_table", num_rows=2000, num_categorical=3, vocab_size=200, num_pairs=1)
    (folder,) = (tmp_path / "out").glob("*/store.json")
    store = TabularStore.build(source, directory=tmp_path / "out")  # found again, not built
    assert store.directory == folder.parent
    assert figures["split"]["parts"]["test"]["label_rate"] == pytest.approx(store.statistics["test"]["positive_rate"])
    assert main(arguments) == 2
    assert "holds a store already" in capsys.readouterr().err
    for _ in range(2):
        assert main([*arguments, "--overwrite", "--option", "seed=1"]) == 0
        assert len(list((tmp_path / "out").glob("*/store.json"))) == 2, "other data stay"


def test_impressions_are_inspected_and_prepared_like_logs(tmp_path, capsys):
    assert main(["data", "prepare", "synthetic_cascade", *CASCADE, "--output", str(tmp_path / "out"), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"train\s+80\s+1,280", out)
    assert re.search(r"ad_id\s+categorical", out)
    assert "bytes per impression" in out
    assert main(["data", "inspect", "synthetic_cascade", *CASCADE, "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "out" / "report.json").read_text())


def test_what_gives_the_label_away_is_said(tmp_path, capsys):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 3000)
    told = labels + rng.normal(0, 0.1, 3000)
    rows = "\n".join(f"{label},{rng.normal():.3f},{copy:.3f}" for label, copy in zip(labels, told))
    (tmp_path / "rows.csv").write_text(f"label,x,paid\n{rows}\n")
    assert main(["data", "inspect", str(tmp_path / "rows.csv"), "--quiet"]) == 0  # a guess leaves it out
    assert re.search(r"left out +paid +alone tells the label \(AUC 1\.00\)", capsys.readouterr().out)
    fields = ", ".join(
        f"{{name: {name}, type: numeric}}, {{name: {name}_bin, column: {name}, type: numeric, transform: quantile}}"
        for name in ("x", "paid")
    )
    (tmp_path / "schema.yaml").write_text(f"files: rows.csv\nlabel: label\nfields: [{fields}]\n")
    arguments = ["data", "inspect", str(tmp_path / "schema.yaml"), "--quiet"]
    arguments += ["--split", "rows", "--fractions", "0.6", "0.2", "0.2"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"leaks\n  the field 'paid_bin' alone.*\n.*the field 'paid' alone", out
    )  # read as a number and by bins
    assert "data.allow_leaks: {'field:paid_bin': <why>, 'field:paid': <why>}" in out
    assert main([*arguments, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["leaks"]) == ["field:paid_bin", "field:paid"]
    assert main(["data", "inspect", "synthetic_table", *TABLE, "--quiet"]) == 0
    assert re.search(r"leaks\n  none found$", capsys.readouterr().out, flags=re.M)
    few = ["--split", "rows", "--fractions", "0.9", "0.09", "0.01"]
    assert main(["data", "inspect", str(tmp_path / "schema.yaml"), "--quiet", *few]) == 0
    words = "none found, in too few held-out rows to see whether a field tells the label alone"
    assert words in capsys.readouterr().out


def test_leaks_of_impressions_are_said(monkeypatch, capsys):
    from lmctr.data.impressions import validation

    monkeypatch.setattr(validation, "_SURE", 0.0)  # from here on any number of an ad is too telling
    assert main(["data", "inspect", "synthetic_cascade", *CASCADE, "--quiet", "--json"]) == 0
    assert any(key.startswith("field:ad.") for key in json.loads(capsys.readouterr().out)["leaks"])


def test_a_data_file_is_a_table(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("label,color,x\n" + "0,red,1.5\n1,,2\n0,,2\n1,blue,1.5\n" * 25)
    arguments = ["data", "inspect", str(tmp_path / "rows.csv"), "--quiet"]
    assert main([*arguments, "--split", "rows", "--fractions", "0.6", "0.2", "0.2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"train\s+60\s+0\.5000", out)
    assert re.search(r"color\s+categorical\s+50\.0%\s+2\s+2", out)
    for extra, message in (
        (["--num-behaviors", "3"], "--num-behaviors: .*is no log"),
        (["--prompt", "generic/en"], "--prompt: .*is no log"),
        (["--fractions", "0.5", "0.5", "0.5"], "fractions"),
        (["--kind", "impressions"], "no column looks like the impression .*state it: --impression COLUMN"),
    ):
        assert main([*arguments, *extra]) == 2
        assert re.search(message, capsys.readouterr().err)
    assert main(["data", "inspect", "synthetic_table", "--split", "time", "--quiet"]) == 2
    assert "'synthetic_table' parts its rows itself" in capsys.readouterr().err


def test_statistics_of_a_log_are_written_as_a_table(tmp_path, capsys):
    file = tmp_path / "items.parquet"
    log = ["synthetic", "--option", "num_users=20", "--option", "num_items=60", "--option", "events_per_user=20"]
    assert main(["data", "statistics", *log, "--output", str(file), "--statistics", "item_rate", "user_rate"]) == 0
    assert "60 items, statistics up to second" in capsys.readouterr().out
    table = ItemStatistics.load(file)
    assert table.reader.names == ("item_rate", "user_rate")
    data = synthetic_log(20, 60, 20)
    split = split_log(data)
    expected = ItemStatistics.from_log(data, StatisticsReader.fit(data, split.train, ["item_rate", "user_rate"]))
    np.testing.assert_array_equal(
        table.at(np.arange(60), table.time)["item_rate"], expected.at(np.arange(60), table.time)["item_rate"]
    )
    assert main(["data", "statistics", *log, "--output", str(tmp_path / "items.csv")]) == 2
    assert "give a file that ends in .parquet" in capsys.readouterr().err
    assert main(["data", "statistics", *log, "--output", str(file), "--data.path", "x"]) == 2
    assert "is no run; name its data by --path" in capsys.readouterr().err
