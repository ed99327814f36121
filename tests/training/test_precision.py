"""`training.bf16: auto`: the trial, the choice and what keeps it."""

import pytest
import torch
from torch import nn

import lmctr.runs
from lmctr.runs import training
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.precision import LEAST_GAIN, bf16_gain
from lmctr.utils.files import read_json
from lmctr.utils.measure import has_bf16_units

RECIPE = {
    "data": {
        "name": "synthetic_table",
        "options": {"num_rows": 600, "num_categorical": 3, "num_numeric": 2, "vocab_size": 60, "num_pairs": 1},
        "baselines": False,
    },
    "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [8]},
    "training": {"epochs": 1, "per_device_train_batch_size": 64, "bf16": "auto", "use_cpu": True, "seed": 0},
}


class Clocked(nn.Module):
    """Steps that take longer in one of the two precisions."""

    def __init__(self, clock, slow):
        super().__init__()
        self.weight, self.clock, self.slow = nn.Parameter(torch.ones(())), clock, slow

    def forward(self):
        self.clock.append(self.clock[-1] + (3.0 if torch.is_autocast_enabled("cpu") == self.slow else 1.5))
        return {"loss": self.weight * 2}


@pytest.mark.parametrize(("slow", "gain"), [(True, 0.5), (False, 2.0)])
def test_gain_is_the_ratio_of_the_two_precisions(monkeypatch, slow, gain):
    clock = [0.0]
    monkeypatch.setattr("lmctr.training.precision.time.perf_counter", lambda: clock[-1])
    model = Clocked(clock, slow)
    assert bf16_gain(model, {}, repeats=3) == gain
    assert len(clock) == 1 + 2 * 4


def test_units_are_those_that_the_processor_names(monkeypatch):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    assert not has_bf16_units("cpu")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert has_bf16_units("cpu")


@pytest.mark.parametrize(
    ("units", "gain", "chosen"), [(False, None, False), (True, LEAST_GAIN - 0.01, False), (True, LEAST_GAIN, True)]
)
def test_a_run_computes_as_the_trial_says_and_goes_on_so(tmp_path, monkeypatch, capsys, units, gain, chosen):
    tried, seen = [], []
    monkeypatch.setattr(training, "has_bf16_units", lambda device: units)
    monkeypatch.setattr("lmctr.runs.evaluation.has_bf16_units", lambda device: units)

    def trial(model, batch):
        tried.append((model.training, len(batch["labels"])))
        return gain

    monkeypatch.setattr(training, "bf16_gain", trial)
    trainer = training.CTRTrainer

    class Watched(trainer):
        def __init__(self, *args, **options):
            seen.append(options["args"].bf16)
            super().__init__(*args, **options)

    monkeypatch.setattr(training, "CTRTrainer", Watched)
    run = lmctr.runs.train(RECIPE, output_dir=tmp_path / "run")
    assert seen == [chosen]
    assert tried == ([(True, 64)] if units else [])
    assert read_json(tmp_path / "run" / "checkpoints" / "precision.json")["bf16"] is chosen
    assert f"bf16 auto: {'bfloat16' if chosen else 'float32'}" in capsys.readouterr().out
    assert run.recipe.training["bf16"] == "auto"
    assert 0 <= run.evaluate("test")["auc"] <= 1
    (tmp_path / "run" / "metrics.json").unlink()  # as if it had been killed: the choice is not made again
    monkeypatch.setattr(training, "bf16_gain", lambda model, batch: pytest.fail("tried again"))
    lmctr.runs.train(RECIPE, output_dir=tmp_path / "run")
    assert seen == [chosen] * 2


def test_shared_tables_are_not_tried(tmp_path, monkeypatch):
    """The first process tries alone, and would hold whole tables."""
    monkeypatch.setattr(training, "has_bf16_units", lambda device: True)
    monkeypatch.setattr(training, "bf16_gain", lambda model, batch: pytest.fail("tried"))
    monkeypatch.setattr(training.Training, "_several", True)
    shared = {"training.shard_tables": True, "training.embedding_optimizer": "lazy_adam"}
    lmctr.runs.train(RECIPE, output_dir=tmp_path / "run", overrides=shared)
    assert "shard_tables" in read_json(tmp_path / "run" / "checkpoints" / "precision.json")["reason"]


def test_other_words_are_refused(tmp_path):
    with pytest.raises(ValueError, match="bf16 must be true, false or 'auto', got 'perhaps'"):
        CTRTrainingArguments(str(tmp_path), bf16="perhaps")
    with pytest.raises(ValueError, match=r"training\.bf16"):
        lmctr.runs.train(RECIPE, output_dir=tmp_path / "run", overrides={"training.bf16": "perhaps"})
