"""`pipeline("click-prediction")` against `predict_rows`: every kind of input, from folders and objects, one, several, streams."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, DatasetDict
from sequence_rows import sequence_log
from transformers import AutoModel, pipeline
from transformers.pipelines.pt_utils import KeyDataset

import lmctr
from lmctr.runs.answers import predict_rows

sys.path.append(str(Path(__file__).parents[1] / "hub"))
from tiny_run import make_model, make_tokenizer


@pytest.fixture(scope="module")
def folder(tabular, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    for part in tabular:
        part.save_pretrained(path)
    return str(path)


def logits_of(answers):
    for answer in answers:
        assert set(answer) == {"score", "logit"}
        assert answer["score"] == pytest.approx(1 / (1 + np.exp(-answer["logit"])))
    return [answer["logit"] for answer in answers]


ROWS = [{"ad": "a1", "price": 2.0}, {"ad": "a2", "price": 30.0}, {"ad": None, "price": None}]


def test_rows_of_tables(folder, tabular, tmp_path):
    pipe = pipeline("click-prediction", model=folder, device="cpu", batch_size=2)
    expected = predict_rows(*tabular, ROWS)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_array_equal(predict_rows(*tabular, iter(ROWS)), expected)
    columns, frame = {key: [row[key] for row in ROWS] for key in ROWS[0]}, pd.DataFrame(ROWS).convert_dtypes()
    stream = Dataset.from_dict(columns).to_iterable_dataset()
    for rows in (
        ROWS,
        tuple(ROWS),
        iter(ROWS),
        pa.table(columns),
        columns,
        Dataset.from_dict(columns).with_format("torch")[:3],
        Dataset.from_dict(columns),
        Dataset.from_dict(columns).with_format("torch"),
        stream,
        frame,
        frame.to_dict("records"),
        list(frame.itertuples()),
        [row for _, row in frame.iterrows()],
    ):
        np.testing.assert_allclose(logits_of(list(pipe(rows))), expected, atol=1e-6)
    np.testing.assert_allclose(logits_of(pipe(np.array(ROWS))), expected, atol=1e-6)
    for nothing in (
        [],
        frame[:0],
        pa.table(columns)[:0],
        Dataset.from_dict(columns).select([]),
        {"ad": [], "price": []},
    ):
        assert pipe(nothing) == []
    assert pipe(frame.iloc[0]) == pipe(ROWS[0])
    with pytest.raises(ValueError, match="inputs: a DatasetDict holds several parts; pass one of them: 'test'"):
        pipe(DatasetDict(test=Dataset.from_dict(columns)))
    with pytest.raises(ValueError, match="batch_size: got '2', accepted: an integer from 1"):
        pipe(ROWS, batch_size="2")
    assert pipe(ROWS[0])["logit"] == pytest.approx(float(expected[0]))
    assert pipe(ROWS, batch_size=1) == pipe(ROWS)
    half = pipeline("click-prediction", model=folder, device="cpu", dtype="bfloat16")
    assert half.dtype == torch.bfloat16
    np.testing.assert_allclose(logits_of(half(ROWS)), expected, rtol=0.1)
    pipe.save_pretrained(tmp_path)
    again = pipeline("click-prediction", model=str(tmp_path), device="cpu")
    assert again(ROWS) == pipe(ROWS)


def test_a_row_of_nothing_but_lists_is_one_row():
    processor = lmctr.TabularFeatureProcessor([{"name": "tags", "type": "multi_value"}])
    processor.fit([{"tags": [f"t{number % 5}", "x"], "label": number % 2} for number in range(20)])
    model = lmctr.DNNForCTR(lmctr.DNNConfig(**processor.model_config_values()))
    pipe = pipeline("click-prediction", model=model, processor=processor, device="cpu")
    assert pipe({"tags": ["t1", "t2"]}) == pipe([{"tags": ["t1", "t2"]}])[0]


def test_a_task_without_a_model_asks_for_one():
    with pytest.raises(ValueError, match=r'model is missing: click-prediction has no default.*model="runs/din"'):
        pipeline("click-prediction")


def test_what_does_not_belong_together(folder, tabular):
    other = lmctr.TabularFeatureProcessor(
        [{"name": "ad", "type": "categorical"}, {"name": "price", "type": "numeric"}]
    )
    other.fit([{"ad": f"b{number}", "price": number, "label": number % 2} for number in range(50)])
    with pytest.raises(ValueError, match="processor: the model was trained with a processor of the fingerprint"):
        pipeline("click-prediction", model=folder, processor=other, device="cpu")
    with pytest.raises(ValueError, match="not loaded from a folder or the Hub; give its processor"):
        pipeline("click-prediction", model=tabular[0], device="cpu")
    with pytest.raises(
        FileNotFoundError, match="processor: there is no folder 'no/such/place'; give one, or a Hub id"
    ):
        pipeline("click-prediction", model=folder, processor="no/such/place", device="cpu")
    pipe = pipeline("click-prediction", model=tabular[0], processor=folder, device="cpu")
    with pytest.raises(ValueError, match="inputs: expected a request or row"):
        pipe("a1")
    with pytest.raises(ValueError, match="top_k: the pipeline takes"):
        pipe(ROWS, top_k=1)
    for batch_size in (0, 2.5):
        with pytest.raises(ValueError, match=f"batch_size: got {batch_size}, accepted: an integer from 1"):
            pipe(ROWS, batch_size=batch_size)
    with pytest.raises(
        ValueError, match="model: a DeepFMModel has no head to score with; load it with AutoModelForCTR"
    ):
        pipeline("click-prediction", model=AutoModel.from_pretrained(folder), device="cpu")


def test_a_folder_without_its_processor(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"model has no preprocessor_config\.json: without the processor"):
        lmctr.runs.load(tmp_path / "model")


def test_a_processor_of_another_kind(tabular, tmp_path):
    """Also where neither says by a fingerprint whose the other is."""
    text, tables = (make_model(), lmctr.CTRSinkProcessor(make_tokenizer())), tabular
    for model, processor in ((text[0], tables[1]), (tables[0], text[1])):
        with pytest.raises(
            ValueError, match=rf"processor: a {type(processor).__name__}, but a model of the type .* reads what a"
        ):
            pipeline("click-prediction", model=model, processor=processor, device="cpu")
    other = lmctr.CTRSinkProcessor(make_tokenizer(), num_sink_buckets=text[0].config.num_sink_buckets + 1)
    with pytest.raises(
        ValueError,
        match=r"processor: num_sink_buckets is \d+ in the model's configuration and \d+ in the processor; they come from",
    ):
        pipeline("click-prediction", model=text[0], processor=other, device="cpu")
    text[0].save_pretrained(tmp_path)
    tables[1].save_pretrained(tmp_path)
    with pytest.raises(
        ValueError,
        match="that of a CTR-Sink is 'CTRSinkProcessor'",
    ):
        lmctr.runs.load(tmp_path).predict(ROWS)


def with_a_word():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["zodiac"])
    return tokenizer


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": {"base": "movielens/en", "head": "Films: "}},
        {"tokenizer": with_a_word()},
        {"value_levels": [1.0, 4.0]},
    ],
    ids=["prompt", "vocabulary", "levels"],
)
def test_a_text_processor_with_which_the_ids_mean_something_else(other, tmp_path):
    settings = {"tokenizer": make_tokenizer(), "feedback": "inline", "value_levels": [1.0, 5.0]}
    processor = lmctr.CTRSinkProcessor(**settings)
    model = make_model()
    model.config.feedback, model.config.processor_fingerprint = "inline", processor.fingerprint
    for part in (model, processor):
        part.save_pretrained(tmp_path)
    pipeline("click-prediction", model=str(tmp_path), device="cpu")
    lmctr.CTRSinkProcessor(**settings, max_length=64, num_behaviors=3).save_pretrained(tmp_path)  # lengths are free
    lmctr.runs.load(tmp_path).processor  # noqa: B018
    lmctr.CTRSinkProcessor(**settings | other).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the model was trained with a processor of the fingerprint"):
        lmctr.runs.load(tmp_path).processor  # noqa: B018


def test_a_model_in_training_is_scored_with_as_it_is_when_measured(tabular):
    """Without dropout, and left in its mode."""
    history = [{"text": "Heat (Crime)", "time": 10}, {"text": "Toy Story", "time": 20}]
    request = {"history": history, "target": "Casino", "time": 30}
    model, processor = make_model(), lmctr.CTRSinkProcessor(make_tokenizer(), num_behaviors=5)
    dropping = lmctr.DNNForCTR(
        lmctr.DNNConfig(**{**tabular[1].model_config_values(), "dropout": 0.5}, hidden_units=[16])
    )
    torch.nn.init.normal_(dropping.last_layer().weight)
    for own, read, row in ((model, processor, request), (dropping, tabular[1], ROWS[1])):
        expected = predict_rows(own.eval(), read, [row])[0]
        pipe = pipeline("click-prediction", model=own, processor=read, device="cpu")
        own.train()
        assert [pipe(row)["logit"] for _ in range(3)] == pytest.approx([float(expected)] * 3, abs=1e-6)
        assert own.training


def test_requests_of_events():
    processor = lmctr.SequenceProcessor.fit(sequence_log())
    torch.manual_seed(0)
    config = lmctr.HSTUConfig(
        **processor.model_config_values(), hidden_size=8, num_hidden_layers=1, initializer_range=0.3
    )
    model = lmctr.HSTUForCTR(config).eval()
    pipe = pipeline("click-prediction", model=model, processor=processor, device="cpu")
    history = [{"item": 100, "time": 3}, {"item": 101, "time": 5}]
    requests = [
        {"history": history[:1], "target": 102, "time": 9},
        {"history": history, "candidates": [100, {"item": 103}], "time": 9},
    ]
    expected = predict_rows(model, processor, requests).reshape(-1)
    one, several = pipe(requests)
    np.testing.assert_allclose(logits_of([one, *several]), expected, atol=1e-5)
    np.testing.assert_allclose(logits_of(pipe(requests[1])), expected[1:], atol=1e-5)
    stream = pipe(request for request in requests)
    assert next(stream) == one
    with pytest.raises(ValueError, match=r"inputs\[1\]: the request has no 'history'"):
        pipe([requests[0], {"target": 102, "time": 9}])
    with pytest.raises(ValueError, match=r"inputs\[0\]: the request has no 'time'"):  # what is left are lists
        pipe({"history": history, "candidates": [100, 101, 102]})


def test_requests_of_texts_from_a_folder(tmp_path):
    model, processor = make_model(), lmctr.CTRSinkProcessor(make_tokenizer(), num_behaviors=5)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    history = [{"text": "Heat (Crime)", "time": 10}, {"text": "Toy Story", "time": 20}]
    requests = [
        {"history": history, "candidates": ["Casino", "Heat (Crime)"], "time": 30},
        {"history": [], "target": "Toy Story", "time": 30},
    ]
    pipe = pipeline("click-prediction", model=str(tmp_path), device="cpu")
    several, one = pipe(requests, max_tokens=512)
    np.testing.assert_allclose(logits_of([*several, one]), predict_rows(model, processor, requests), atol=1e-5)
    data = Dataset.from_dict(
        {key: [row.get(key) for row in requests] for key in ("history", "candidates", "target", "time")}
    )
    formats = [data, *(data.with_format(name) for name in ("torch", "numpy", "arrow", "pandas"))]
    for given in (*formats, *(data[:2] for data in formats), data.to_iterable_dataset()):
        assert list(pipe(given, max_tokens=512)) == [several, one]
    for name in ("torch", "arrow", "pandas"):
        rows = [*Dataset.from_list([requests[0]] * 2).with_format(name)]
        assert pipe(rows) == pipe([requests[0]] * 2)
    with pytest.raises(ValueError, match=r"the columns differ in length: \{'history': 2, 'target': 1, 'time': 2\}"):
        pipe({"history": [history, history], "target": ["Casino"], "time": [30, 30]})
    keyed = Dataset.from_dict({"request": [requests[0]] * 2})
    assert pipe(KeyDataset(keyed, "request")) == pipe([requests[0]] * 2)
    assert isinstance(pipe, lmctr.ClickPredictionPipeline)
