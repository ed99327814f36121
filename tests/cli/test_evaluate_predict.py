import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_helpers import predict, read, request_of, tiny_log
from safetensors.numpy import load_file, save_file

import lmctr
from lmctr.cli.main import main
from lmctr.runs.answers.requests import text_request
from lmctr.runs.answers.served import ServedModel

# ---- evaluate -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["test", "validation"])
def test_evaluate_gives_the_metrics_of_the_training(tiny_run, tmp_path, capsys, split):
    words = [
        "evaluate",
        tiny_run,
        "--split",
        split,
        "--output",
        tmp_path / "m.json",
        "--predictions",
        tmp_path / "p.parquet",
    ]
    assert main([str(word) for word in words]) == 0
    expected = read(tiny_run, "metrics.json")["split metrics"][split]
    measured = read(tmp_path, "m.json")
    assert measured["split"] == split
    for key, value in expected.items():
        assert measured["metrics"][key] == pytest.approx(value, abs=1e-5)
    assert f"{expected['auc']:.4f}" in capsys.readouterr().out
    logits = pq.read_table(tmp_path / "p.parquet")["logit"].to_numpy()
    trained = pq.read_table(tiny_run / "predictions" / f"{split}.parquet")["logit"].to_numpy()
    np.testing.assert_allclose(logits, trained, atol=1e-5)


def test_evaluate_with_frozen_histories(tiny_run, tmp_path):
    words = ["evaluate", tiny_run, "--frozen-histories", "--slices", "--output", tmp_path / "m.json"]
    assert main([str(word) for word in words]) == 0
    found, live = read(tmp_path, "m.json"), read(tiny_run, "metrics.json")["split metrics"]["test"]
    assert found["frozen_histories"] is True
    assert found["metrics"]["num_samples"] == live["num_samples"]
    assert found["metrics"]["log_loss"] != pytest.approx(live["log_loss"], abs=3e-7)  # of a model of two steps
    rows = [row for row in found["slices"] if row["slice"] == "user"]
    assert sum(row["num_samples"] for row in rows) == live["num_samples"]


def test_evaluate_other_data(tiny_run, tmp_path):
    words = [
        "evaluate",
        tiny_run,
        "--data.options.seed",
        "5",
        "--data.max_eval_samples",
        "30",
        "--output",
        tmp_path / "m.json",
    ]
    assert main([str(word) for word in words]) == 0
    metrics = read(tmp_path, "m.json")["metrics"]
    assert metrics["num_samples"] == 30
    assert metrics["auc"] != read(tiny_run, "metrics.json")["split metrics"]["test"]["auc"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.num_behaviors", "3"], "--data.num_behaviors: the run was trained with its own value"),
        (["--model.sink_kind", "none"], "--model.sink_kind: the run was trained with its own value"),
        (["--training.learning_rate", "1"], "has no effect on a measurement"),
        (["--data.options.seeed", "5"], "did you mean 'seed'"),
        (["--output", "metrics.txt"], "--output metrics.txt: give a file that ends in .json"),
    ],
)
def test_evaluate_bad_words(tiny_run, capsys, words, message):
    assert main(["evaluate", str(tiny_run), *words]) == 2
    assert message in capsys.readouterr().err


_UNFINISHED = "is not finished (no metrics.json); continue it with `lmctr train RECIPE --resume`"


def test_unfinished_and_absent_runs(tmp_path, capsys):
    for verb in (["evaluate"], ["predict", "--input", "x"]):
        assert main([*verb, str(tmp_path / "none")]) == 2
        assert "does not exist" in capsys.readouterr().err
        assert main([*verb, str(tmp_path)]) == 2
        assert "is no run folder" in capsys.readouterr().err
    (tmp_path / "recipe.yaml").write_text("data: {}")
    assert main(["evaluate", str(tmp_path)]) == 2
    assert _UNFINISHED in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["card", "--print"], ["export", "--format", "torch"], ["predict", "--input", "r.jsonl"]]
)
def test_a_model_of_an_unfinished_run_is_told(words, tiny_run, tmp_path, monkeypatch, caplog):
    import shutil

    shutil.copytree(tiny_run, tmp_path / "cut", ignore=shutil.ignore_patterns("metrics.json", "checkpoints"))
    monkeypatch.chdir(tmp_path)
    Path("r.jsonl").write_text('{"history": [], "target": "a", "time": 1}\n')
    assert main([words[0], "cut", *words[1:]]) == 0
    assert f"the run in cut {_UNFINISHED}; until then its model is taken as it is" in caplog.messages


