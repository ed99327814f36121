"""Effective ranks measured during training."""

import json

import numpy as np
import pytest
import torch
from transformers import default_data_collator

from lmctr import DeepFMConfig, DeepFMForCTR, RankMixerConfig, RankMixerForCTR
from lmctr.analysis.effective_rank import measure_effective_rank
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.diagnostics import EffectiveRankCallback
from lmctr.training.trainer import CTRTrainer


class Rows(torch.utils.data.Dataset):
    """Rows of four fields; the label depends on two of them."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 6, (count, 4), generator=generator)
        self.labels = ((self.ids[:, 0] + self.ids[:, 1]) % 2).float()
        self.labels[:2] = torch.tensor([0.0, 1.0])

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, row):
        return {"input_ids": self.ids[row], "labels": self.labels[row]}


def make_trainer(folder, callback=None, epochs=2, model=None, **values):
    torch.manual_seed(0)
    if model is None:
        model = RankMixerForCTR(RankMixerConfig(vocab_sizes=[6] * 4, embedding_dim=4, num_tokens=4, token_dim=4))
    arguments = CTRTrainingArguments(
        output_dir=str(folder),
        stage1_epochs=0,
        stage2_epochs=epochs,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        learning_rate=1e-2,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        **values,
    )
    return CTRTrainer(
        model=model,
        args=arguments,
        data_collator=default_data_collator,
        train_dataset=Rows(64, 0),
        eval_dataset=Rows(40, 1),
        callbacks=[callback] if callback else [],
    )


def lines(folder):
    return [json.loads(line) for line in (folder / "effective_rank.jsonl").read_text().splitlines()]


STAGES = ["embedding", "tokens", "mixing_1", "ffn_1", "mixing_2", "ffn_2"]


def test_every_evaluation(tmp_path):
    callback = EffectiveRankCallback(max_samples=20)
    trainer = make_trainer(tmp_path, callback)
    trainer.train()
    written = lines(tmp_path)
    assert written == callback.history
    assert [entry["step"] for entry in written] == [4, 8]
    assert all([row["stage"] for row in entry["stages"]] == STAGES for entry in written)
    found = measure_effective_rank(trainer.model, trainer.get_eval_dataloader(), max_samples=20)
    last = (
        written[-1] if trainer.state.best_global_step in (None, 8) else written[0]
    )  # the best model is loaded at the end
    np.testing.assert_allclose([row["stable"] for row in last["stages"]], found.mean(), rtol=1e-4)
    logged = [entry for entry in trainer.state.log_history if "effective_rank/ffn_2" in entry]
    assert [entry["step"] for entry in logged] == [4, 8]
    assert logged[1]["effective_rank/ffn_2"] == written[1]["stages"][-1]["stable"]
    assert written[0]["stages"][-1]["stable"] != written[1]["stages"][-1]["stable"]


def test_several_evaluation_sets_are_measured_once(tmp_path):
    """On the first one's samples; an evaluation behind the training is measured too."""
    trainer = make_trainer(tmp_path, effective_rank_samples=20)
    trainer.eval_dataset = {"near": trainer.eval_dataset, "far": Rows(40, 2)}
    trainer.args.metric_for_best_model = "eval_near_auc"
    trainer.train()
    assert [entry["step"] for entry in lines(tmp_path)] == [4, 8]
    trainer.evaluate(trainer.eval_dataset["near"])
    assert [entry["step"] for entry in lines(tmp_path)] == [4, 8, 8]


def test_given_batches_and_kind(tmp_path):
    """Given batches are measured before the first step too, in place of the evaluation data."""
    batch = {"input_ids": torch.randint(0, 6, (8, 4)), "labels": torch.ones(8)}
    trainer = make_trainer(tmp_path, EffectiveRankCallback([batch], kind="entropy"), epochs=1)
    start = measure_effective_rank(trainer.model, [batch])
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "effective_rank/ffn_2" in entry]
    assert [entry["step"] for entry in logged] == [0, 4]
    for entry, found in zip(logged, (start, measure_effective_rank(trainer.model, [batch]))):
        values = [entry[f"effective_rank/{stage}"] for stage in STAGES]
        np.testing.assert_allclose(values, found.mean("entropy"), rtol=1e-5)


def test_measuring_leaves_the_training_as_it_is(tmp_path):
    parameters = []
    for name, callback in (
        ("with", EffectiveRankCallback([{"input_ids": torch.ones(2, 4, dtype=torch.int64)}])),
        ("without", None),
    ):
        trainer = make_trainer(tmp_path / name, callback, epochs=1)
        trainer.train()
        parameters.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*parameters))


def test_by_an_argument(tmp_path):
    """`effective_rank_samples` is the recipes' way to the callback."""
    trainer = make_trainer(tmp_path, effective_rank_samples=20)
    trainer.train()
    written = lines(tmp_path)
    assert [entry["step"] for entry in written] == [4, 8]
    assert all([row["stage"] for row in entry["stages"]] == STAGES for entry in written)


def test_a_training_that_goes_on_is_measured_once_and_the_same(tmp_path):
    """Dropout draws what it would have drawn, and what was measured behind the checkpoint is written once."""
    parameters = []
    for checkpoint in (None, str(tmp_path / "checkpoint-4")):
        torch.manual_seed(0)
        model = DeepFMForCTR(DeepFMConfig(vocab_sizes=[6] * 4, embedding_dim=4, dropout=0.3))
        values = {"save_total_limit": None, "load_best_model_at_end": False, "effective_rank_samples": 20}
        trainer = make_trainer(tmp_path, epochs=3, model=model, **values)
        trainer.train(resume_from_checkpoint=checkpoint)
        parameters.append([parameter.detach().clone() for parameter in model.parameters()])
        assert [entry["step"] for entry in lines(tmp_path)] == [4, 8, 12]
    assert all(torch.equal(one, two) for one, two in zip(*parameters))


def test_an_argument_that_nothing_can_follow(tmp_path):
    with pytest.raises(ValueError, match="effective_rank_samples must be at least 1, got 0"):
        CTRTrainingArguments(str(tmp_path), effective_rank_samples=0)
    with pytest.raises(ValueError, match="effective_rank_samples needs evaluations"):
        CTRTrainingArguments(str(tmp_path), effective_rank_samples=8, eval_strategy="no", save_strategy="no")
    with pytest.raises(ValueError, match="effective_rank_samples=8, but Linear names no stages"):
        CTRTrainer(
            torch.nn.Linear(1, 1), CTRTrainingArguments(str(tmp_path), effective_rank_samples=8), data_collator=list
        )


def test_input_that_is_not_accepted():
    with pytest.raises(ValueError, match="max_samples: 0"):
        EffectiveRankCallback(max_samples=0)
    with pytest.raises(ValueError, match="'rank' is not known"):
        EffectiveRankCallback(kind="rank")
