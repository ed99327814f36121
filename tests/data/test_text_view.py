"""The cached path against the processor's raw-text path, lengths, padding, fillers, bad input."""

import pickle
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from text_logs import small_log
from text_tokenizers import KINDS, make, wordpiece
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from lmctr.data.batches.text import TextCollator, TextDataset, TextView
from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.retrieval import build_retrieval
from lmctr.models.ctr_sink.piece_tokens import tokenize
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.statistics import StatisticsReader

KEYS = ["input_ids", "attention_mask", "sink_buckets", "target_mask"]


def raw_batch(log, processor, events, retrieval=None, **options):
    """The same samples through the processor's texts, with histories written out from the log's definition."""
    texts, behavior_texts = processor.item_texts(log.catalogue), processor.behavior_texts(log.catalogue)
    histories = []
    for event in events:
        before = [e for e in range(log.num_events) if log.user[e] == log.user[event] and log.time[e] < log.time[event]]
        history = [
            {"text": behavior_texts[log.item[e]], "time": int(log.time[e]), "feedback": int(log.feedback[e])}
            for e in before
        ]
        if processor.needs_similarity:
            vectors = retrieval.retriever
            cosines = vectors.similarity([texts[log.item[event]]], [texts[log.item[e]] for e in before] or [""])[0]
            for behaviour, cosine in zip(history, cosines):
                behaviour["similarity"] = float(cosine)
        histories.append(history)
    targets = [{"text": texts[log.item[event]]} for event in events]
    times = [int(log.time[event]) for event in events]
    return processor(histories=histories, targets=targets, times=times, **options)


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: make(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def log():
    return small_log()


@pytest.fixture(scope="module")
def known():
    return small_log(seed=1, known_feedback=True)


VARIANTS = [
    {},
    {"sink_kind": "none"},
    {"sink_kind": "cls"},
    {"feedback": "inline", "sink_signal": ["recency", "feedback"]},
    {"feedback": "sink", "sink_signal": ["feedback", "random", "elapsed"], "trailing_sink": False},
    {"feedback": "groups", "sink_signal": ["ordinal", "feedback"]},
    {"feedback": "groups"},
    {"feedback": "groups", "max_length": 90, "sink_signal": "feedback"},
    {"sink_order": "similarity", "sink_signal": "similarity"},
    {"sink_order": "time", "sink_signal": ["similarity", "recency"], "feedback": "inline"},
    {"sink_order": "similarity", "feedback": "groups", "max_length": 100},
    {"sink_order": "time", "feedback": "groups", "sink_signal": ["similarity", "elapsed"]},
    {"sink_signal": "similarity"},
    {"sink_signal": "similarity", "feedback": "groups"},
    {"sink_signal": "random", "max_length": 70},
    {"prompt": {"base": "generic/en", "item": "{title} {title}", "behavior_item": "{title}"}},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_the_cached_path_equals_the_raw_path(tokenizers, log, known, kind, options):
    if kind == "qwen" and options.get("sink_kind") == "cls":
        pytest.skip("Qwen has no [CLS]")
    log = known if options.get("feedback") == "groups" else log
    if "max_length" in options and kind != "bert":  # these have fewer merges here, so the prompt is longer
        options = options | {"max_length": options["max_length"] + 25}
    processor = CTRSinkProcessor(tokenizers[kind], num_behaviors=5, **options)
    events = log.sample_events()
    retrieval = None
    if processor.needs_similarity:
        retrieval = build_retrieval(log, events, train_events=events[::2], processor=processor, progress=False)
    view = TextView(log, processor, retrieval)
    raw = raw_batch(log, processor, events, retrieval, return_num_dropped=True)
    cached = view.batch(events)
    assert list(cached) == [*KEYS, "labels"]
    for key in KEYS:
        assert torch.equal(cached[key], raw[key]), key
        assert cached[key].dtype == raw[key].dtype
    assert cached["labels"].tolist() == log.label[events].tolist()
    assert cached["labels"].dtype == torch.float32
    assert view.lengths(events).tolist() == raw["attention_mask"].sum(1).tolist()
    counts = view.truncation(events)
    assert counts["behaviors_dropped"] == int(raw["num_dropped"].sum())
    assert counts["samples_truncated"] == int((raw["num_dropped"] > 0).sum())
    assert (counts["behaviors_dropped"] > 0) == ("max_length" in options)
    if processor.sink_kind == "sink" and processor.trailing_sink:
        sinks = cached["input_ids"] == processor.sink_token_id
        assert counts["behaviors_shown"] == int(sinks.sum())
    assert counts["longest"] == cached["input_ids"].shape[1]


def test_histories_and_items_of_other_samples(tokenizers, log):
    """Each against the processor's texts: the history with its moment of one sample, the item of another."""
    reader = StatisticsReader.fit(log, log.sample_events(), ["basic"])
    processor = CTRSinkProcessor(tokenizers["bert"], num_behaviors=5, sink_signal="elapsed", statistics_reader=reader)
    view, events = TextView(log, processor), log.sample_events()[:9]
    order = np.roll(np.arange(9), 1)
    found = dict(view.shuffled(events, order))
    assert next(iter(found)) is None
    assert {*found} == {None, "history", "item", "all statistics", *reader.names}
    writer = CTRSinkProcessor(tokenizers["bert"], num_behaviors=5, sink_signal="elapsed")
    texts, plain = processor.item_texts(log.catalogue), view.batch(events)
    for key, values in found[None].items():
        assert torch.equal(values, plain[key])
    for name, histories, items in (("history", events[order], events), ("item", events, events[order])):
        written = []
        for event in histories:
            start, end = (int(bound[0]) for bound in log.history_bounds(np.array([event])))
            written.append(
                [
                    {"text": texts[log.item[e]], "time": int(log.time[e]), "feedback": int(log.feedback[e])}
                    for e in range(start, end)
                ]
            )
        targets = [{"text": texts[log.item[event]]} for event in items]
        times = [int(log.time[event]) for event in histories]
        raw = writer(histories=written, targets=targets, times=times)
        for key in KEYS:
            assert torch.equal(found[name][key], raw[key]), (name, key)
        assert torch.equal(found[name]["statistics"], plain["statistics"])
        assert torch.equal(found[name]["labels"], plain["labels"])
    assert torch.equal(found["all statistics"]["statistics"], plain["statistics"][torch.from_numpy(order)])
    last = found[reader.names[-1]]["statistics"]
    assert torch.equal(last[:, :-1], plain["statistics"][:, :-1])
    assert torch.equal(last[:, -1], plain["statistics"][torch.from_numpy(order), -1])


def test_truncation_counts(tokenizers, log):
    view = TextView(log, CTRSinkProcessor(tokenizers["bert"], num_behaviors=5))
    events = log.sample_events()
    histories = log.history_lengths(events)
    counts = view.truncation(events)
    assert counts["samples"] == len(events)
    assert counts["max_length"] is None
    assert counts["histories_cut"] == (histories > 5).sum() > 0
    assert counts["behaviors_shown"] == np.minimum(histories, 5).sum()
    assert counts["share_truncated"] == counts["share_dropped"] == 0.0
    assert counts["mean_length"] == view.lengths(events).mean()
    assert view.truncation([])["samples"] == 0


def test_items_that_no_batch_could_hold_are_found_before_the_first(tokenizers, known):
    """One that the last sample alone shows would end a training when its test part is measured."""
    titles = known.catalogue["title"].to_pylist()
    empty = int(known.item[known.sample_events()[-1]])
    titles[empty] = None
    place = known.catalogue.column_names.index("title")
    log = replace(known, catalogue=known.catalogue.set_column(place, "title", pa.array(titles)))
    events = log.sample_events()
    bare = {"base": "generic/en", "target": "{item}"}
    with pytest.raises(ValueError, match=r"sample at event .* the target's text is empty and the prompt has no text"):
        TextView(log, CTRSinkProcessor(tokenizers["qwen"], prompt=bare)).truncation(events)
    with pytest.raises(ValueError, match=r"the target's text is empty"):
        TextView(log, CTRSinkProcessor(tokenizers["qwen"], prompt=bare)).batch(events)
    lines = {"base": "generic/en", "item": "{title}\n[({title})]", "behavior_item": "{title}", "target": "{item}"}
    fields = {"prompt": lines, "layout": "fields", "feedback": "groups"}
    with pytest.raises(
        ValueError, match=r"sample at event .*: text field 2 of 4 is empty, .*; write some text before"
    ):
        TextView(log, CTRSinkProcessor(tokenizers["qwen"], **fields)).truncation(events)
    assert TextView(log, CTRSinkProcessor(tokenizers["bert"], **fields)).truncation(events)["samples"] == len(events)


def test_histories_of_which_nothing_fits_are_counted(tokenizers, log):
    """Head and target are never cut, so a short maximum length leaves room for them alone."""
    events = log.sample_events()
    fixed = TextView(log, CTRSinkProcessor(tokenizers["bert"], num_behaviors=1)).lengths(
        events[log.history_lengths(events) == 0]
    )
    processor = CTRSinkProcessor(
        tokenizers["bert"], num_behaviors=5, max_length=int(fixed.max()) + 4, sink_kind="sink"
    )
    view = TextView(log, processor)
    batch = view.batch(events)
    sinks = (batch["input_ids"] == processor.sink_token_id).sum(1).numpy()
    emptied = (sinks == 0) & (log.history_lengths(events) > 0)
    counts = view.truncation(events)
    assert counts["share_emptied"] == emptied.mean() > 0
    assert counts["share_emptied"] < counts["share_truncated"]


def test_lengths_in_chunks_and_empty(tokenizers, log, monkeypatch):
    view = TextView(log, CTRSinkProcessor(tokenizers["bert"], max_length=80))
    events = log.sample_events()
    whole = view.lengths(events)
    monkeypatch.setattr("lmctr.data.batches.text._CHUNK", 7)
    assert view.lengths(events).tolist() == whole.tolist()
    assert view.lengths([]).tolist() == []
    for event in events[:20]:
        assert view.batch([event])["input_ids"].shape == (1, view.lengths([event])[0])


def test_random_signal_is_the_same_in_every_call_and_view(tokenizers, log):
    processor = CTRSinkProcessor(tokenizers["bert"], sink_signal="random", num_behaviors=5)
    events = log.sample_events()
    first = TextView(log, processor).batch(events)["sink_buckets"]
    again = TextView(log, CTRSinkProcessor(tokenizers["bert"], sink_signal="random", num_behaviors=5))
    assert torch.equal(again.batch(events)["sink_buckets"], first)
    reverse = again.batch(events[::-1])["sink_buckets"]
    assert torch.equal(reverse.flip(0), first)


def test_filler_rows(tokenizers, log):
    view = TextView(log, CTRSinkProcessor(tokenizers["bert"], num_behaviors=3))
    events = log.sample_events()[:4]
    batch = view.batch([-1, *events, -1])
    assert batch["labels"].tolist() == [-100, *log.label[events].tolist(), -100]
    for key in KEYS:
        assert torch.equal(batch[key][0], batch[key][1])
        assert torch.equal(batch[key][-1], batch[key][1])
        assert torch.equal(batch[key][1:-1], view.batch(events)[key])
    only = view.batch([-1, -1])
    assert only["labels"].tolist() == [-100, -100]
    weighted = TextView(small_log(weight=True), CTRSinkProcessor(tokenizers["bert"]))
    events = weighted.log.sample_events()[:2]
    batch = weighted.batch([*events, -1])
    assert torch.equal(batch["sample_weight"], torch.tensor([*weighted.log.weight[events], 0.0]))


def test_dataset_and_collator(tokenizers):
    log = small_log(weight=True)
    view = TextView(log, CTRSinkProcessor(tokenizers["bert"], num_behaviors=4))
    events = log.sample_events()[::-1].copy()
    plain, ordered = TextDataset(view, events), TextDataset(view, events, sort_by_length=True)
    assert [plain[i] for i in range(len(plain))] == events.tolist()
    assert isinstance(plain[0], int)
    assert (np.diff(ordered.lengths) >= 0).all()
    assert events[ordered.order].tolist() == ordered.events.tolist()
    for dataset in (plain, ordered):
        assert dataset.lengths.tolist() == view.lengths(dataset.events).tolist()
        assert dataset.labels.tolist() == log.label[dataset.events].tolist()
        assert dataset.groups.tolist() == log.user[dataset.events].tolist()
        assert dataset.sample_weight.tolist() == log.weight[dataset.events].tolist()
    loader = torch.utils.data.DataLoader(plain, batch_size=8, collate_fn=TextCollator(view, pad_to_multiple_of=16))
    rows = 0
    for batch in loader:
        assert batch["input_ids"].shape[1] % 16 == 0
        assert batch["labels"].tolist() == log.label[events[rows : rows + 8]].tolist()
        rows += len(batch["labels"])
    assert rows == len(events)
    again = pickle.loads(pickle.dumps(view))  # worker processes that are spawned get a copy
    assert torch.equal(again.batch(events)["input_ids"], view.batch(events)["input_ids"])
    with pytest.raises(ValueError, match="pad_to_multiple_of must be a whole number of at least 1, or None, got 0"):
        TextCollator(view, pad_to_multiple_of=0)


def test_sorted_batches_have_little_padding(tokenizers):
    log = small_log(num_users=120, most_events=60)
    view = TextView(log, CTRSinkProcessor(tokenizers["bert"]))
    dataset = TextDataset(view, log.sample_events(), sort_by_length=True)

    def padding_share(events):
        masks = [view.batch(events[i : i + 32])["attention_mask"] for i in range(0, len(events), 32)]
        return 1 - sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)

    assert padding_share(dataset.events) < 0.1
    assert padding_share(np.random.default_rng(0).permutation(dataset.events)) > 0.2


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "at least one position"),
        ([10**6], "positions from 0 to"),
        ([-2], "positions from 0 to"),
        ([0.5], "whole numbers"),
        ([[1, 2]], "at least one position"),
    ],
)
def test_bad_events(tokenizers, log, events, message):
    view = TextView(log, CTRSinkProcessor(tokenizers["bert"]))
    with pytest.raises(ValueError, match=message):
        view.batch(events)