def test_damaged_run_is_a_clear_error(tiny_run, tmp_path, capsys):
    import shutil

    folder = tmp_path / "damaged"
    shutil.copytree(tiny_run, folder, ignore=shutil.ignore_patterns("checkpoints"))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    request = tmp_path / "r.jsonl"
    request.write_text('{"history": [], "target": "a", "time": 1}\n')
    assert main(["predict", str(folder), "--input", str(request)]) == 2
    assert "model.safetensors is cut off: its header declares" in capsys.readouterr().err
    weights = load_file(tiny_run / "model.safetensors")
    weights.pop("head.out.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert main(["predict", str(folder), "--input", str(request)]) == 2
    assert "instead of" in capsys.readouterr().err
    (folder / "lmctr_manifest.json").unlink()
    assert main(["predict", str(folder), "--input", str(request)]) == 2
    assert "model.safetensors lacks weights of the model: head.out.weight" in capsys.readouterr().err
    for name in ("model.safetensors", "processor_config.json", "config.json"):
        (folder / name).rename(folder / "away")
        for words in (["predict", str(folder), "--input", str(request)], ["evaluate", str(folder)]):
            assert main(words) == 2
            assert f"{folder} has no {name}" in capsys.readouterr().err
        (folder / "away").rename(folder / name)


# ---- predict ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log():
    return tiny_log()


def test_predict_reproduces_the_scores_of_the_training_in_order(tiny_run, tmp_path, log):
    """Raw texts through the command line give what the cached catalogue gave in training."""
    table = pq.read_table(tiny_run / "predictions" / "test.parquet")
    events = table["event"].to_pylist()
    answers = predict(tiny_run, tmp_path, [request_of(log, event, id=event) for event in events], "--batch-size", "3")
    assert [answer["id"] for answer in answers] == events
    logits = np.array([answer["logit"] for answer in answers])
    np.testing.assert_allclose(logits, table["logit"].to_numpy(), atol=1e-4)
    np.testing.assert_allclose([answer["probability"] for answer in answers], 1 / (1 + np.exp(-logits)), atol=1e-9)


def test_predict_candidates_equal_single_targets(tiny_run, tmp_path, log):
    titles = log.catalogue["title"].to_pylist()[:7]
    request = request_of(log, 19)
    single = [{**request, "target": title} for title in titles]
    request.pop("target")
    many = {**request, "candidates": [titles[0], *({"text": title} for title in titles[1:])]}
    answers = predict(tiny_run, tmp_path, [many, *single, {**many, "history": []}], "--batch_size", "4")
    np.testing.assert_allclose(answers[0]["logits"], [answer["logit"] for answer in answers[1:8]], atol=1e-5)
    assert len(answers[8]["probabilities"]) == 7
    assert "id" not in answers[0]


def test_predict_streams(tiny_run, tmp_path, log, monkeypatch, capsys):
    """Answers come before the input has ended, and blank lines are skipped."""
    from lmctr.runs.answers.predict import answers_for
    from lmctr.runs.answers.requests import read_objects
    from lmctr.runs.loading import load_run

    line = json.dumps(request_of(log, 5)) + "\n"
    read_lines = []

    def endless():
        while True:
            read_lines.append(1)
            yield line
            yield "\n"

    answers = answers_for(*load_run(tiny_run), batch_size=2).scored(read_objects(endless(), "pipe"))
    first = [next(answers)[1].item() for _ in range(20)]
    assert first == pytest.approx(
        [first[0]] * 20, abs=1e-6
    )  # a processor may round the rows of a batch each in its own way
    assert len(read_lines) <= 40
    monkeypatch.setattr(sys, "stdin", io.StringIO(line))
    assert main(["predict", str(tiny_run), "--input", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["logit"] == pytest.approx(first[0], abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: "{" + json.dumps(r), "not valid JSON"),
        (lambda r: "[1]", "a request is a JSON object, got list"),
        (lambda r: json.dumps({**r, "hystory": []}), "unknown key 'hystory' in the request; did you mean 'history'"),
        (
            lambda r: json.dumps({"target": "a", "time": 1}),
            "the request has no 'history'; [] for a new user, on a server also the user_id",
        ),
        (lambda r: json.dumps({**r, "candidates": ["a"]}), 'either "target"'),
        (lambda r: json.dumps({"history": [], "time": 1}), 'either "target"'),
        (lambda r: json.dumps({"history": [], "time": 1, "candidates": []}), "at least one item"),
        (lambda r: json.dumps({**r, "time": "now"}), "time must be a number of seconds, got 'now'"),
        (lambda r: json.dumps({**r, "target": 5}), "a target is a text"),
        (
            lambda r: json.dumps({**r, "target": {"text": 5}}),
            'target is a text or {"text": ...}, got {"text": 5}; this model reads the texts of items as \'{title}\' writes them',
        ),
        (
            lambda r: json.dumps({**r, "target": {"item": 1, "title": "Heat"}}),
            'got {"item": 1, "title": "Heat"}; this model reads the texts of items as \'{title}\' writes them',
        ),
        (
            lambda r: json.dumps({**r, "time": 1_700_000_000_000}),
            "outside the years up to 9999. Is it in milliseconds",
        ),
        (lambda r: json.dumps({**r, "history": "none"}), "history must be a list of behaviours"),
        (lambda r: json.dumps({**r, "history": ["a"]}), "each behaviour of the history is an object"),
        (lambda r: json.dumps({**r, "target": "x " * 999}), "line 3: target: the prompt's head and the target alone"),
        (
            lambda r: json.dumps({"history": [], "time": 1, "candidates": ["a", "x " * 999]}),
            "line 3: candidates[1]: the prompt's head and the target alone",
        ),
        (lambda r: json.dumps({**r, "time": 0}), "line 3: history: behaviour 0 of the history has time"),
        (lambda r: json.dumps({**r, "time": 0}), "not before the target's time"),
        (lambda r: json.dumps({**r, "history": r["history"][::-1]}), "sort the history by time"),
        (lambda r: json.dumps({**r, "history": [{**r["history"][0], "feedback": "loved"}]}), "feedback 'loved'"),
        (lambda r: json.dumps({**r, "history": [{"time": 1}]}), "has no 'text'"),
    ],
)
def test_predict_errors_name_the_line(tiny_run, tmp_path, log, capsys, change, message):
    good = request_of(log, 15)
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(good) + "\n\n" + change(good) + "\n" + json.dumps(good) + "\n")
    assert main(["predict", str(tiny_run), "--input", str(source), "--output", str(tmp_path / "out.jsonl")]) == 2
    error = capsys.readouterr().err
    assert f"{source}, line 3: " in error
    assert message in error


