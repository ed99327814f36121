"""Training on impressions: what counts in the loss of a global batch, fillers, and Adagrad as the paper has it."""

import numpy as np
import pytest
import torch
from retrieval_tester import FIELDS, LOSSES, make_batch
from torch.utils.data import ConcatDataset, Subset

from lmctr import RetrievalMLPConfig, RetrievalMLPForCTR
from lmctr.data import ImpressionCollator, ImpressionDataset, ImpressionStore, ImpressionView, synthetic_cascade
from lmctr.evaluation.ranking_evaluator import RankingSettings, evaluate_ranking
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.sampler import Filler, FillerCollator
from lmctr.training.trainer import CTRTrainer

ADAGRAD = {"optim": "adagrad", "optim_args": "eps=1e-8", "learning_rate": 0.01, "weight_decay": 0.0}


class Impressions:
    """Row numbers of one batch; collated by taking its rows."""

    def __init__(self, config, count=24):
        self.batch = make_batch(config, counts=[1 + row % 5 for row in range(count)])
        self.labels = np.array([row % 2 for row in range(count)], dtype=np.float32)

    def __len__(self):
        return len(self.batch["ad_mask"])

    def __getitem__(self, row):
        return int(row)

    def collate(self, rows):
        return {name: values[rows].clone() for name, values in self.batch.items()}


def make_trainer(folder, loss="arf", **arguments):
    torch.manual_seed(0)
    model = RetrievalMLPForCTR(RetrievalMLPConfig(**FIELDS, loss=loss))
    data = Impressions(model.config)
    arguments = {
        "stage2_epochs": 1,
        "per_device_train_batch_size": 8,
        "train_sampling_strategy": "random",
        "eval_strategy": "no",
        "save_strategy": "no",
        "warmup_steps": 0,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 1,
        **arguments,
    }
    args = CTRTrainingArguments(str(folder), **arguments)
    return CTRTrainer(model, args, data_collator=data.collate, train_dataset=data), data


@pytest.mark.parametrize("loss", LOSSES)
def test_a_global_batch_counts_impressions(tmp_path, loss):
    """The divisor is the number of impressions whose loss is defined, not of ads; the parts' losses sum to the batch's."""
    trainer, data = make_trainer(tmp_path, loss)
    parts = [data.collate(list(range(start, start + 6))) for start in range(0, 24, 6)]
    items = trainer._get_num_items_in_batch(parts, torch.device("cpu"))
    undefined = {"arf": 0, "bce": 0, "pairwise": 5, "list": 15}[
        loss
    ]  # single ads; fewer than four ads, so that no v reaches 3
    assert items.item() == 24 - undefined
    model = trainer.model.eval()
    total = sum(trainer.compute_loss(model, part, num_items_in_batch=items) for part in parts)
    torch.testing.assert_close(total, model(**data.batch).loss)


