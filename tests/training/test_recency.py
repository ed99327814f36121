import numpy as np
import pytest
import torch
from test_trainer import plain_loss
from toy_training import ToyCollator, ToyDataset, make_model, make_trainer

from lmctr import SequenceProcessor
from lmctr.data import SequenceCollator, SequenceDataset, SequenceView, split_log
from lmctr.data.synthetic.sequence import synthetic_sequence_log
from lmctr.training.recency import WeightedCollator, recency_weights
from lmctr.training.sampler import FillerDataset


def plain_weights(times, half_life):
    newest = max(times)
    return [0.5 ** ((newest - time) / 86400 / half_life) for time in times]


def test_weights_are_the_formula():
    times = np.random.default_rng(0).integers(10**9, 10**9 + 10**8, 50)
    found = recency_weights(times, 30.0)
    np.testing.assert_allclose(found, plain_weights(times.tolist(), 30.0), rtol=1e-6)
    assert found.max() == 1.0
    halved = recency_weights(np.array([0, 86400 * 7]), 7.0)
    np.testing.assert_allclose(halved, [0.5, 1.0])
    assert recency_weights(np.array([0, 10**9]), 1.0).tolist() == [2.0**-100, 1.0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_loss_is_the_mean_by_recency(tmp_path, weighted, accumulation):
    """Over each global batch of 16, the last one of 11; the data's own weights are multiplied. Metrics know nothing of it."""
    dataset = ToyDataset(75, weighted=weighted)
    evaluation = ToyDataset(33, seed=1)
    model = make_model(dropout=0.0).eval()
    trainer = make_trainer(
        tmp_path,
        train=dataset,
        evaluation=evaluation,
        model=model,
        learning_rate=0.0,
        per_device_train_batch_size=16 // accumulation,
        gradient_accumulation_steps=accumulation,
        logging_steps=1,
        stage1_epochs=0,
        stage2_epochs=1,
        recency_half_life=10.0,
    )
    batches = trainer.get_train_dataloader().batch_sampler.global_batches(0)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    recency = np.array(plain_weights(dataset.times.tolist(), 10.0))
    assert len(logged) == len(batches) == 5
    for value, rows in zip(logged, batches):
        loss, weight = plain_loss(model.eval(), dataset, rows, ToyCollator(dataset))
        assert value == pytest.approx((recency[rows] * loss).sum() / (recency[rows] * weight).sum(), abs=1e-5)
    rows = np.arange(33)
    loss, _ = plain_loss(model.eval(), evaluation, rows, ToyCollator(evaluation))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss.mean(), abs=1e-5)


@pytest.mark.parametrize("candidates", [1, 4])
def test_rows_of_a_log(candidates):
    """Rows of several samples have a weight for each; padding leaves the newest sample alone."""
    log = synthetic_sequence_log(num_users=20, num_items=30, events_per_user=23, num_topics=2, scenario_flip=0)
    train = split_log(log).train
    view = SequenceView(log, SequenceProcessor.fit(log, train))
    dataset = SequenceDataset(view, train, candidates)
    times = dataset.times
    assert times.shape == dataset.rows.shape
    real = dataset.rows >= 0
    assert real.all() == (candidates == 1)
    assert np.array_equal(times[real], log.time[dataset.rows[real]])
    weighted = FillerDataset(dataset, recency_weights(times, 20.0))
    places = [0, 3, len(dataset) - 1]
    batch = WeightedCollator(SequenceCollator(view))(weighted.__getitems__(places))
    expected = 0.5 ** ((log.time[train].max() - times[places]) / 86400 / 20.0)
    counted = batch["labels"].numpy() != -100
    assert batch["sample_weight"].shape == batch["labels"].shape
    np.testing.assert_allclose(batch["sample_weight"].numpy()[counted], expected[counted], rtol=1e-5)
    one_by_one = WeightedCollator(SequenceCollator(view))([weighted[place] for place in places])
    assert all(torch.equal(batch[key], one_by_one[key]) for key in batch)


def test_samples_without_times_are_an_error(tmp_path):
    dataset = ToyDataset()
    dataset.times = None
    trainer = make_trainer(tmp_path, train=dataset, recency_half_life=10.0)
    with pytest.raises(ValueError, match=r"recency_half_life=10\.0 needs the time of each training sample"):
        trainer.train()


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_values_out_of_range(tmp_path, value):
    with pytest.raises(ValueError, match="recency_half_life must be a number of days above 0"):
        make_trainer(tmp_path, recency_half_life=value)
