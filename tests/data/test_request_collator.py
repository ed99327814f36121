"""`RequestCollator`: labelled requests of a `datasets.Dataset`, in lmctr's trainer and in transformers' own."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from sequence_rows import sequence_log
from transformers import Trainer, TrainingArguments

import lmctr
from lmctr.data import RequestCollator

sys.path.append(str(Path(__file__).parents[1] / "hub"))
from tiny_run import make_model, make_tokenizer

ITEMS = ["Heat (Crime)", "Toy Story", "Casino"]


def text_rows(count=12):
    """Requests whose behaviours do not all say their feedback."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(count):
        history = [{"text": ITEMS[rng.integers(3)], "time": 10 * place} for place in range(number % 4)]
        history = [entry | ({"feedback": "liked"} if place % 2 else {}) for place, entry in enumerate(history)]
        label = float(number % 2)
        rows.append({"history": history, "target": {"text": ITEMS[number % 3]}, "time": 100, "labels": label})
    return rows


def text_model():
    return make_model(), lmctr.CTRSinkProcessor(make_tokenizer(), num_behaviors=5, feedback="none")


def event_model():
    processor = lmctr.SequenceProcessor.fit(sequence_log())
    torch.manual_seed(0)
    values = processor.model_config_values()
    return lmctr.DINForCTR(lmctr.DINConfig(**values, embedding_dim=4, initializer_range=0.5)), processor


def event_rows(count=12):
    rows = []  # with `labels`, by which CTRTrainer measures
    for number in range(count):
        history = [{"item": 100 + place, "time": 3 + place} for place in range(number % 3)]
        rows.append(
            {"history": history, "target": {"item": 100 + number % 4}, "time": 90, "labels": float(number % 2)}
        )
    return rows


def loss_of(model, processor, rows, kind):
    """By the processor and the model themselves."""
    histories, times = [row["history"] for row in rows], [row["time"] for row in rows]
    if kind == "text":
        batch = processor(histories=histories, targets=[row["target"] for row in rows], times=times)
        labels = torch.tensor([row["labels"] for row in rows])
    else:
        batch = processor(histories=histories, candidates=[[row["target"]] for row in rows], times=times)
        labels = torch.tensor([[row["labels"]] for row in rows])
    with torch.no_grad():
        return model.eval()(**batch, labels=labels).loss


@pytest.mark.parametrize("kind", ["text", "events"])
def test_batches_of_a_data_set_are_those_of_the_processor(kind, tmp_path):
    (model, processor), rows = (text_model(), text_rows()) if kind == "text" else (event_model(), event_rows())
    collator = RequestCollator(processor)
    data = Dataset.from_list(rows)
    for given in (rows, *(list(data.with_format(name)) for name in (None, "torch", "numpy", "arrow", "pandas"))):
        with torch.no_grad():
            found = model.eval()(**collator(given)).loss
        torch.testing.assert_close(found, loss_of(model, processor, rows, kind))
    settings = {
        "use_cpu": True,
        "max_steps": 3,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "learning_rate": 0.01,
    }
    before = found.item()
    plain = Trainer(model, TrainingArguments(str(tmp_path), remove_unused_columns=False, **settings), collator, data)
    plain.train()
    assert loss_of(model, processor, rows, kind).item() < before
    own = lmctr.CTRTrainer(model, lmctr.CTRTrainingArguments(str(tmp_path), use_cpu=True), collator, eval_dataset=data)
    measured = own.evaluate()
    assert measured["eval_loss"] == pytest.approx(loss_of(model, processor, rows, kind).item(), rel=1e-5)


def test_rows_of_a_table_with_weights():
    fields = [{"name": "ad", "type": "categorical"}, {"name": "weight", "type": "numeric"}]
    processor = lmctr.TabularFeatureProcessor(fields, label="click")
    rows = [
        {"ad": f"a{number % 5}", "weight": number, "click": number % 2, "sample_weight": 1 + number}
        for number in range(20)
    ]
    processor.fit(rows)
    batch = RequestCollator(processor)(rows[:3])
    expected = processor(rows[:3])
    assert torch.equal(batch["input_ids"], expected["input_ids"])
    for name in ("torch", "arrow"):
        formatted = RequestCollator(processor)(list(Dataset.from_list(rows[:3]).with_format(name)))
        assert all(torch.equal(formatted[name], values) for name, values in batch.items())
    assert torch.equal(batch["numeric_values"], expected["numeric_values"])
    assert batch["labels"].tolist() == [0, 1, 0]
    assert batch["sample_weight"].tolist() == [1, 2, 3]


def test_what_is_refused():
    collator, rows = RequestCollator(text_model()[1]), text_rows(3)
    for key in ("history", "target", "time", "labels"):
        name = "label" if key == "labels" else key
        with pytest.raises(ValueError, match=rf"row 1 of the batch has no '{name}'; it has "):
            collator([rows[0], {k: v for k, v in rows[1].items() if k != key}])
    left = Dataset.from_list(rows).select_columns(["labels"])
    with pytest.raises(
        ValueError, match=r"no 'history'; it has labels; transformers' Trainer .* set remove_unused_columns=False"
    ):
        collator(list(left))
    for label, message in (
        ("yes", "row 0 of the batch: the label 'yes' is no number"),
        (None, "no 'label'; it has history, target, time$"),
    ):
        with pytest.raises(ValueError, match=message):
            collator([rows[0] | {"labels": label}])
    for weighted in (rows[:1], rows[1:]):
        given = [row | ({"sample_weight": 2.0} if row in weighted else {}) for row in rows]
        with pytest.raises(ValueError, match=rf"row {len(weighted) % 2} of the batch has no 'sample_weight'"):
            collator(given)
    with pytest.raises(ValueError, match=r"rows: expected a list of requests with their labels, got \{'labels'"):
        collator(left[:2])
    with pytest.raises(ValueError, match="row 0 of the batch: expected a dict, got str 'labels'; give a list of rows"):
        collator(["labels"])
    with pytest.raises(ValueError, match="int reads no requests; accepted: one of a text, sequence or tabular family"):
        RequestCollator(3)


@pytest.mark.parametrize("kind", ["text", "events"])
def test_arrays_where_no_tensors_are_asked_for(kind):
    processor = text_model()[1] if kind == "text" else event_model()[1]
    row = {"text": text_rows, "events": event_rows}[kind](3)[2]
    targets = {"targets": [row["target"]]} if kind == "text" else {"candidates": [[row["target"]]]}
    arrays = processor(histories=[row["history"]], times=torch.tensor([row["time"]]), return_tensors=None, **targets)
    tensors = processor(histories=[row["history"]], times=[row["time"]], **targets)
    assert set(arrays) == set(tensors)
    for name, values in arrays.items():
        assert isinstance(values, np.ndarray)
        assert torch.equal(torch.from_numpy(values), tensors[name])
