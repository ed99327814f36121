"""`lmctr benchmark scoring` on a tiny model."""

import json
from dataclasses import replace

import pytest

from lmctr.benchmarks import scoring as benchmark_scoring
from lmctr.benchmarks.options import ScoringBenchmark
from lmctr.benchmarks.scoring import ARMS, as_markdown
from lmctr.benchmarks.scoring import benchmark_scoring as measure
from lmctr.cli.main import main

TINY = ScoringBenchmark(
    hidden_size=16,
    layers=1,
    heads=2,
    key_value_heads=1,
    intermediate_size=32,
    num_behaviors=5,
    candidates=6,
    batch_size=4,
    repeats=2,
)


def test_all_ways_give_the_same_scores_and_are_timed():
    result = measure(TINY)
    assert list(result["arms"]) == list(ARMS)[:-1]
    for one in result["arms"].values():
        assert len(one["candidates_per_second"]["all"]) == 2
    assert result["arms"]["row by row"]["speedup"] == 1.0
    assert result["largest_difference"] < 1e-4 < 1e-3 < result["spread"]
    assert "| kept: " in as_markdown(result)


def test_the_speed_is_candidates_by_seconds(monkeypatch):
    monkeypatch.setattr(
        benchmark_scoring,
        "in_turn",
        lambda ways, repeats, **_: {name: (way(), [2.0, 3.0])[1] for name, way in ways.items()},
    )
    result = measure(TINY)
    assert result["arms"]["shared"]["candidates_per_second"] == {"median": 2.5, "all": [3.0, 2.0]}


def test_encoders_have_no_kept_state():
    result = measure(replace(TINY, model_type="bert", sink_signal="recency", repeats=1))
    assert list(result["arms"]) == ["row by row", "batched", "shared"]
    assert "every position of bert sees the candidate" in as_markdown(result)


def test_encoders_share_a_history_that_does_not_see_the_candidate():
    result = measure(replace(TINY, model_type="bert", encoder_prefix=True, repeats=1))
    assert list(result["arms"]) == list(ARMS)[:-1]
    positions = {name: one["positions"] for name, one in result["arms"].items()}
    assert positions["batched"] >= positions["row by row"] > 3 * positions["shared"] > 3 * positions["kept"] > 0
    assert "the history does not see the candidate in this bert" in as_markdown(result)


@pytest.mark.parametrize("model_type", ["qwen2", "bert"])
def test_a_lower_precision_stands_beside_float32(model_type):
    result = measure(replace(TINY, model_type=model_type, sink_signal="recency", dtype="bfloat16", repeats=1))
    names = list(ARMS) if model_type == "qwen2" else ["row by row", "batched", "shared", "float32"]
    assert list(result["arms"]) == names
    assert (
        result["arms"]["float32"]["positions"] == result["arms"]["kept" if "kept" in names else "shared"]["positions"]
    )
    assert result["largest_difference"] > 1e-4


def test_different_scores_are_an_error(monkeypatch):
    monkeypatch.setattr(benchmark_scoring, "_TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="please report this"):
        measure(replace(TINY, repeats=1))


@pytest.mark.parametrize("suffix", ["json", "md"])
def test_the_command_prints_and_writes(tmp_path, capsys, suffix):
    output = tmp_path / "out" / f"scoring.{suffix}"
    assert main(["benchmark", "scoring", "--quick", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "| row by row: a forward pass per candidate |" in printed
    if suffix == "md":
        assert output.read_text() == printed
    else:
        assert json.loads(output.read_text())["command"].startswith("lmctr benchmark scoring --quick")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--candidates", "0"], "--candidates must be at least 1"),
        (["--output", "x.csv"], "must end in .json or .md"),
        (["--data", "movielans"], "Did you mean 'movielens'"),
        (["--sink-signal", "recent"], "sink_signal='recent' is not accepted"),
    ],
)
def test_bad_arguments(words, message, capsys):
    assert main(["benchmark", "scoring", *words]) == 2
    assert message in capsys.readouterr().err
