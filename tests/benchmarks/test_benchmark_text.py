"""`lmctr benchmark text` on a small synthetic log."""

import json

import numpy as np
import pytest
import yaml

from lmctr.benchmarks.options import TextBenchmark
from lmctr.benchmarks.text import _raw_rows, _whole_text, benchmark_text, padding_share
from lmctr.cli.main import main
from lmctr.data import synthetic_log
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.training.tokenizers import train_tokenizer


@pytest.fixture(scope="module")
def log():
    return synthetic_log(num_users=25, num_items=60, events_per_user=20, seed=1)


@pytest.mark.parametrize("feedback", ["none", "inline", "groups"])
def test_measures_the_same_samples_in_three_ways(log, feedback, monkeypatch):
    clock = iter(np.cumsum(np.ones(1000)))
    monkeypatch.setattr("lmctr.benchmarks.harness.time.perf_counter", lambda: float(next(clock)))
    result = benchmark_text(
        TextBenchmark(feedback=feedback, num_behaviors=[3, 6], samples=70, batch_size=16, repeats=3), log
    )
    assert [one["num_behaviors"] for one in result["measurements"]] == [3, 6]
    for one in result["measurements"]:
        for rates in one["samples_per_second"].values():
            assert rates == {"median": 70.0, "all": [70.0] * 3}  # 70 samples in one tick of the clock
        assert one["ratio"] == {"whole": 1.0, "pieces": 1.0}
        cached, whole = one["tokens_per_sample"]["cached"], one["tokens_per_sample"]["whole"]
        assert whole == pytest.approx(cached, rel=0.05)  # the ways tokenise the same content
        assert one["padding_share"]["sorted by length"] < one["padding_share"]["as drawn"]
        assert one["view_bytes"] > 0
    fewer, more = (one["tokens_per_sample"]["cached"] for one in result["measurements"])
    assert fewer < more


def test_the_whole_text_is_the_sample(log):
    tokenizer = train_tokenizer([str(t) for t in log.catalogue.column("title").to_pylist()], "wordpiece", 600)
    for feedback in ("none", "inline", "groups"):
        processor = CTRSinkProcessor(tokenizer, feedback=feedback, num_behaviors=4, prompt="generic/en")
        rows = _raw_rows(log, processor, log.sample_events()[:40], 4)
        for row, history, target, when in zip(range(40), *rows):
            ids = processor(histories=[history], targets=[target], times=[when])["input_ids"][0].tolist()
            text = _whole_text(processor, history, target, when)
            assert processor.tokenizer(text)["input_ids"] == ids, row  # WordPiece does not care for blanks


def test_padding_share():
    assert padding_share(np.array([2, 4, 1]), 2) == 1 - 7 / 9
    assert padding_share(np.array([3, 3]), 8) == 0


@pytest.mark.parametrize("suffix", ["json", "md"])
def test_the_command_prints_and_writes(log, tmp_path, capsys, suffix):
    log.save(tmp_path / "log")
    output = tmp_path / "out" / f"result.{suffix}"
    words = ["benchmark", "text", "--data", str(tmp_path / "log"), "--num-behaviors", "4", "--samples", "40"]
    assert main([*words, "--repeats", "2", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "| 4 | assemble from cached token ids |" in printed
    assert printed.count("x |") == 2
    if suffix == "md":
        assert output.read_text() == printed
    else:
        result = json.loads(output.read_text())
        assert len(result["measurements"][0]["samples_per_second"]["cached"]["all"]) == 2
        assert result["command"].startswith("lmctr benchmark text --data")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
        (["--num-behaviors", "0"], "--num-behaviors must be at least 1"),
        (["--output", "x.csv"], "must end in .json or .md"),
        (["--data", "movielans"], "Did you mean 'movielens'"),
        (["--feedback", "words"], "feedback='words' is not accepted"),
        (["--tokenizer", "package:no_such_package_here"], "is not installed"),
    ],
)
def test_bad_arguments(words, message, capsys):
    assert main(["benchmark", "text", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["text", "train", "scoring"])
@pytest.mark.usefixtures("warm_processes")
def test_a_catalogue_with_titles_alone_is_read(verb, tmp_path, monkeypatch, capsys):
    """As `lmctr init` describes it: the prompt of films, by which the generated log is read, wants genres."""
    rows = [
        f"u{user},{item},{1_700_000_000 + 60 * item + user},{(user + item) % 2}"
        for user in range(40)
        for item in range(30)
    ]
    (tmp_path / "clicks.csv").write_text("\n".join(["user,item,time,clicked", *rows]) + "\n")
    (tmp_path / "items.csv").write_text(
        "\n".join(["item,title", *(f"{item},Thing {item}" for item in range(30))]) + "\n"
    )
    schema = {
        "name": "clicks",
        "events": "clicks.csv",
        "columns": {"user": "user", "item": "item", "time": "time", "label": "clicked"},
        "catalogue": {"path": "items.csv", "columns": ["title"]},
    }
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema))
    small = {
        "text": ["--samples", "64", "--repeats", "1", "--num-behaviors", "4"],
        "train": ["--quick", "--num-behaviors", "4"],
        "scoring": ["--quick", "--num-behaviors", "4", "--candidates", "8"],
    }
    assert main(["benchmark", verb, "--data", str(tmp_path / "schema.yaml"), *small[verb]]) == 0
    heading = {"text": "generic/en", "train": "## Training CTR-Sink", "scoring": "## Scoring one user"}
    assert heading[verb] in capsys.readouterr().out
