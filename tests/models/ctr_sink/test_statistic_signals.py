"""Statistics of behaviours as sink signals: bins, raw rows, the cached path, a training."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from text_tokenizers import make

from lmctr.data import load_log, split_log
from lmctr.data.batches.text import TextView
from lmctr.models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.sink_signals import fit_statistic_bounds, statistic_buckets
from lmctr.runs import train
from lmctr.runs.find import RecipeError
from lmctr.runs.recipe import load_recipe
from lmctr.serving import UserState, score
from lmctr.statistics import StatisticsReader

NAMES = ("item_rate", "last_5_mean")
BOUNDS = {"item_rate": [0.3, 0.5, 0.7], "last_5_mean": [0.1, 0.6]}
SIGNALS = ["recency", *(f"statistic:{name}" for name in NAMES)]


def test_bins_are_equally_frequent_and_a_constant_has_one():
    values = np.random.default_rng(0).lognormal(0, 1, 20_000)
    bounds = fit_statistic_bounds(np.r_[values, np.nan], 7)
    shares = np.bincount(statistic_buckets(values, bounds), minlength=9)[1:] / len(values)
    assert len(bounds) == 7
    assert np.abs(shares - 1 / 8).max() < 0.01
    assert fit_statistic_bounds(np.full(10, 2.0), 7) == fit_statistic_bounds(np.full(3, np.nan), 7) == []
    assert fit_statistic_bounds(np.array([0.0] * 99 + [1.0]), 3) == []


def test_buckets_against_a_plain_count():
    values = [-1.0, 0.0, 0.25, 0.5, 2.0, math.nan]
    plain = [0 if math.isnan(v) else 1 + sum(v >= bound for bound in (0.0, 0.5)) for v in values]
    assert statistic_buckets(np.array(values), [0.0, 0.5]).tolist() == plain == [1, 2, 2, 3, 3, 0]


def processor_of(log, **settings):
    reader = StatisticsReader.fit(log, split_log(log).train, ["basic"])
    settings = {"sink_signal": SIGNALS, "statistic_bounds": BOUNDS, "num_sink_buckets": 8, **settings}
    return CTRSinkProcessor(make("bert"), prompt="movielens/en", num_behaviors=5, statistics_reader=reader, **settings)


def rows_of(log, processor, events):
    """Histories as requests give them, each behaviour with its own statistics; the reader's rows of the targets."""
    texts = processor.item_texts(log.catalogue)
    raw = processor.statistics_reader.raw(log, np.arange(log.num_events))
    places = {name: processor.statistics_reader.names.index(name) for name in NAMES}
    histories = []
    for event in events:
        start, end = (int(bound[0]) for bound in log.history_bounds(np.array([event])))
        histories.append([
            {
                "text": texts[log.item[e]],
                "time": int(log.time[e]),
                "statistics": {n: None if np.isnan(raw[e, at]) else float(raw[e, at]) for n, at in places.items()},
            }
            for e in range(start, end)
        ])  # fmt: skip
    return histories, [{"text": texts[log.item[e]], "statistics": raw[e].tolist()} for e in events]


def test_the_cached_path_equals_raw_rows_and_the_bins(tmp_path):
    log = load_log("synthetic", num_users=12, num_items=60, events_per_user=15)
    processor = processor_of(log)
    processor.save_pretrained(tmp_path)
    processor = CTRSinkProcessor.from_pretrained(tmp_path)
    assert processor.statistic_bounds == BOUNDS
    events = log.sample_events()[::3]
    histories, targets = rows_of(log, processor, events)
    targets = [t | {"statistics": [None if np.isnan(v) else v for v in t["statistics"]]} for t in targets]
    raw = processor(histories, targets, log.time[events].tolist())
    cached = TextView(log, processor).batch(events)
    for key in processor.model_input_names:
        torch.testing.assert_close(cached[key], raw[key], msg=key)
    for row, history in enumerate(histories):
        buckets = cached["sink_buckets"][row]
        for signal, name in enumerate(NAMES, 1):
            values = [behaviour["statistics"][name] for behaviour in history[-5:]]
            expected = [0 if v is None else 1 + sum(v >= bound for bound in BOUNDS[name]) for v in values]
            assert buckets[buckets[:, 0] >= 0, signal].tolist() == expected
    assert {0, 1, 2, 3} <= set(cached["sink_buckets"][..., 2].flatten().tolist()), "unknown, and every bin"