def test_events_without_a_label_are_no_samples(tokenizers, log):
    view = TextView(log, CTRSinkProcessor(tokenizers["bert"]))
    unlabelled = np.flatnonzero(log.label < 0)
    with pytest.raises(ValueError, match=f"event {unlabelled[0]} has no label"):
        view.batch([log.sample_events()[0], unlabelled[0]])
    with pytest.raises(ValueError, match=f"{len(unlabelled)} of {log.num_events} events have no label"):
        TextDataset(view, np.arange(log.num_events))


def test_views_that_cannot_be_built(tokenizers, log, known):
    similar = CTRSinkProcessor(tokenizers["bert"], sink_order="similarity", num_behaviors=5)
    with pytest.raises(ValueError, match=r"retrieval is missing: .*build_retrieval"):
        TextView(log, similar)
    events = log.sample_events()
    retrieval = build_retrieval(log, events, train_events=events, processor=similar, progress=False)
    with pytest.raises(ValueError, match="built for another log"):
        TextView(known, similar, retrieval)
    with pytest.raises(ValueError, match="holds k=5 behaviours per sample, the processor shows 6"):
        TextView(log, CTRSinkProcessor(tokenizers["bert"], sink_order="time", num_behaviors=6), retrieval)
    with pytest.raises(ValueError, match=r"selection='similar'.*need selection='recent'"):
        TextView(log, CTRSinkProcessor(tokenizers["bert"], sink_signal="similarity", num_behaviors=5), retrieval)
    groups = CTRSinkProcessor(tokenizers["bert"], sink_order="time", feedback="groups", num_behaviors=5)
    with pytest.raises(ValueError, match=r"per_feedback=False.*need per_feedback=True"):
        TextView(log, groups, retrieval)
    some = build_retrieval(log, events[:3], train_events=events, processor=similar, progress=False)
    with pytest.raises(ValueError, match=rf"1 of 2 events have no retrieval result \(first: event {events[5]}\)"):
        TextView(log, similar, some).batch([events[0], events[5]])
    one = {"base": "movielens/en", "feedback": [{"name": "liked", "word": "liked ", "header": "Liked: "}]}
    with pytest.raises(ValueError, match="the prompt describes only unknown, liked"):
        TextView(log, CTRSinkProcessor(tokenizers["bert"], prompt=one, feedback="inline"))
    with pytest.raises(ValueError, match="unknown key 'brand' in the item template"):
        TextView(log, CTRSinkProcessor(tokenizers["bert"], prompt={"base": "generic/en", "item": "{brand}"}))