def test_predict_odd_but_legal_requests(tiny_run, tmp_path, log):
    """Empty and null texts, no history, special tokens in the text, a very long history."""
    behaviour = {"text": "x", "time": 1, "feedback": None}
    long_history = [{**behaviour, "time": time} for time in range(10_000)]
    requests = [
        {"history": [], "target": "", "time": 1},
        {"history": [{**behaviour, "text": None}], "target": "a", "time": 2},
        {"history": [{**behaviour, "text": "[SINK] [CLS] [SEP]"}], "target": "[PAD]", "time": 2},
        {"history": long_history, "target": "a", "time": 10_000},
    ]
    answers = predict(tiny_run, tmp_path, requests)
    assert all(np.isfinite(answer["logit"]) for answer in answers)


def test_behaviours_that_max_length_drops_are_told(tiny_run, tmp_path, capsys, caplog):
    """As trainings tell it: by `lmctr predict` and `Run.predict` of all requests, by a server once."""
    run = lmctr.runs.load(tiny_run)
    longest = run.processor.effective_max_length
    lines = []
    for words in (1, longest // 2):
        history = [{"text": "crime " * words, "time": time, "feedback": "chosen"} for time in (1, 2, 3)]
        lines.append({"history": history, "candidates": [{"text": "crime"}, {"text": "war"}], "time": 4})
    dropped = [
        run.processor(histories=[line["history"]], targets=["war"], times=[4], return_num_dropped=True)["num_dropped"]
        for line in lines
    ]
    assert [int(count) > 0 for count in dropped] == [False, True]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[0], lines[0]]))
    words = f"25.0% of requests lost behaviours to max_length ({longest})"
    assert main(["predict", str(tiny_run), "--input", str(tmp_path / "r.jsonl"), "--output", str(tmp_path / "o")]) == 0
    assert capsys.readouterr().err.rstrip().endswith(f"; {words}")
    run.predict([lines[0]])
    assert "max_length" not in caplog.text
    run.predict([lines[1]])
    assert f"100.0% of requests lost behaviours to max_length ({longest})" in caplog.text
    caplog.clear()
    served = ServedModel(str(tiny_run))
    for line in (lines[0], lines[1], lines[1]):
        served.score([(served.check(line), None)])
    assert caplog.text.count(f"a request lost behaviours to max_length ({longest})") == 1
    caplog.clear()
    served = ServedModel(str(tiny_run))  # the histories of kept users
    for line, told in ((lines[0], 0), (lines[1], 1), (lines[1], 1)):
        state = served.new_state()
        state.extend(line.pop("history"))
        served.score([(served.check(line, has_state=True), state)])
        line["history"] = state.history
        assert caplog.text.count(f"a request lost behaviours to max_length ({longest})") == told