def test_fillers_have_no_ads(tmp_path):
    trainer, data = make_trainer(tmp_path)
    plain = data.collate([3, 4])
    filled = FillerCollator(data.collate)([3, 4, Filler(3), Filler(3)])
    assert not filled["ad_mask"][2:].any()
    model = trainer.model.train()
    expected, found = model(**plain), model(**filled)
    torch.testing.assert_close(found.loss, expected.loss)
    # To the rounding of a matrix product, whose order of sums may depend on the number of rows.
    torch.testing.assert_close(found.logits[:2], expected.logits, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("embedding_optimizer", ["dense", "rowwise_adagrad"])
def test_adagrad_as_specified(tmp_path, embedding_optimizer):
    """Learning rate 0.01 and epsilon 1e-8 by recipe keys: w - lr g / (sqrt(sum g^2) + eps) for every parameter, alpha among them."""
    trainer, data = make_trainer(
        tmp_path, embedding_optimizer=embedding_optimizer, per_device_train_batch_size=24, **ADAGRAD
    )
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.model.train()
    trainer.model(**data.batch).loss.backward()
    gradients = {name: parameter.grad.to_dense() for name, parameter in trainer.model.named_parameters()}
    trainer.model.zero_grad()
    trainer.model.load_state_dict(before, strict=False)
    trainer.train()
    kinds = [trainer.optimizer.optimizer, *getattr(trainer.optimizer.optimizer, "parts", [])]
    dense = next(optimizer for optimizer in kinds if isinstance(optimizer, torch.optim.Adagrad))
    assert all(group["lr"] == 0.01 and group["eps"] == 1e-8 for group in dense.param_groups)
    assert all(group["weight_decay"] == group["lr_decay"] == 0 for group in dense.param_groups)
    assert "impression_loss.arf.alpha" in before
    for name, parameter in trainer.model.named_parameters():
        square = gradients[name] ** 2
        if embedding_optimizer != "dense" and "table" in name:
            square = square.mean(1, keepdim=True)
        expected = before[name] - 0.01 * gradients[name] / (square.sqrt() + 1e-8)
        large = gradients[name].abs() > 1e-4  # the sign of what is rounding only may differ
        torch.testing.assert_close(parameter[large], expected[large], atol=1e-5, rtol=1e-4, msg=name)
        assert large.any() or name == "head.bias", name  # ARF does not see a common shift of the scores


def impression_trainer(folder, weighted=False, **arguments):
    source = synthetic_cascade(120, 30, 60, ads_per_impression=[12, 16], num_matched=40, num_preranked=24)
    store = ImpressionStore.build(source)
    if weighted:
        store.weight = np.linspace(0.5, 2, len(store), dtype=np.float32)
    view = ImpressionView(store)
    torch.manual_seed(0)
    config = RetrievalMLPConfig(**store.processor.model_config_values(), embedding_dim=4, hidden_units=[8])
    args = CTRTrainingArguments(str(folder), stage2_epochs=1, use_cpu=True, disable_tqdm=True, **arguments)
    parts = {part: ImpressionDataset(view, getattr(store.splits, part)) for part in ("train", "validation")}
    return CTRTrainer(
        RetrievalMLPForCTR(config), args, ImpressionCollator(view), parts["train"], eval_dataset=parts["validation"]
    )


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_impressions_are_measured(tmp_path, weighted):
    trainer = impression_trainer(tmp_path, weighted, metric_for_best_model="eval_revenue_ratio")
    trainer.train()
    metrics, dataset = trainer.evaluate(), trainer.eval_dataset
    with torch.no_grad():
        batch = dataset.view.batch(dataset.rows)
        logits = trainer.model.eval()(**batch).logits
    mask = batch["ad_mask"]
    assert dataset.num_samples == int(mask.sum()) > len(dataset)
    flat = (batch["labels"][mask].numpy(), logits[mask].numpy(), batch["ecpm"][mask].numpy())
    weight = batch.get("sample_weight")
    for name, value in evaluate_ranking(mask.sum(1), *flat, RankingSettings(), weight).items():
        assert metrics[f"eval_{name}"] == pytest.approx(value, abs=1e-6)
    assert trainer.state.best_metric == pytest.approx(metrics["eval_revenue_ratio"])
    assert trainer.predict(dataset).predictions.shape == (dataset.num_samples,)
    some = [4, 0, 3]
    found = trainer.evaluate(ConcatDataset([Subset(dataset, [place]) for place in some]))
    expected = trainer.evaluate(ImpressionDataset(dataset.view, dataset.rows[some]))
    for name in RankingSettings().titles():
        assert found[f"eval_{name}"] == expected[f"eval_{name}"]


def test_a_metric_that_impressions_lack_is_told_before_training(tmp_path):
    trainer = impression_trainer(tmp_path)
    with pytest.raises(
        ValueError, match="metric_for_best_model='eval_auc' is no metric of impressions; accepted: eval_rev"
    ):
        trainer.train()
    assert trainer.state.global_step == 0
