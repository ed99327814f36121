"""The trainer on rows of several candidates: trained on SUMI rows, measured on one candidate per row."""

import numpy as np
import pytest
import torch

from lmctr import ASTROConfig, ASTROForCTR, SequenceProcessor
from lmctr.data import SequenceCollator, SequenceDataset, SequenceView, split_log
from lmctr.data.synthetic.sequence import synthetic_sequence_log
from lmctr.evaluation.metrics import auc
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.trainer import CTRTrainer


def make(tmp_path, tasks=("label",), **arguments):
    log = synthetic_sequence_log(num_users=40, num_items=30, events_per_user=60, num_topics=2, scenario_flip=0)
    splits = split_log(log)
    processor = SequenceProcessor.fit(log, splits.train, tasks=tasks, item_features=["genres"])
    view = SequenceView(log, processor)
    torch.manual_seed(0)
    config = ASTROConfig(
        **processor.model_config_values(),
        sequence_length=120,
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=1,
    )
    trainer = CTRTrainer(
        ASTROForCTR(config),
        CTRTrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=7,
            per_device_eval_batch_size=50,
            stage1_epochs=0,
            stage2_epochs=1,
            learning_rate=3e-3,
            report_to="none",
            disable_tqdm=True,
            **arguments,
        ),
        data_collator=SequenceCollator(view),
        train_dataset=SequenceDataset(view, splits.train, 5, same_scenario=True),
        eval_dataset=SequenceDataset(view, splits.test),
        processing_class=processor,
    )
    return trainer, view


def test_training_and_exact_metrics(tmp_path):
    trainer, view = make(tmp_path)
    trainer.train()
    metrics = trainer.evaluate()
    dataset = trainer.eval_dataset
    with torch.no_grad():
        logits = trainer.model.eval()(**view.batch(dataset.rows)).logits.numpy()
    assert metrics["eval_auc"] == pytest.approx(float(auc(dataset.labels, logits)), abs=1e-6)
    assert "eval_loss" in metrics
    assert (tmp_path / f"checkpoint-{trainer.state.global_step}" / "sequence_items.parquet").is_file()


def test_the_loss_is_the_mean_over_real_candidates(tmp_path):
    """Padding of rows counts nowhere: the divisor is the number of labels of the global batch."""
    trainer, view = make(tmp_path)
    batch = view.batch(trainer.train_dataset.rows[:9])
    divisor = trainer._get_num_items_in_batch([batch], torch.device("cpu"))
    assert divisor == (trainer.train_dataset.rows[:9] >= 0).sum() < 45
    trainer.model.eval()
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=divisor)
        whole = trainer.model(**batch).loss
    assert loss == pytest.approx(float(whole), rel=1e-6)


def test_several_tasks_train(tmp_path):
    trainer, _ = make(tmp_path, tasks=("label", "like"))
    assert np.isfinite(trainer.train().training_loss)
    found = trainer.predict(trainer.eval_dataset)
    assert found.predictions.shape == (len(trainer.eval_dataset), 2)
    assert np.array_equal(found.label_ids, trainer.eval_dataset.labels)
    for task, name in enumerate(("label", "like")):
        expected = float(auc(found.label_ids[:, task], found.predictions[:, task]))
        assert found.metrics[f"test_{name}_auc"] == pytest.approx(expected, abs=1e-6)
    assert found.metrics["test_auc"] == found.metrics["test_label_auc"] != found.metrics["test_like_auc"]


@pytest.mark.parametrize("tasks", [("label",), ("label", "like")])
def test_measuring_rows_of_several_samples_gives_the_metrics_of_single_rows(tmp_path, tasks):
    trainer, view = make(tmp_path, tasks)
    single = trainer.eval_dataset
    gathered = SequenceDataset(view, single.events, 3)
    assert gathered.num_samples == len(single) == len(gathered.events)
    assert (~gathered.candidate_mask).any()  # some rows are not full
    own, other = trainer.predict(single), trainer.predict(gathered)
    order, again = np.argsort(single.events), np.argsort(gathered.events)
    np.testing.assert_allclose(own.predictions[order], other.predictions[again], atol=1e-5)
    np.testing.assert_array_equal(own.label_ids[order], other.label_ids[again])
    for key in ("test_auc", "test_grouped_auc", "test_log_loss", *(f"test_{t}_auc" for t in tasks[1:])):
        assert own.metrics[key] == pytest.approx(other.metrics[key], abs=1e-6), key
    assert other.metrics["test_num_samples"] == len(single)


def test_the_rate_of_training_counts_samples(tmp_path):
    trainer, _ = make(tmp_path)
    dataset = trainer.train_dataset
    assert dataset.num_samples > 2 * len(dataset)
    metrics = trainer.train().metrics
    samples = metrics["train_samples_per_second"] * metrics["train_runtime"]
    assert samples == pytest.approx(dataset.num_samples, rel=0.05)