@pytest.mark.parametrize(
    "options", [{"feedback": "inline"}, {"feedback": "groups"}, {"feedback": "sink", "sink_signal": "feedback"}]
)
def test_kinds_of_feedback_follow_their_names(tokenizers, known, options):
    """A file that lacks a kind numbers the others anew."""
    kinds = [
        {"name": name, "word": f"{name} ", "header": f"{name}: "} for name in ("disliked", "negative", "positive")
    ]
    prompt = {"base": "movielens/en", "feedback": kinds}
    values = {name: getattr(known, name) for name in known.__dataclass_fields__}
    whole = {
        "feedback": np.array([0, 2, 3], np.int8)[known.feedback],
        "feedback_names": ("unknown", "disliked", "negative", "positive"),
    }
    processor, events = CTRSinkProcessor(tokenizers["bert"], prompt=prompt, **options), known.sample_events()
    found = TextView(known, processor).batch(events)
    expected = TextView(type(known)(**values | whole), processor).batch(events)
    for key, value in expected.items():
        assert torch.equal(found[key], value)
    shifted = type(known)(**values | {"feedback_names": ("unknown", "bought", "disliked")})
    with pytest.raises(
        ValueError, match="has the names unknown, bought, disliked, the prompt describes only unknown, disliked"
    ):
        TextView(shifted, processor)


