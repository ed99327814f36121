"""Graded feedback (stars, watched share) in sinks and words: levels, buckets, raw rows, the cached path, kept states."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from ctr_sink_reference import sample
from text_tokenizers import KINDS, make

from lmctr.data import load_log
from lmctr.data.batches.text import TextView
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.sink_signals import fit_value_levels, value_buckets

LEVELS = [0.5, 1, 2.5, 4, 5]
STARS = {
    "base": "movielens/en",
    "feedback": [
        {"name": "disliked", "word": "disliked[ ({value} stars)] ", "header": ""},
        {"name": "liked", "word": "liked[ ({value} stars)] ", "header": ""},
    ],
}


def nearest(value, levels=LEVELS):
    """Bucket by a plain search; of two levels that are equally near the higher one."""
    if value is None:
        return 0
    return 1 + min(range(len(levels)), key=lambda i: (abs(levels[i] - value), -levels[i]))


def test_few_values_are_levels_themselves_and_many_are_binned():
    stars = np.array([4.5, np.nan, 0.5, 3, 4.5, 0.1], np.float32)
    assert fit_value_levels(stars) == [0.1, 0.5, 3.0, 4.5]
    assert fit_value_levels(np.array([np.nan], np.float32)) == []
    ratio = np.random.default_rng(0).lognormal(0, 1, 20_000).astype(np.float32)
    levels = fit_value_levels(ratio, most=8)
    assert len(levels) == 8
    shares = np.bincount(value_buckets(ratio, levels))[1:] / len(ratio)
    assert shares.min() > 0.08, "bins hold about as many values each, also in a long tail"
    assert shares.max() < 0.17
    assert fit_value_levels(np.r_[ratio, np.nan], most=8) == levels


def test_buckets_against_a_plain_search():
    rng = np.random.default_rng(1)
    values = np.r_[rng.uniform(-2, 8, 200), 0.75, 1.75, LEVELS, np.nan]
    expected = [nearest(None if math.isnan(v) else v) for v in values]
    assert value_buckets(values, LEVELS).tolist() == expected
    assert value_buckets(np.array([-1.0, 3.0, np.nan]), [2.0]).tolist() == [1, 1, 0]


def test_a_request_has_the_bins_of_the_log_also_at_the_middle_of_two_levels():
    """96.2 is the middle of its neighbours; the log holds float32(96.2), which lies below."""
    levels, values = [90.4, 102.0], [96.2, 96.1, 96.3]
    processor = CTRSinkProcessor(
        make("bert"), prompt=STARS, feedback="sink", sink_signal="feedback_value", value_levels=levels
    )
    history = [{"text": "Heat", "time": number, "value": value} for number, value in enumerate(values)]
    found = processor([history], ["Casino"], [9])["sink_buckets"][0]
    assert found[found >= 0].tolist() == value_buckets(np.array(values, np.float32), levels).tolist() == [1, 1, 2]
    labelled = [{**behavior, "item": 1, "label": 0} for behavior in history]
    assert processor.statistics_events(labelled)[3] == np.array(values, np.float32).tolist()
    with pytest.raises(ValueError, match="'value' must be graded feedback, a finite number or None, got 1e\\+39"):
        processor([[{"text": "Heat", "time": 0, "value": 1e39}]], ["Casino"], [9])


@pytest.mark.parametrize("max_length", [None, 130])
@pytest.mark.parametrize("kind", KINDS)
def test_sinks_and_words_equal_the_plain_reference(kind, max_length):
    """The reference reads a prompt that has one feedback entry for each pair of code and level."""
    processor = CTRSinkProcessor(
        make(kind),
        prompt=STARS,
        num_behaviors=4,
        feedback="inline",
        sink_signal=["feedback_value", "recency"],
        value_levels=LEVELS,
        max_length=max_length,
    )
    rng = np.random.default_rng(2)
    rows = []
    for length in (0, 1, 3, 9):
        times = np.sort(rng.integers(0, 1000, length)).tolist()
        values = [None if rng.random() < 0.3 else float(rng.uniform(0, 6)) for _ in range(length)]
        codes = rng.integers(0, 3, length).tolist()
        rows.append(list(zip(["Heat (1995)", "Alien", ""] * 3, times, codes, values)))
    batch = processor(
        histories=[[{"text": t, "time": s, "feedback": c, "value": v} for t, s, c, v in row] for row in rows],
        targets=["Casino"] * 4,
        times=[2000] * 4,
    )
    told = [None, *LEVELS]
    texts = ["" if value is None else f" ({value:g} stars)" for value in told]
    words = [f"{name}{text} " for name in ("disliked", "liked") for text in texts]
    prompt = processor.prompt.to_dict() | {"feedback": [{"word": word} for word in words]}
    for row, history in enumerate(rows):
        expanded = [
            (text, time, 1 + (code - 1) * len(told) + nearest(value) if code else 0, 0.0, nearest(value))
            for text, time, code, value in history
        ]
        ids, buckets, *_ = sample(
            processor.tokenizer,
            prompt,
            expanded,
            "Casino",
            2000,
            sink_id=processor.sink_token_id,
            num_behaviors=4,
            signals=processor.signals,
            feedback="inline",
            max_length=max_length,
        )
        real = batch["attention_mask"][row].bool()
        assert batch["input_ids"][row][real].tolist() == ids
        assert batch["sink_buckets"][row][real].T.tolist() == buckets


@pytest.mark.parametrize("layout", ["single", "split"])
def test_the_cached_path_equals_the_raw_path(layout):
    log = load_log("synthetic", num_users=12, num_items=60, events_per_user=15, stars=True)
    values = log.feedback_values.copy()
    values[::4] = np.nan
    log = replace(log, feedback_values=values)
    levels = fit_value_levels(values)
    processor = CTRSinkProcessor(
        make("bert"),
        prompt=STARS,
        num_behaviors=5,
        feedback="inline",
        sink_signal="feedback_value",
        value_levels=levels,
        layout=layout,
    )
    events = log.sample_events()[::3]
    texts = processor.item_texts(log.catalogue)
    histories = [
        [
            {"text": texts[log.item[e]], "time": int(log.time[e]), "feedback": int(log.feedback[e])}
            | ({} if np.isnan(values[e]) else {"value": float(values[e])})
            for e in range(*map(int, np.ravel(log.history_bounds([event]))))
        ]
        for event in events
    ]
    raw = processor(histories, [texts[i] for i in log.item[events]], log.time[events].tolist())
    cached = TextView(log, processor).batch(events)
    for key in processor.model_input_names:
        assert torch.equal(cached[key], raw[key]), key
    assert len(torch.unique(cached["sink_buckets"])) == 2 + len(levels), "no sink, unknown, and every level"
    with pytest.raises(ValueError, match=r"graded feedback of each event is needed.*feedback_values"):
        TextView(replace(log, feedback_values=None), processor)


def test_saved_with_the_processor(tmp_path):
    values = {"feedback": "sink", "sink_signal": ["recency", "feedback_value"], "value_levels": LEVELS}
    processor = CTRSinkProcessor(make("bert"), **values)
    assert not processor.needs_feedback
    processor.save_pretrained(tmp_path)
    again = CTRSinkProcessor.from_pretrained(tmp_path)
    assert again.value_levels == LEVELS
    rows = [[{"text": "Heat", "time": 1, "value": 4.2}]], ["Alien"], [9]
    assert torch.equal(again(*rows)["sink_buckets"], processor(*rows)["sink_buckets"])
    assert (again(*rows)["sink_buckets"] == nearest(4.2)).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sink_signal": "feedback_value"}, "value_levels=None is not accepted; use ascending finite numbers"),
        ({"sink_signal": "feedback_value", "value_levels": [2, 1]}, "value_levels"),
        ({"sink_signal": "feedback_value", "value_levels": []}, "value_levels"),
        ({"sink_signal": "feedback_value", "value_levels": [1, math.inf]}, "value_levels"),
        ({"sink_signal": "feedback_value", "value_levels": LEVELS, "num_sink_buckets": 5}, "less than the 6 buckets"),
        (
            {"sink_signal": "feedback_value", "value_levels": LEVELS, "feedback": "none"},
            "feedback='none' is not accepted; use 'sink'.* with sink_signal='feedback_value'",
        ),
        ({"prompt": STARS, "feedback": "inline"}, "value_levels"),
        ({"sink_signal": "recency"}, "'feedback' or 'feedback_value'"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        CTRSinkProcessor(make("bert"), **({"feedback": "sink"} | options))


@pytest.mark.parametrize("value", ["5", True, math.nan, math.inf, [1]])
def test_a_bad_value_names_its_behaviour(value):
    processor = CTRSinkProcessor(make("bert"), feedback="sink", sink_signal="feedback_value", value_levels=LEVELS)
    with pytest.raises(ValueError, match=r"histories\[0\]\[1\]: 'value' must be graded feedback"):
        processor([[{"text": "a", "time": 1}, {"text": "b", "time": 2, "value": value}]], ["c"], [9])
