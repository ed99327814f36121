"""Requests to ASTRO: equal to rows of one candidate, and kept states equal to encoding again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_rows import CANDIDATES, events_of, one_by_one, sequence_log

from lmctr import ASTROConfig, ASTROForCTR, SequenceProcessor
from lmctr.models.astro.layers import RelativeBias, Temperature
from lmctr.serving import UserState, score
from lmctr.statistics import StatisticsReader

STRATEGIES = [
    {"name": "like", "behaviors": ["like"]},
    {"name": "recent", "window_seconds": 25},
    {"name": "here", "scenarios": "same"},
]


def make(length=60, strategies=STRATEGIES, **options):
    processor = SequenceProcessor.fit(sequence_log(), **options)
    torch.manual_seed(0)
    config = ASTROConfig(
        **processor.model_config_values(),
        strategies=strategies,
        sequence_length=length,
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        initializer_range=0.2,
        serving_micro_batch_size=3,
    )
    model = ASTROForCTR(config).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (Temperature, RelativeBias)):
                for parameter in module.parameters(recurse=False):
                    parameter.normal_(std=0.5)
    return model, processor


MODELS = {length: make(length) for length in (90, 9)}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 14), length=st.sampled_from([90, 9]), more=st.integers(0, 5))
def test_requests_and_states_equal_rows_of_one(seed, count, length, more):
    """Whether windows are full (9: three events per block) or not, a state equals scoring every row from scratch."""
    model, processor = MODELS[length]
    history = events_of(seed, count)
    last = history[-1]["time"] if history else 0
    state = UserState(model, processor, history)
    for step in range(2):
        expected = one_by_one(model, processor, history, CANDIDATES, last + 3)
        torch.testing.assert_close(score(model, processor, history, CANDIDATES, last + 3), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(score(model, processor, state, CANDIDATES, last + 3), expected, atol=1e-5, rtol=0)
        new = events_of(seed + step + 1, more, last + 3)
        state.extend(new)
        if length == 90:
            assert state.reencoded == 0
        history = history + new
        last = history[-1]["time"] if history else 0


def test_extending_encodes_the_new_events_only():
    model, processor = MODELS[90]
    history, seen = events_of(1, 12), []
    state = UserState(model, processor, history)
    hook = model.model.layers[0].norm1.register_forward_pre_hook(lambda m, a: seen.append(a[0].shape[2]))
    state.extend(events_of(2, 2, history[-1]["time"]))
    hook.remove()
    assert seen == [2]
    assert state.reencoded == 0


def test_full_windows_are_encoded_again_block_by_block():
    """A full "recent" block gives up its oldest event; the "like" block, which gets nothing, is left alone."""
    model, processor = make(12, [{"name": "like", "behaviors": ["like"]}, {"name": "all"}])
    plays = [{"item": 100 + i, "behavior": "full-play", "time": 10 * i} for i in range(8)]
    plays[2]["behavior"] = "like"
    state = UserState(model, processor, plays)
    assert state.num_encoded == 1 + 6
    assert state.num_kept == 6
    seen = []
    hook = model.model.layers[0].norm1.register_forward_pre_hook(lambda m, a: seen.append((a[1], a[0].shape[2])))
    state.extend([{"item": 101, "behavior": "full-play", "time": 100}])
    hook.remove()
    assert state.reencoded == 6
    assert [width for blocks, width in seen if blocks == slice(1, 2)] == [6]
    assert [width for blocks, width in seen if blocks == slice(0, 1)] == []
    assert state.num_kept == 7  # the like lies further back than the latest six
    expected = one_by_one(model, processor, [*plays, state.history[-1]], [{"item": 105}], 200)
    torch.testing.assert_close(score(model, processor, state, [105], 200), expected, atol=1e-5, rtol=0)


def test_states_travel_and_know_their_model(tmp_path):
    model, processor = MODELS[90]
    history = events_of(3, 10)
    time = history[-1]["time"] + 1
    state = UserState(model, processor, history)
    state.save(tmp_path / "u.safetensors")
    again = UserState.load(tmp_path / "u.safetensors", model, processor)
    expected = one_by_one(model, processor, history, CANDIDATES, time)
    torch.testing.assert_close(score(model, processor, again, CANDIDATES, time), expected, atol=1e-5, rtol=0)
    again.extend(events_of(4, 2, time))
    assert again.reencoded == 0
    other, _ = make(90)
    with torch.no_grad():
        other.head[0].bias.add_(1)
    with pytest.raises(ValueError, match="another model"):
        UserState.load(tmp_path / "u.safetensors", other, processor)
    with pytest.raises(ValueError, match="another processor"):
        UserState.load(tmp_path / "u.safetensors", model, SequenceProcessor.fit(sequence_log(1, num_items=20)))


def test_features_and_statistics_in_requests():
    model, processor = make(
        item_features=["genres"],
        user_features=["country"],
        list_values=2,
        statistics_reader=StatisticsReader(("user_count",), 0.5, mean=(0.0,), scale=(1.0,)),
    )
    history, user = events_of(5, 6), {"country": "c1"}
    time = history[-1]["time"] + 1
    candidates = [{"item": 100 + i, "user": user, "statistics": [float(i)]} for i in range(4)]
    with torch.no_grad():
        batch = processor(
            [history], [[100, 101, 102, 103]], times=[time], users=[user], statistics=[[[0], [1], [2], [3]]]
        )
        expected = model(**batch).logits[0]
    torch.testing.assert_close(score(model, processor, history, candidates, time), expected, atol=1e-5, rtol=0)
    state = UserState(model, processor, history)
    torch.testing.assert_close(score(model, processor, state, candidates, time), expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match=r"candidates\[1\] has no 'statistics'"):
        score(model, processor, history, [candidates[0], {"item": 100, "user": user}], time)


def test_behaviors_that_no_block_reads():
    model, processor = make(strategies=STRATEGIES[:1])
    unread = [{"item": 100, "behavior": "full-play", "scenario": "home", "time": time} for time in (1, 5, 9)]
    state = UserState(model, processor, unread)
    assert (state.num_seen, state.num_kept, state.last_time) == (3, 1, 9)
    torch.testing.assert_close(state.score(CANDIDATES, 10), score(model, processor, unread, CANDIDATES, 10))
    with pytest.raises(ValueError, match=r"time 9 is not after the user's last behaviour at 9"):
        state.score(CANDIDATES, 9)
    with pytest.raises(ValueError, match="oldest first"):
        state.extend([{**unread[0], "time": 8}])
    more = [{**unread[0], "behavior": "like", "time": 12}]
    state.extend(more)
    expected = score(model, processor, unread + more, CANDIDATES, 20)
    torch.testing.assert_close(state.score(CANDIDATES, 20), expected, atol=1e-5, rtol=1e-5)


def test_history_length_of_the_processor():
    model, processor = make(max_history_length=4)
    history = events_of(6, 11)
    time = history[-1]["time"] + 1
    expected = one_by_one(model, processor, history, CANDIDATES, time)
    state = UserState(model, processor, history)
    assert state.num_kept <= 4
    torch.testing.assert_close(score(model, processor, state, CANDIDATES, time), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("change", "message"), [
    (lambda h: [*h, h[0]], r"history\[4\]: time"),
    (lambda h: [h[0] | {"behavior": "loved"}, *h[1:]], r"history\[0\]: unknown behavior 'loved'"),
    (lambda h: [h[0] | {"scenario": "shop"}, *h[1:]], r"history\[0\]: unknown scenario"),
])  # fmt: skip
def test_bad_histories(change, message):
    model, processor = MODELS[90]
    history = events_of(7, 4)
    with pytest.raises(ValueError, match=message):
        score(model, processor, change(history), [100], history[-1]["time"] + 99)
    with pytest.raises(ValueError, match=message):
        UserState(model, processor, change(history))


def test_bad_requests_to_states():
    model, processor = MODELS[90]
    history = events_of(7, 4)
    last = history[-1]["time"]
    state = UserState(model, processor, history)
    with pytest.raises(ValueError, match="last behaviour is at"):
        score(model, processor, state, [100], last)
    with pytest.raises(ValueError, match=r"candidates\[0\]: unknown scenario 'shop'"):
        score(model, processor, state, [{"item": 100, "scenario": "shop"}], last + 1)
    with pytest.raises(ValueError, match=r"behaviors\[0\]"):
        state.extend([history[0] | {"time": last - 1}])
    assert score(model, processor, state, [], last + 1).shape == (0,)