def test_errors_of_a_row_name_its_event(tokenizers, log):
    groups = TextView(log, CTRSinkProcessor(tokenizers["bert"], feedback="groups"))
    events = log.sample_events()
    start, end = log.history_bounds(events)
    wrong = next(e for e, s, t in zip(events, start, end) if (log.feedback[s:t] == 0).any())
    right = next(e for e, s, t in zip(events, start, end) if not (log.feedback[s:t] == 0).any())
    with pytest.raises(
        ValueError, match=rf"sample at event {wrong} \(user .*\): \d+ behaviours have unknown feedback"
    ):
        groups.batch([right, wrong])
    short = TextView(log, CTRSinkProcessor(tokenizers["bert"], max_length=12))
    with pytest.raises(
        ValueError, match=r"sample at event \d+ \(user \d+, item \d+\): .*more than max_length=12.*\.200"
    ):
        short.lengths(events)


def long_user(length=10_000):
    rng = np.random.default_rng(0)
    items = small_log().catalogue
    return InteractionLog.from_columns(
        np.zeros(length + 1, dtype=int),
        rng.integers(0, items.num_rows, length + 1),
        np.arange(length + 1) * 60,
        np.ones(length + 1, dtype=int),
        catalogue=items,
    )


def test_a_history_of_ten_thousand_events(tokenizers):
    log = long_user()
    for options in ({}, {"feedback": "groups"}):
        view = TextView(log, CTRSinkProcessor(tokenizers["bert"], num_behaviors=50, **options))
        batch = view.batch([log.num_events - 1])
        assert (batch["sink_buckets"] >= 0).sum() == 50
    everything = TextView(log, CTRSinkProcessor(tokenizers["bert"], num_behaviors=10**5, max_length=512))
    batch = everything.batch([log.num_events - 1])
    assert 400 < batch["input_ids"].shape[1] <= 512


