"""How `lmctr predict` chooses between requests scored together and on their own; `--requests FILE`, another spelling of `--input FILE`."""

import io
import itertools
import json
import shutil
import sys

import pytest
import torch
from cli_helpers import error_of, read, request_of, tiny_log

from lmctr.cli.main import main
from lmctr.runs.answers.histories import HistoryAnswers
from lmctr.runs.answers.predict import answers_for
from lmctr.runs.loading import load_run


def answers_of(run, tmp_path, requests, *words):
    source, target = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    source.write_text("".join(json.dumps(request) + "\n" for request in requests))
    assert main(["predict", str(run), "--requests", str(source), "--output", str(target), *words]) == 0
    return [json.loads(line) for line in target.read_text().splitlines()]


@pytest.fixture(scope="module")
def decoder_run(tiny_run, tmp_path_factory):
    """The tiny run with an untrained Qwen2 in the place of its model. Read it only."""
    from transformers import AutoProcessor

    from lmctr import CTRSinkConfig, CTRSinkForCTR

    folder = tmp_path_factory.mktemp("decoder") / "run"
    shutil.copytree(tiny_run, folder, ignore=shutil.ignore_patterns("checkpoints", "reference*"))
    processor, config = AutoProcessor.from_pretrained(folder), read(folder, "config.json")
    text = {
        "model_type": "qwen2",
        "vocab_size": len(processor.tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "initializer_range": 0.3,
    }
    kept = ("sink_kind", "sink_signal", "sink_order", "feedback", "num_sink_buckets", "sink_embedding_dim")
    torch.manual_seed(0)
    model = CTRSinkForCTR(CTRSinkConfig(text_config=text, **{key: config[key] for key in kept}))
    model.save_pretrained(folder)
    return folder


def requests_of(log, count=4):
    """Requests of one user in time order, so that each history goes on from the one before; then one of another user."""
    user = log.user[log.sample_events()[0]]
    events = [event for event in log.sample_events() if log.user[event] == user]
    other = next(event for event in log.sample_events()[::-1] if log.user[event] != user)
    titles = log.catalogue["title"].to_pylist()
    requests = []
    for number, event in enumerate([*events[3 : 3 + count], other]):
        request = request_of(log, event, id=f"r{number}")
        del request["target"]
        requests.append({**request, "candidates": titles[number : number + 5]})
    return requests


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_the_scores_do_not_depend_on_the_way(request, kind, tmp_path, capsys, monkeypatch):
    run = request.getfixturevalue("tiny_run" if kind == "encoder" else "decoder_run")
    requests = requests_of(tiny_log())
    requests.append({**requests[0], "candidates": [{"text": "Casino"}]})
    single = {key: value for key, value in requests[0].items() if key != "candidates"} | {"target": "Casino"}
    requests.append(single)
    chosen = answers_of(run, tmp_path, requests, "--batch-size", "5")
    error = capsys.readouterr().err
    assert "7 requests scored" in error
    assert ("the history is encoded once" in error) == (kind == "decoder")
    assert ("sees the candidate" in error) == (kind == "encoder")  # five candidates fill a batch
    for alone in (True, False):
        monkeypatch.setattr(HistoryAnswers, "goes_alone", lambda self, request, alone=alone: alone)
        found = answers_of(run, tmp_path, requests)
        assert ("7 requests scored (" in capsys.readouterr().err) == alone
        assert [answer.get("id") for answer in found] == [answer.get("id") for answer in chosen]
        for own, other in zip(found, chosen):
            assert own.keys() == other.keys()
            for key in own.keys() - {"id"}:
                assert own[key] == pytest.approx(other[key], abs=1e-4)
    assert len({round(value, 3) for value in found[0]["logits"]}) > 1


def test_which_requests_go_alone(tiny_run, decoder_run):
    first = {"history": [{"text": "Heat", "time": 1}], "candidates": ["a"], "time": 9}
    more = {**first, "history": [*first["history"], {"text": "Babe", "time": 2}]}
    several, many = {**first, "candidates": ["a", "b"]}, {**first, "candidates": ["a"] * 3}
    requests = [first, more, first, more, more, {**first, "history": []}, several, many]
    for run, expected in (
        (decoder_run, [False, True, False, True, True, False, True, True]),
        (tiny_run, [False, False, False, False, False, False, False, True]),
    ):
        answers = answers_for(*load_run(run), batch_size=3)
        for request, alone in zip(requests, expected, strict=True):
            assert answers.goes_alone(request) == alone
            answers.last = request


def test_a_history_that_goes_on_is_extended(decoder_run, tmp_path, monkeypatch):
    from lmctr.serving import UserState

    made, extended = [], []
    original = UserState.extend

    def extend(self, behaviors, *more):
        (extended if self.num_seen else made).append(len(behaviors))
        original(self, behaviors, *more)

    monkeypatch.setattr(UserState, "extend", extend)
    requests = requests_of(tiny_log())
    lengths = [len(request["history"]) for request in requests]
    answers_of(decoder_run, tmp_path, requests)
    assert made == [lengths[0], lengths[4]]
    assert extended == [later - earlier for earlier, later in itertools.pairwise(lengths[:4])]


def test_standard_input_and_output(decoder_run, monkeypatch, capsys):
    line = json.dumps({"history": [], "candidates": ["Heat", "Babe"], "time": 5})
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"\n{line}\n\n"))
    assert main(["predict", str(decoder_run), "--requests", "-", "--max_tokens", "1"]) == 0
    (answer,) = (json.loads(printed) for printed in capsys.readouterr().out.splitlines())
    assert len(answer["logits"]) == len(answer["probabilities"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch_size", "0"], "--batch-size must be at least 1"),
        (["--id-column", "x"], "--id-column is for runs that read tables"),
        (["--max_tokens", "0"], "--max-tokens must be at least 1"),
        (["--output", "scores.parquet"], "--output scores.parquet: answers to requests are JSON lines, no table"),
    ],
)
def test_bad_options(tiny_run, tmp_path, capsys, words, message):
    (tmp_path / "in.jsonl").write_text("")
    assert message in error_of(capsys, "predict", tiny_run, "--requests", tmp_path / "in.jsonl", *words)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"history": [], "candidates": [], "time": 5}, "candidates must be a list of at least one item"),
        ({"history": [{"text": "x", "time": 9}], "candidates": ["x"], "time": 5}, "has time 9, not before"),
        ({"history": [{"text": "x"}], "candidates": ["x"], "time": 5}, "[0] has no 'time'"),
        ({"history": [], "candidate": ["x"], "time": 5}, "did you mean 'candidates'"),
    ],
)
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_bad_lines_are_named(request, kind, tmp_path, capsys, line, message):
    run = request.getfixturevalue("tiny_run" if kind == "encoder" else "decoder_run")
    good = {"history": [], "candidates": ["x"], "time": 5}
    path = tmp_path / "in.jsonl"
    path.write_text(f"{json.dumps(good)}\n{json.dumps(line)}\n")
    error = error_of(capsys, "predict", run, "--requests", path, "--output", tmp_path / "out.jsonl")
    assert f"{path}, line 2: " in error
    assert message in error


def test_input_or_requests(tiny_run, capsys):
    for words in ([], ["--input", "a", "--requests", "b"]):
        with pytest.raises(SystemExit):
            main(["predict", str(tiny_run), *words])
        assert "--requests" in capsys.readouterr().err
