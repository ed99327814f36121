import numpy as np
import pytest
import torch

from lmctr.training.sampler import (
    EvaluationBatchSampler,
    FillerCollator,
    FillerDataset,
    GlobalBatchSampler,
    filler,
)


def samplers(num_samples, batch, processes, **kwargs):
    return [
        GlobalBatchSampler(num_samples, batch, num_processes=processes, process_index=index, **kwargs)
        for index in range(processes)
    ]


@pytest.mark.parametrize("num_samples", [1, 2, 31, 32, 33, 64, 100])
@pytest.mark.parametrize(("processes", "accumulation"), [(1, 1), (2, 1), (3, 2), (4, 1), (1, 4)])
@pytest.mark.parametrize("strategy", ["group_by_length", "random", "sequential"])
def test_each_sample_exactly_once_per_epoch(num_samples, processes, accumulation, strategy):
    lengths = np.random.default_rng(0).integers(1, 99, num_samples)
    group = samplers(num_samples, 4, processes, accumulation_steps=accumulation, lengths=lengths, strategy=strategy)
    for epoch in range(2):
        seen = []
        for sampler in group:
            sampler.set_epoch(epoch)
            batches = list(sampler)
            assert len(batches) == len(sampler) == len(group[0])
            assert all(1 <= len(batch) <= 4 for batch in batches)
            seen += [row for batch in batches for row in batch if row >= 0]
        assert sorted(seen) == list(range(num_samples))


@pytest.mark.parametrize("num_samples", [33, 37, 64])
def test_global_batches_do_not_depend_on_processes_or_accumulation(num_samples):
    lengths = np.random.default_rng(0).integers(1, 99, num_samples)
    expected = None
    for batch, processes, accumulation in [(8, 1, 1), (4, 2, 1), (2, 4, 1), (4, 1, 2), (2, 2, 2), (1, 8, 1)]:
        group = samplers(num_samples, batch, processes, accumulation_steps=accumulation, lengths=lengths, seed=5)
        per_process = []
        for sampler in group:
            sampler.set_epoch(3)
            per_process.append(list(sampler))
        steps = list(zip(*per_process))
        merged = []
        for start in range(0, len(steps), accumulation):
            rows = [row for step in steps[start : start + accumulation] for part in step for row in part]
            merged.append(sorted(row for row in rows if row >= 0))
            # what only fills a batch touches no other rows of tables
            assert {filler(row) for row in rows if row < 0} <= set(merged[-1])
        expected = merged if expected is None else expected
        assert merged == expected


def test_order_follows_seed_and_epoch_only():
    def order(seed, epoch):
        sampler = GlobalBatchSampler(50, 8, lengths=np.arange(50) % 7, seed=seed)
        sampler.set_epoch(epoch)
        torch.manual_seed(epoch)  # the global state must not matter
        np.random.seed(epoch)
        return list(sampler)

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)


def test_length_grouping_saves_padding_and_still_shuffles():
    lengths = np.random.default_rng(0).integers(5, 500, 2000)

    def padded(strategy):
        sampler = GlobalBatchSampler(2000, 16, lengths=lengths, strategy=strategy)
        return sum(len(batch) * lengths[batch].max() for batch in sampler)

    assert padded("group_by_length") < 1.1 * lengths.sum() < padded("random")
    firsts = [lengths[batch].mean() for batch in GlobalBatchSampler(2000, 16, lengths=lengths)]
    assert abs(np.corrcoef(np.arange(len(firsts)), firsts)[0, 1]) < 0.3  # batches do not come sorted by length


def test_sequential_keeps_the_dataset_order():
    sampler = GlobalBatchSampler(7, 3, strategy="sequential", lengths=np.arange(7)[::-1])
    assert list(sampler) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("num_samples", [1, 2, 5, 16, 17, 50])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_evaluation_batches_gather_back_to_the_dataset_order(num_samples, processes):
    lengths = np.random.default_rng(1).integers(1, 99, num_samples)
    group = [
        EvaluationBatchSampler(num_samples, 4, num_processes=processes, process_index=index, lengths=lengths)
        for index in range(processes)
    ]
    gathered = []
    for step in zip(*[list(sampler) for sampler in group]):
        assert len({len(part) for part in step}) == 1  # equal sizes can be gathered
        gathered += [row for part in step for row in part]
    assert gathered == group[0].gathered_rows.tolist()
    real = [row for row in gathered if row >= 0]
    assert sorted(real) == list(range(num_samples))
    assert (np.diff(lengths[real]) <= 0).all()


def test_filler_rows_get_the_ignored_label():
    dataset = [10.0, 11.0, 12.0]

    def collate(rows):
        return {"x": torch.tensor(rows), "labels": torch.ones(len(rows))}

    rows, collator = FillerDataset(dataset), FillerCollator(collate)
    batch = collator([rows[1], rows[filler(2)]])
    assert batch["x"].tolist() == [11.0, 12.0]
    assert batch["labels"].tolist() == [1.0, -100.0]
    batch = collator([rows[filler(0)], rows[filler(0)]])
    assert batch["x"].tolist() == [10.0, 10.0]
    assert batch["labels"].tolist() == [-100.0, -100.0]


def test_empty_sets_are_errors():
    with pytest.raises(ValueError, match="training set is empty"):
        GlobalBatchSampler(0, 4)
    with pytest.raises(ValueError, match="evaluation set is empty"):
        EvaluationBatchSampler(0, 4)