def test_requests_of_texts_mark_single_targets():
    assert text_request({"history": [], "target": "a", "time": 1.5}, "x")["single"] is True
    request = text_request({"history": [], "candidates": ["a", {"text": "b"}], "time": 1}, "x")
    assert request["candidates"] == [{"text": "a"}, {"text": "b"}]
    assert request["single"] is False


def test_missing_input_file(tiny_run, capsys):
    assert main(["predict", str(tiny_run), "--input", "/nowhere/at/all.jsonl"]) == 2
    assert "--input /nowhere/at/all.jsonl: no such file" in capsys.readouterr().err


def test_a_json_error_has_one_line_number(tiny_run, tmp_path, capsys):
    source = tmp_path / "in.jsonl"
    source.write_text('\n{"history": [,]}\n')
    assert main(["predict", str(tiny_run), "--input", str(source)]) == 2
    assert f"{source}, line 2: not valid JSON: Expecting value at column 14\n" in capsys.readouterr().err


def test_a_file_that_is_no_text(tiny_run, tmp_path, capsys):
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\xff\xfe\x00")
    assert main(["predict", str(tiny_run), "--input", str(source)]) == 2
    assert f"{source}: not UTF-8 text, from about line 1 on" in capsys.readouterr().err


def test_a_table_for_a_run_that_reads_json_lines(tiny_run, tmp_path, capsys):
    source = tmp_path / "rows.csv"
    source.write_text("user,item\n1,2\n")  # rows are joined with the run's log, by user, item and time
    assert main(["predict", str(tiny_run), "--input", str(source)]) == 2
    assert f"{source}: no column 'time'; its columns are ['user', 'item']" in capsys.readouterr().err


@pytest.mark.parametrize("before", [None, "an earlier answer\n"])
def test_a_bad_line_leaves_no_half_output(tiny_run, tmp_path, log, capsys, before):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps(request_of(log, 15)) + "\n{}\n")
    if before is not None:
        target.write_text(before)
    assert main(["predict", str(tiny_run), "--input", str(source), "--output", str(target)]) == 2
    assert (target.read_text() if target.exists() else None) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"in.jsonl", "out.jsonl"}
    assert main(["predict", str(tiny_run), "--input", str(source), "--output", str(tmp_path / "no" / "o.jsonl")]) == 2
    assert f"there is no folder {tmp_path / 'no'}" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_device_that_is_not_there(tiny_run, capsys, device):
    assert main(["predict", str(tiny_run), "--input", "-", "--device", device]) == 2
    error = capsys.readouterr().err
    assert f"error: --device {device}: " in error
    assert "accepted here: cpu" in error