def test_memory_grows_with_events_and_tokens_not_with_histories(tokenizers):
    log = long_user()
    view = TextView(log, CTRSinkProcessor(tokenizers["bert"], feedback="groups"))
    owned = [view.pieces.values, view.pieces.item_start, view.pieces.item_length, view.events.by_code]
    assert sum(array.nbytes for array in owned) < 8 * log.num_events + 100 * 1024
    for name in ("item", "time", "feedback"):
        assert getattr(view.events, name) is getattr(log, name)  # the log's own arrays, not copies


def test_no_tokenizer_call_per_batch(tokenizers, log, monkeypatch):
    view = TextView(log, CTRSinkProcessor(tokenizers["bert"]))

    def refuse(*args, **kwargs):
        raise AssertionError("the tokenizer was called")

    monkeypatch.setattr("lmctr.models.ctr_sink.processing_ctr_sink.tokenize", refuse)
    monkeypatch.setattr(type(view.processor.tokenizer), "__call__", refuse)
    events = log.sample_events()
    assert len(view.batch(events)["labels"]) == len(view.lengths(events)) == len(events)
    with pytest.raises(AssertionError, match="the tokenizer was called"):
        view.processor.encode_items(["any text"])


@pytest.mark.parametrize("options", [VARIANTS[0], VARIANTS[-1]], ids=str)
def test_items_that_no_event_has_are_not_tokenised(tokenizers, monkeypatch, options):
    log = small_log(num_users=3, most_events=9, copies=20)
    met = np.unique(log.item)
    assert 0 < len(met) < log.num_items / 4
    processor, asked = CTRSinkProcessor(tokenizers["bert"], **options), []
    own = "lmctr.models.ctr_sink.processing_ctr_sink.tokenize"
    monkeypatch.setattr(own, lambda tokenizer, texts: asked.extend(texts) or tokenize(tokenizer, texts))
    view = TextView(log, processor)
    times = 2 if "prompt" in options else 1
    assert 0 < len(asked) <= times * len(met)
    events = log.sample_events()
    batch, raw = view.batch(events), raw_batch(log, processor, events, return_tensors="pt")
    assert all(torch.equal(batch[key], raw[key]) for key in KEYS)


