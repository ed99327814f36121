"""`lmctr benchmark tabular`: what it measures, not how fast."""

import json

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from lmctr.benchmarks.options import TabularBenchmark
from lmctr.benchmarks.tabular import (
    ARMS,
    PHASES,
    Shape,
    as_markdown,
    benchmark_tabular,
    make_batches,
    make_model,
    make_optimizer,
)
from lmctr.cli.main import main
from lmctr.models.families import families
from lmctr.serving.row_scorer import RowScorer
from lmctr.training.optim import GroupedOptimizer

TINY = Shape(batch_size=16, num_categorical=10, num_numeric=5, vocabulary=300, embedding_dim=4)


def run(*words):
    return main(["benchmark", "tabular", "--quick", *words])


def test_every_family_and_arm_is_measured(tmp_path, capsys):
    assert run("--output", str(tmp_path / "speed.json")) == 0
    result = json.loads((tmp_path / "speed.json").read_text())
    assert list(result["families"]) == [family.model_type for family in families("tabular")]
    for family, found in result["families"].items():
        assert list(found["arms"]) == [arm for arm in ARMS if arm != "fused-compile"]
        assert found["parameters"] > 0
        assert found["matmul_gflop_per_step"] > 0 or family == "ffm", family  # FFM has no matrix product
        assert 0 < found["touched_rows"] <= 1
        for values in found["arms"].values():
            assert set(values["milliseconds"]) == set(PHASES)
            assert sum(values["milliseconds"].values()) == pytest.approx(values["step_milliseconds"], rel=1e-6)
            assert values["samples_per_second"] == pytest.approx(32 / values["step_milliseconds"] * 1e3)
    printed = capsys.readouterr().out
    assert printed.count("| rank_elastor |") == len(ARMS) - 1


def test_a_compiled_arm_where_it_is_asked_for(tmp_path, monkeypatch):
    counter, own = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: own(model, backend=counter))
    words = ["--families", "dnn", "--arms", "fused", "fused-compile", "--output", str(tmp_path / "speed.json")]
    assert run(*words) == 0
    assert list(json.loads((tmp_path / "speed.json").read_text())["families"]["dnn"]["arms"]) == words[3:5]
    assert counter.frame_count == 1


def test_growth_and_changes(tmp_path, capsys):
    words = [
        "--families",
        "deepfm",
        "rank_mixer",
        "--arms",
        "lazy",
        "--growth",
        "--output",
        str(tmp_path / "speed.md"),
    ]
    assert run(*words, "--set", "deepfm.hidden_units=[6]") == 0
    text = (tmp_path / "speed.md").read_text()
    for family in ("deepfm", "rank_mixer"):
        assert f"## How {family} grows" in text
    assert (
        text.count("| fields | batch |")
        == text.count("| vocabulary | batch |")
        == text.count("| width | batch |")
        == 2
    )
    model = make_model("deepfm", {"hidden_units": [6]}, TINY)
    assert next(layer.out_features for layer in model.modules() if isinstance(layer, torch.nn.Linear)) == 6


def test_requests_are_read_and_scored_in_two_ways(tmp_path, monkeypatch):
    words = [
        "--families",
        "deepfm",
        "--arms",
        "fused",
        "--requests",
        "1",
        "7",
        "--output",
        str(tmp_path / "speed.json"),
    ]
    assert run(*words) == 0
    result = json.loads((tmp_path / "speed.json").read_text())
    assert [row["candidates"] for row in result["requests"]["deepfm"]] == [1, 7]
    for row in result["requests"]["deepfm"]:
        assert row["ratio"] > 0
        for way in ("rows", "shared"):
            assert row[way].keys() == {"reading", "forward"}
            assert min(row[way].values()) > 0
    assert "## Requests of deepfm" in as_markdown(result)
    score = RowScorer.score
    monkeypatch.setattr(RowScorer, "score", lambda *given: (score(*given)[0] + 1, None, 0))
    with pytest.raises(ValueError, match="the logits of the two ways differ by 1"):
        benchmark_tabular(TabularBenchmark(families=["deepfm"], arms=["fused"], requests=[2], quick=True))


def test_vocabularies_add_up_and_batches_fit_them():
    sizes = Shape().vocab_sizes()
    assert len(sizes) == 26
    assert sum(sizes) == pytest.approx(1_010_000, rel=0.01)
    assert sizes == sorted(sizes)
    (batch,) = make_batches(TINY, torch.device("cpu"), 1)
    assert batch["input_ids"].shape == (16, 10)
    assert batch["numeric_values"].shape == (16, 5)
    assert (batch["input_ids"] >= 2).all()
    assert (batch["input_ids"] < torch.tensor(TINY.vocab_sizes())).all()
    assert set(batch["labels"].tolist()) == {0.0, 1.0}


def test_arms_train_and_some_read_the_rows_of_a_batch_alone():
    (batch,) = make_batches(TINY, torch.device("cpu"), 1)
    for arm in ARMS:
        model = make_model("deepfm", {"hidden_units": [8]}, TINY)
        optimizer = make_optimizer(arm, model)
        assert isinstance(optimizer, GroupedOptimizer) == arm.startswith("lazy")
        losses = []
        for _ in range(30):
            loss = model(**batch).loss
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses[-1] < 0.9 * losses[0], arm
        table = model.model.embedding.groups["4"].table.weight
        assert table.grad.is_sparse == (arm.startswith("lazy") or arm == "fused-rows")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--families", "ctr_sink"], "no tabular family"),
        (["--output", "x.txt"], "must end in .json or .md"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--set", "deepfm=3"], "give FAMILY.KEY=VALUE"),
        (["--families", "deepfm", "--set", "deepfm.hiden_units=[3]"], "hidden_units"),
    ],
)
def test_bad_words(words, message, capsys):
    assert run(*words) == 2
    assert message in capsys.readouterr().err
