"""`lmctr benchmark retrieval` on tiny models."""

import json
from dataclasses import replace

import pytest
import torch

from lmctr.benchmarks import retrieval as benchmark_retrieval
from lmctr.benchmarks.options import RetrievalBenchmark
from lmctr.benchmarks.retrieval import ARMS, LOSS_ARMS, as_markdown
from lmctr.benchmarks.retrieval import benchmark_retrieval as measure
from lmctr.cli.main import main

QUICK = replace(RetrievalBenchmark(quick=True).sized(), quick=False)


def test_all_ways_give_the_same_scores_and_are_timed():
    threads = torch.get_num_threads()
    result = measure(replace(QUICK, repeats=2))
    assert torch.get_num_threads() == threads
    assert {family: list(found["arms"]) for family, found in result["scoring"].items()} == {
        family: list(ways) for family, ways in ARMS.items()
    }
    for found in result["scoring"].values():
        assert found["arms"]["naive"]["speedup"] == 1.0
        assert all(len(arm["seconds"]["all"]) == 2 for arm in found["arms"].values())
        assert found["largest_difference"] < 1e-5 < 1e-3 < found["spread"]
    assert result["scoring"]["retrieval_mlp"]["mlp_gflop_per_request"] == pytest.approx(
        7 * 2 * (23 * 8 + 8 * 6 + 6) / 1e9
    )
    assert {count: list(found["arms"]) for count, found in result["losses"].items()} == {
        count: list(LOSS_ARMS) for count in (3, 5)
    }
    assert "| retrieval_mlp | split, cached: " in as_markdown(result)


def test_the_ratio_is_of_medians(monkeypatch):
    times = {"naive": [6.0, 8.0, 7.0], "split, cached": [0.5, 1.0, 2.0]}
    monkeypatch.setattr(
        benchmark_retrieval,
        "in_turn",
        lambda ways, repeats, **_: {name: (way(), times.get(name, [1.0, 1.0, 1.0]))[1] for name, way in ways.items()},
    )
    result = measure(replace(QUICK, repeats=3))
    assert result["scoring"]["two_tower"]["arms"]["split, cached"]["speedup"] == 7.0
    assert result["losses"][5]["arms"]["ARF"]["milliseconds_per_impression"] == 1e3 / 4


def test_different_scores_are_an_error(monkeypatch):
    monkeypatch.setattr(benchmark_retrieval, "_TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="please report this"):
        measure(QUICK)


@pytest.mark.parametrize("suffix", ["json", "md"])
def test_the_command_prints_and_writes(tmp_path, capsys, suffix):
    output = tmp_path / "out" / f"retrieval.{suffix}"
    assert main(["benchmark", "retrieval", "--quick", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "| two_tower | split, cached: " in printed
    text = output.read_text()
    if suffix == "json":
        assert set(json.loads(text)["scoring"]) == set(ARMS)
    else:
        assert text == printed


@pytest.mark.parametrize(
    "words", [["--ads", "0"], ["--hidden-units", "8", "0"], ["--num-ads", "0"], ["--output", "a.txt"]]
)
def test_bad_options(words, capsys):
    assert main(["benchmark", "retrieval", *words]) != 0
    assert words[0] in capsys.readouterr().err