def test_assembly_is_much_faster_than_tokenising():
    log = small_log(num_users=40, most_events=120, copies=20)
    processor = CTRSinkProcessor(wordpiece())
    view = TextView(log, processor)
    events = log.sample_events()[:512]
    texts = processor.item_texts(log.catalogue)
    start, end = log.history_bounds(events)
    whole = [" ".join(texts[i] for i in log.item[max(s, e - 50) : e]) for s, e in zip(start, end)]

    def seconds(run):
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return sorted(times)[2]

    cached = seconds(lambda: [view.batch(events[i : i + 64]) for i in range(0, 512, 64)])
    tokenised = seconds(lambda: [processor.tokenizer(whole[i : i + 64]) for i in range(0, 512, 64)])
    assert tokenised > 5 * cached  # the benchmark measures the ratio; this guards against a loop over rows


def test_statistics_of_samples(tokenizers, log, tmp_path):
    """A batch holds the reader's scaled values of its samples, also through raw rows, and after saving."""
    train = log.sample_events()[::2]
    reader = StatisticsReader.fit(log, train, ["basic", "user_rate_6_events"])
    processor = CTRSinkProcessor(tokenizers["bert"], num_behaviors=5, statistics_reader=reader)
    assert processor.model_input_names[-1] == "statistics"
    events = log.sample_events()
    raw = reader.raw(log, events)
    assert np.isnan(raw).any()
    view = TextView(log, processor)
    found = view.batch(events[[5, 0, 3]])["statistics"]
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), reader.scaled(raw)[[5, 0, 3]])
    assert view.batch([int(events[4]), -1])["statistics"].shape == (2, len(reader.names))

    again = CTRSinkProcessor.from_pretrained(processor.save_pretrained(tmp_path) and tmp_path)
    assert again.statistics_reader == reader
    targets = [{"text": "Heat", "statistics": row} for row in raw[:3].tolist()]
    targets[1]["statistics"] = [None if np.isnan(value) else value for value in raw[1]]
    made = again(histories=[[]] * 3, targets=targets, times=[1] * 3)
    np.testing.assert_array_equal(made["statistics"].numpy(), reader.scaled(raw[:3]))

    some = TextView(log, processor, samples=events[:4])
    assert torch.equal(some.batch(events[2:4])["statistics"], view.batch(events[2:4])["statistics"])
    with pytest.raises(ValueError, match=rf"event {events[4]}: its statistics were not computed"):
        some.batch(events[3:6])


def test_wrong_statistics_of_rows(tokenizers, log):
    reader = StatisticsReader.fit(log, log.sample_events(), ["user_rate", "item_rate"])
    processor = CTRSinkProcessor(tokenizers["bert"], statistics_reader=reader)
    for target, message in [
        ("Heat", r"targets\[0\] has no 'statistics', of which the model reads 2 \(user_rate, item_rate"),
        ({"text": "Heat", "statistics": [0.5]}, r"targets\[0\]: 1 statistics, expected 2: user_rate, item_rate"),
        ({"text": "Heat", "statistics": ["a", 1]}, "statistics must be a list of numbers"),
        ({"text": "Heat", "statistic": [1]}, r"targets\[0\].*did you mean 'statistics'"),
    ]:
        with pytest.raises(ValueError, match=message):
            processor(histories=[[]], targets=[target], times=[1])


def test_texts_of_which_a_tokenizer_leaves_nothing_count_as_unknown(log):
    """Without an unknown token, what a tokenizer does not know is not there at all; an item without a text is no wonder."""
    letters = {letter: number for number, letter in enumerate(["<pad>", *map(chr, range(33, 127))])}
    backend = Tokenizer(models.BPE(letters, []))
    processor = CTRSinkProcessor(PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>"))
    titles = ["ab", "你好", "", *["ab"] * (log.num_items - 3)]
    table = log.catalogue.set_column(log.catalogue.column_names.index("title"), "title", pa.array(titles))
    table = table.set_column(table.column_names.index("genres"), "genres", pa.nulls(len(table), pa.string()))
    counts, examples = TextView(replace(log, catalogue=table), processor).unknown(np.arange(log.num_events))
    shown = np.bincount(log.item, minlength=log.num_items)
    expected = {"values": 2 * (shown.sum() - shown[1] - shown[2]) + shown[1], "unknown": shown[1]}
    assert counts["tokens of candidates"] == expected
    assert examples["tokens of candidates"] == ["你好"]
