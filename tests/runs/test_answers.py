"""Scores of requests and rows in Python: `predict_rows`, on models that are not trained."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, pipeline

import lmctr
from lmctr.cli.main import main
from lmctr.runs.answers import predict_rows
from lmctr.runs.answers.base import grid_batches, unknown_words
from lmctr.runs.answers.files import whole_output
from lmctr.runs.answers.histories import TextAnswers
from lmctr.runs.answers.predict import answers_for


def test_tables_of_all_kinds_and_the_mode_stays(tabular):
    model, processor = tabular
    rows = [{"ad": "a1", "price": 2.0, "other": "x"}, {"ad": "nobody", "price": None, "other": "y"}]
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    model.train()
    expected = predict_rows(model, processor, rows)
    assert model.training
    assert expected.shape == (2,)
    assert expected.dtype == np.float32
    for same in (columns, pa.table(columns), pa.table(columns).to_pandas()):
        np.testing.assert_array_equal(predict_rows(model, processor, same), expected)
    with pytest.raises(ValueError, match="one dict of single values"):
        predict_rows(model, processor, rows[0])


def test_requests_of_events():
    from sequence_rows import sequence_log

    processor = lmctr.SequenceProcessor.fit(sequence_log())
    torch.manual_seed(0)
    config = lmctr.HSTUConfig(
        **processor.model_config_values(), hidden_size=8, num_hidden_layers=1, initializer_range=0.3
    )
    model = lmctr.HSTUForCTR(config).eval()
    history = [{"item": np.int64(100), "time": np.int64(3)}, {"item": 101, "time": 5}]
    rows = [
        {"history": history[:1], "target": np.int64(102), "time": np.float64(9)},
        {"history": history, "candidates": [100, {"item": 103}], "time": np.int64(9)},
    ]
    found = predict_rows(model, processor, rows)
    with torch.no_grad():
        batch = processor([history[:1], history, history], [[102], [100], [103]], times=[9, 9, 9])
        np.testing.assert_allclose(found, model(**batch).logits[:, 0].numpy(), atol=1e-5)
    assert predict_rows(model, processor, []).shape == (0,)
    # A history that goes on from the request before is taken over, unless a candidate comes before its end.
    for time, alone in ((9, True), (4, False), (5, False)):
        more = {"history": history, "candidates": [{"item": 100, "time": time}], "time": 9}
        together = predict_rows(model, processor, [more])
        np.testing.assert_allclose(predict_rows(model, processor, [rows[0], more])[1:], together, atol=1e-5)
        answers = answers_for(model, processor)
        first, more = (answers.check(row, "") for row in (rows[0], more))
        assert not answers.goes_alone(first)
        answers.last = first
        assert answers.goes_alone(more) == alone
    # Values that are arrays are not compared with those of the request before.
    with_genres = lmctr.SequenceProcessor.fit(sequence_log(), item_features=["genres"])
    config = lmctr.HSTUConfig(**with_genres.model_config_values(), hidden_size=8, num_hidden_layers=1)
    reading = lmctr.HSTUForCTR(config)
    lists, arrays = (
        [
            {"history": [{"item": 999, "time": t, "genres": make([1, 2])} for t in range(n)], "target": 102, "time": 9}
            for n in (1, 2, 3)
        ]
        for make in (list, np.array)
    )
    found, expected = (predict_rows(reading, with_genres, own) for own in (arrays, lists))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for wrong, message in (
        (rows[0], r"rows: expected a list of requests, got dict; give \[request\]"),
        ([rows[0], {**rows[0], "time": 10**13}], r"rows\[1\]: .*milliseconds"),
        ([{**rows[0], "target": {"item": 102.5}}], r"rows\[0\]: .*item: 102.5 is no id"),
        ([{**rows[0], "history": [{"item": True, "time": 3}]}], r"rows\[0\]: .*item: True is no id"),
        ([{**rows[0], "time": 8 * 10**9}], r"rows\[0\]: .*lies in the year 2223"),
        ([rows[0], "x"], r"rows\[1\]: a request is a JSON object \(a dict\), got str"),
    ):
        with pytest.raises(ValueError, match=message):
            predict_rows(model, processor, wrong)


def test_rows_without_a_finite_score_are_refused_at_every_door(tabular, tmp_path, capsys):
    row, nothing = {"ad": "a1", "price": 2.0}, "gets no finite score; look for numbers out of all proportion"
    rows = [row, row | {"price": 1e38}, row | {"price": 3.0}]
    for part in tabular:
        part.save_pretrained(tmp_path / "model")
    run = lmctr.runs.load(tmp_path / "model")
    pipe = pipeline("click-prediction", model=str(tmp_path / "model"), device="cpu")
    for door in (lambda: predict_rows(*tabular, rows), lambda: run.predict(rows), lambda: pipe(rows)):
        with pytest.raises(ValueError, match=f"^row 2 {nothing}"):
            door()
    with pytest.raises(ValueError, match=rf"^candidates\[1\] {nothing}"):
        run.score([{"ad": "a1"}], [{"price": 1.0}, {"price": 1e38}], 0)
    source, target = tmp_path / "rows.csv", tmp_path / "scores.csv"
    pd.DataFrame(rows).to_csv(source, index=False)
    asked = ["predict", str(tmp_path / "model"), "--input", str(source), "--output", str(target)]
    assert main(asked) == 2
    assert f"rows.csv: row 2 {nothing}; what was scored before stands in" in capsys.readouterr().err
    assert len(pd.read_csv(tmp_path / "scores.partial.csv")) == 1
    assert main([*asked, "--on-error", "skip"]) == 0
    found = pd.read_csv(target)
    assert found["logit"].isna().tolist() == found["error"].notna().tolist() == [False, True, False]
    assert found["error"][1].endswith(nothing)


def test_candidates_without_a_finite_score_are_refused():
    from sequence_rows import sequence_log

    processor = lmctr.SequenceProcessor.fit(sequence_log())
    config = lmctr.HSTUConfig(**processor.model_config_values(), hidden_size=8, num_hidden_layers=1)
    model = lmctr.HSTUForCTR(config).eval()
    code = processor([[]], [[103]], times=[9])["candidate_items"].item()
    with torch.no_grad():
        model.model.item_embedding.items.weight[code] = torch.nan
    history, nothing = [{"item": 100, "time": 3}], "gets no finite score"
    asked = [
        {"history": [], "target": 100, "time": 9},
        {"history": history, "candidates": [102, 103], "time": 9},
        {"history": [], "target": 103, "time": 9, "id": "own"},
    ]
    with pytest.raises(ValueError, match=rf"^rows\[1\]: candidates\[1\] {nothing}"):
        predict_rows(model, processor, asked)
    with pytest.raises(ValueError, match=rf"^rows\[0\]: target {nothing}"):
        predict_rows(model, processor, asked[2:])
    answers = answers_for(model, processor)
    answers.skips = True
    scored = [request for request, _ in answers.scored((f"line {n}", one) for n, one in enumerate(asked))]
    assert ["error" in request for request in scored] == [False, True, True]
    assert scored[2]["id"] == "own"


def test_a_processor_that_does_not_say_what_it_reads(tabular):
    with pytest.raises(
        ValueError, match=r"object does not say what it reads \(request_kind None; accepted: text, table"
    ):
        predict_rows(tabular[0], object(), [])


def test_batches_of_a_grid_stay_within_their_size():
    widths = [3, 1, 1, 5, 2, 2, 9, 1]
    batches = list(grid_batches(widths, int, 6))
    assert [width for batch in batches for width in batch] == widths
    assert all(max(batch) * len(batch) <= 6 or len(batch) == 1 for batch in batches)
    assert len(batches) == 6


def test_unknown_words():
    assert unknown_words({}) == ""
    assert unknown_words({"ad": {"values": 3, "missing": 1, "unknown": 0}}) == ", no unknown values"
    counts = {
        "ad": {"values": 8, "unknown": 1},
        "user": {"values": 8, "unknown": 0},
        "no rows": {"values": 0, "unknown": 0},
    }
    assert unknown_words(counts) == "; unknown values: ad 12.5%"


def test_a_text_of_which_a_tokenizer_leaves_nothing_counts_as_unknown():
    """Without an unknown token, what a tokenizer does not know is not there at all."""
    backend = Tokenizer(models.BPE({"<pad>": 0, "a": 1, "b": 2}, []))
    processor = SimpleNamespace(tokenizer=PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>"))
    counts = TextAnswers._count_tokens(SimpleNamespace(processor=processor), ["ab", "你好", " ", ""])
    assert [row.tolist() for row in counts.values.reshape(-1, 2)] == [[2, 0], [1, 1], [0, 0], [0, 0]]


def test_an_output_is_whole_or_as_before(tmp_path):
    target, link = tmp_path / "out.txt", tmp_path / "link.txt"
    link.symlink_to(target)
    for text in ("first", "second"):
        with whole_output(str(link)) as stream:
            stream.write(text)
        assert target.read_text() == text
    assert link.is_symlink()
    with pytest.raises(KeyError):
        _write_and_fail(target)
    assert target.read_text() == "second"
    with whole_output("/dev/null") as stream:
        stream.write("x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.txt", "out.txt"]


def _write_and_fail(target):
    with whole_output(str(target)) as stream:
        stream.write("third")
        raise KeyError


def test_an_interrupt_keeps_what_was_scored(tmp_path, monkeypatch, capsys):
    target = tmp_path / "scores.csv"

    def stopped(options):
        with whole_output(str(target)) as stream:
            stream.write("logit\n1.5\n")
            raise KeyboardInterrupt

    monkeypatch.setattr("lmctr.runs.answers.predict.predict", stopped)
    assert main(["predict", "run", "--input", "rows.csv", "--output", str(target)]) == 130
    assert capsys.readouterr().err == f"interrupted; what was scored before stands in {tmp_path}/scores.partial.csv\n"
    assert (tmp_path / "scores.partial.csv").read_text() == "logit\n1.5\n"
    assert not target.exists()
