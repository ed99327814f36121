"""The benchmark of ASTRO on a tiny log: equal logits in every arm, and results that can be written down."""

import json

import pytest

from lmctr.benchmarks import sequence as benchmark_sequence
from lmctr.benchmarks.options import SequenceBenchmark
from lmctr.cli.main import main
from lmctr.data.synthetic.sequence import synthetic_sequence_log

TINY = {
    "length": 20,
    "candidates": 3,
    "request": 30,
    "samples": 12,
    "batch_size": 6,
    "hidden_size": 8,
    "repeats": 1,
}


def test_arms_give_equal_logits():
    log = synthetic_sequence_log(num_users=10, num_items=20, events_per_user=60)
    result = benchmark_sequence.benchmark_sequence(
        SequenceBenchmark(**TINY, lengths=[10, 20], block_counts=[1, 4]), log
    )
    assert result["largest_difference"] < 1e-5
    for part in ("training", "scoring"):
        assert list(result[part]) == ["mumi", "sumi", "cache", "blocks"]
        assert result[part]["mumi"]["speedup"] == 1
        assert all(arm["speedup"] > 0 for arm in result[part].values())
    assert [(p["length"], p["blocks"]) for p in result["growth"]] == [(10, 2), (20, 2), (20, 1), (20, 4)]
    assert all(p["counted_flops"] == p["formula_flops"] for p in result["growth"])
    text = benchmark_sequence.as_markdown(result)
    assert "| blocks |" in text
    assert "10 to 20" in text


def test_command(tmp_path, capsys):
    words = [
        "benchmark",
        "sequence",
        "--length",
        "16",
        "--candidates",
        "2",
        "--request",
        "10",
        "--samples",
        "4",
        "--batch-size",
        "4",
        "--hidden-size",
        "8",
        "--repeats",
        "1",
    ]
    output = tmp_path / "out.json"
    assert main([*words, "--output", str(output)]) == 0
    assert json.loads(output.read_text())["settings"]["length"] == 16
    assert "speed-up" in capsys.readouterr().out
    assert main(["benchmark", "sequence", "--length", "0"]) == 2
    assert "--length must be at least 1" in capsys.readouterr().err
    assert main(["benchmark", "sequence", "--output", "x.txt"]) == 2
    assert "--output" in capsys.readouterr().err


def test_a_log_without_active_users():
    log = synthetic_sequence_log(num_users=4, num_items=10, events_per_user=20)
    with pytest.raises(ValueError, match="no user of synthetic_sequence has 3 samples after 20 events"):
        benchmark_sequence.benchmark_sequence(SequenceBenchmark(**TINY), log)
