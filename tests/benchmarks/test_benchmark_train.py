"""`lmctr benchmark train` on a tiny model."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lmctr.benchmarks import harness
from lmctr.benchmarks import train as benchmark_train
from lmctr.benchmarks.harness import in_own_process
from lmctr.benchmarks.inputs import read_log
from lmctr.benchmarks.options import TrainBenchmark
from lmctr.benchmarks.train import ARMS, as_markdown
from lmctr.cli.main import main

TINY = TrainBenchmark(
    hidden_size=16,
    layers=1,
    heads=2,
    intermediate_size=32,
    num_behaviors=2,
    max_length=64,
    batch_size=4,
    batches=2,
    no_memory=True,
)


def test_rates_ratios_and_padding(monkeypatch):
    """With a clock of which every reading is one tick later, each phase of a batch takes a known number of ticks."""
    clock = iter(range(10**6))
    monkeypatch.setattr(harness.time, "perf_counter", lambda: float(next(clock)))
    result = benchmark_train.benchmark_train(TINY)
    assert list(result["arms"]) == list(ARMS)
    for one in result["arms"].values():
        assert one["forward"] == {"median": 4.0, "all": [4.0] * 3}  # 8 samples in 2 ticks
        assert one["forward_backward"]["median"] == 4.0
        assert one["step"]["median"] == 8 / 6  # 3 readings after its beginning in each of 2 batches
    assert result["settings"]["samples"] == 8
    assert result["bias_costs"][""] == {"forward": 0.0, "forward_backward": 0.0}
    assert set(result["speedup"].values()) == {1.0}
    padding = result["padding"]
    assert 0 <= padding["batches of like length"] < 0.1
    assert padding["batches of like length"] < padding["random batches, padded to their longest"]
    assert padding["padded to the longest allowed"] == pytest.approx(1 - padding["tokens_per_sample"] / 64)
    assert "Reported" not in as_markdown(result)
    result["memory"] = {"on": {"before": None, "peak": None}}  # of a system that does not tell
    assert "Peak memory, on: not told by this system." in as_markdown(result)


def test_the_arms_train_the_same_samples():
    view, events = benchmark_train._data(TINY)
    lengths = view.lengths(events)
    like = benchmark_train._batches(TINY, lengths)
    padded = benchmark_train._shuffled(like)
    assert sorted(np.concatenate(like)) == sorted(np.concatenate(padded))
    assert all(np.ptp(lengths[batch]) <= 4 for batch in like)
    made = {
        name: benchmark_train._Training(TINY, arm, view, events, padded if arm.padded else like)
        for name, arm in ARMS.items()
    }
    shapes = {name: [tuple(one.batch(rows)["input_ids"].shape) for rows in one.rows] for name, one in made.items()}
    assert shapes["padded"] == [(4, 64)] * 2
    assert shapes["on"] == shapes["off"] == [(4, int(lengths[batch].max())) for batch in like]
    assert (made["on"].model.model.sink_bias is not None, made["off"].model.model.sink_bias) == (True, None)
    dropouts = {name: one.model.config.text_config.attention_probs_dropout_prob for name, one in made.items()}
    assert dropouts["on"] == dropouts["padded"] == 0.1
    assert dropouts["on, no attention dropout"] == 0.0
    before = [parameter.clone() for parameter in made["on"].model.parameters()]
    made["on"].measure(1)
    assert any(not value.equal(own) for value, own in zip(before, made["on"].model.parameters()))


def test_a_log_without_feedback_is_refused(monkeypatch):
    log = read_log(TINY, num_users=5, num_items=30, events_per_user=8)
    plain = replace(log, feedback=np.zeros_like(log.feedback))
    monkeypatch.setattr(benchmark_train, "read_log", lambda *_, **options: plain)
    with pytest.raises(ValueError, match="synthetic has no feedback"):
        benchmark_train.benchmark_train(TINY)


def test_micro_batches_give_the_gradient_of_the_batch():
    settings = replace(TINY, dropout=0.0, batches=1)
    view, events = benchmark_train._data(settings)
    rows = benchmark_train._batches(settings, view.lengths(events))
    stepped = []
    for size in (1, 3, 4):
        own = replace(settings, micro_batch_size=size)
        training = benchmark_train._Training(own, ARMS["on"], view, events, rows)
        assert [len(part) for part in training.cut(rows[0])] == {1: [1] * 4, 3: [3, 1], 4: [4]}[size]
        gradients = []
        training.optimizer.step = lambda own=training, kept=gradients: kept.extend(
            parameter.grad.clone() for parameter in own.model.parameters()
        )
        training.measure(1)
        stepped.append(gradients)
    for gradients in stepped[:2]:
        for own, whole in zip(gradients, stepped[2], strict=True):
            assert torch.allclose(own, whole, rtol=1e-3, atol=1e-6)
    assert sum(float(gradient.abs().sum()) for gradient in stepped[2]) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("warm_processes")
def test_the_peak_is_that_of_the_measured_process():
    """A process of its own, whose peak is not the one of the process that starts it."""
    held = np.ones(10**8 + 5 * 10**7)  # 1.2 GB
    found = in_own_process(benchmark_train.peak_of_arm, TINY.settings(), "on")
    assert held[-1] == 1
    assert 10**8 < found["before"] <= found["peak"] < 10**9


@pytest.mark.slow
@pytest.mark.usefixtures("warm_processes")
def test_the_command_prints_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmark_train, "MEMORY_ARMS", ("padded", "on"))  # each takes a process of its own
    output = tmp_path / "out" / "train.json"
    assert main(["benchmark", "train", "--quick", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "The sink bias adds" in printed
    assert "Peak memory, padded" in printed
    result = json.loads(output.read_text())
    assert result["command"].startswith("lmctr benchmark train --quick")
    assert result["memory"]["on"]["peak"] > 10**7


def test_other_backbones_and_shares_of_a_peak():
    settings = replace(TINY, model_type="qwen2", dtype="bfloat16", batches=1, repeats=1, peak_tflops=1.0)
    result = benchmark_train.benchmark_train(settings)
    assert all(0 < one["share_of_peak"] < 1 for one in result["arms"].values())
    assert "Share of the device's peak" in as_markdown(result)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
        (["--output", "x.csv"], "must end in .json or .md"),
        (["--data", "movielans"], "Did you mean 'movielens'"),
        (["--model-type", "brt"], "model_type='brt'"),
        (["--batches", "100000", "--num-behaviors", "2"], "ask for fewer"),
    ],
)
def test_bad_arguments(words, message, capsys):
    assert main(["benchmark", "train", "--no-memory", *words]) == 2
    assert message in capsys.readouterr().err