def test_what_is_missing_or_wrong_is_told():
    log = load_log("synthetic", num_users=12, num_items=60, events_per_user=15)
    processor = processor_of(log)
    (history,), (target,) = rows_of(log, processor, log.sample_events()[20:21])
    for statistics, message in (
        (None, r"histories\[0\]\[0\] needs 'statistics' with 'item_rate'"),
        ({"item_rate": 0.5}, "needs 'statistics' with 'last_5_mean'"),
        ({"item_rate": "x", "last_5_mean": 1}, "'item_rate' must be a finite number or None, got 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            processor([[history[0] | {"statistics": statistics}]], [target], [1_700_000_000])
    for settings, message in (
        (
            {"statistic_bounds": None},
            "statistic_bounds=None is not accepted; use ascending finite numbers for 'item_rate'",
        ),
        ({"statistic_bounds": {**BOUNDS, "item_rate": [2.0, 1.0]}}, "statistic_bounds"),
        ({"num_sink_buckets": 4}, "at most num_sink_buckets - 2"),
        ({"sink_signal": "statistic:item_rat"}, "sink_signal holds statistic:item_rat: .*did you mean"),
        ({"sink_signal": "statistic"}, "sink_signal"),
    ):
        with pytest.raises(ValueError, match=message):
            processor_of(log, **settings)
    with pytest.raises(ValueError, match="holds statistic:item_rat: "):
        CTRSinkConfig(sink_signal=["statistic:item_rat"])


def test_a_training_fits_the_bins_and_states_grow(tmp_path):
    recipe = {
        "data": {
            "name": "synthetic",
            "options": {"num_users": 20, "num_items": 60, "events_per_user": 30},
            "prompt": {"base": "generic/en", "item": "{genres}"},
            "num_behaviors": 4,
            "statistics": ["item_rate", "user_rate"],
            "baselines": False,
        },
        "model": {
            "backbone": {"model_type": "qwen2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
            | {"num_key_value_heads": 2, "intermediate_size": 16},
            "tokenizer": {"type": "bpe", "vocab_size": 300},
            "sink_signal": ["recency", "statistic:user_rate"],
            "num_sink_buckets": 10,
        },
        "training": {"stage2_epochs": 1, "learning_rate": 1e-2, "use_cpu": True},
    }
    run = train(recipe, output_dir=tmp_path / "run")
    model, processor = run.model.eval(), run.processor
    assert len(processor.statistic_bounds["user_rate"]) == 8
    history = [
        {"text": "drama", "time": 100 + n, "item": 1, "label": n % 2, "statistics": {"user_rate": 0.1 * n}}
        for n in range(6)
    ]
    candidates = [{"text": "comedy", "statistics": [0.5, 0.5]}, {"text": "drama", "statistics": [0.2, 0.5]}]
    state = UserState(model, processor, history[:3])
    state = UserState.load(state.save(tmp_path / "state.safetensors"), model, processor)
    state.extend(history[3:])
    found = score(model, processor, state, candidates, 1000)
    with torch.no_grad():
        batch = processor([history] * 2, candidates, [1000] * 2)
        torch.testing.assert_close(found, model(**batch).logits, atol=1e-4, rtol=1e-4)
        other = processor([[b | {"statistics": {"user_rate": 0.9}} for b in history]] * 2, candidates, [1000] * 2)
        assert (model(**other).logits - found).abs().max() > 1e-4, "the sinks tell the statistic"
    wrong = {**recipe, "model": {**recipe["model"], "sink_signal": ["statistic:item_count"]}}
    with pytest.raises(ValueError, match="statistic:item_count, which is none of the data's statistics"):
        train(wrong, output_dir=tmp_path / "wrong")


@pytest.mark.parametrize(
    ("statistics", "signal", "accepted"),
    [
        (["item_rate"], "item_count", False),
        ([], "item_rate", False),
        (["basic"], "item_rate", True),
        (["basic"], "user_item_rate", False),
        (["full", "repeats"], "user_item_rate", True),
        (["full"], "user_item_rate", False),
        (["full"], "tags_rate_mean", True),  # which columns there are, the log says
        (["log_item_count"], "item_count", True),
        (["full"], "context:hour", False),
        (["context"], "context:hour", True),
    ],
)
def test_a_recipe_says_that_sinks_carry_what_is_not_read(statistics, signal, accepted):
    recipe = {
        "data": {"name": "synthetic", "statistics": statistics},
        "model": {
            "family": "ctr_sink",
            "backbone": {"model_type": "bert"},
            "tokenizer": {"type": "bpe"},
            "sink_signal": [f"statistic:{signal}"],
        },
    }
    with (
        nullcontext()
        if accepted
        else pytest.raises(RecipeError, match=f"model.sink_signal.*statistic:{signal}, which")
    ):
        load_recipe(recipe)
