"""Requests to the rivals of ASTRO: equal to rows of one candidate; kept histories equal to encoding again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_rows import CANDIDATES, events_of, one_by_one, sequence_log

import lmctr
from lmctr import SequenceProcessor
from lmctr.serving import UserState, score, scorer_for
from lmctr.statistics import StatisticsReader

SMALL = {
    "din": {"embedding_dim": 8},
    "twin": {"hidden_size": 8, "num_attention_heads": 2, "num_selected": 4},
    "dlrm_twin": {"hidden_size": 8, "num_attention_heads": 2, "num_selected": 4},
    "behavior_transformer": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_hidden_sizes": [32, 16],
    },
    "hstu": {"hidden_size": 16, "num_hidden_layers": 2},
    "hstu next": {"hidden_size": 16, "num_hidden_layers": 3, "time_of": "next"},
    "astro": {"hidden_size": 16, "num_hidden_layers": 1, "sequence_length": 30},
}
RIVALS = [family for family in SMALL if family != "astro"]
CACHED = ("behavior_transformer", "hstu", "hstu next")


def make(family, length=None, **options):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    processor = SequenceProcessor.fit(sequence_log(extra_labels=("like",)), max_history_length=length, **options)
    torch.manual_seed(0)
    values = {**SMALL[family], **processor.model_config_values(), "initializer_range": 0.1}
    return lmctr.AutoModelForCTR.from_config(CONFIG_MAPPING[family.split()[0]](**values)).eval(), processor


MODELS = {(family, length): make(family, length) for family in RIVALS for length in (None, 6)}


@pytest.mark.parametrize("family", list(SMALL))
def test_statistics_of_candidates_count_past_the_network_too(family):
    """Whether a request is scored on its own or as a row; kept in part by models that keep the history."""
    reader = StatisticsReader(("last_5_mean", "last_20_mean"), 0.5, mean=(0.0, 0.0), scale=(1.0, 1.0))
    model, processor = make(family, statistics_reader=reader)
    with torch.no_grad():
        model.statistics_skip.weight.copy_(torch.tensor([[0.5, -2.0]]))
    history = events_of(5, 6)
    values = [[float(place), 1.0 + place % 2] for place in range(len(CANDIDATES))]
    candidates = [{**one, "statistics": own} for one, own in zip(CANDIDATES, values)]
    with torch.no_grad():
        rows = processor([history], [CANDIDATES], times=[99], statistics=[values])
        expected = model(**rows).logits[0]
        model.statistics_skip.weight.zero_()
        without = model(**rows).logits[0]
        model.statistics_skip.weight.copy_(torch.tensor([[0.5, -2.0]]))
    torch.testing.assert_close(expected - without, torch.tensor(values) @ torch.tensor([0.5, -2.0]), atol=1e-5, rtol=0)
    for source in (history, UserState(model, processor, history)):
        found = score(model, processor, source, candidates, 99, max_tokens=30)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", RIVALS)
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10_000), count=st.integers(0, 12), length=st.sampled_from([None, 6]), more=st.integers(0, 4)
)
def test_requests_and_states_equal_rows_of_one(family, seed, count, length, more):
    """Whether the history is cut (the latest 6 events) or not, in forward passes of few candidates."""
    model, processor = MODELS[family, length]
    history = events_of(seed, count)
    last = history[-1]["time"] if history else 0
    state = UserState(model, processor, history)
    for step in range(2):
        expected = one_by_one(model, processor, history, CANDIDATES, last + 3)
        for source in (history, state):
            found = score(model, processor, source, CANDIDATES, last + 3, max_tokens=30)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        new = events_of(seed + step + 1, more, last + 3)
        state.extend(new)
        history = history + new
        last = history[-1]["time"] if history else 0
        assert state.num_kept == (len(history) if length is None else min(len(history), length))


@pytest.mark.parametrize("family", CACHED)
def test_extending_encodes_the_new_events_only(family):
    model, processor = MODELS[family, None]
    history = events_of(1, 9)
    state = UserState(model, processor, history)
    assert state.num_encoded == 9
    seen = []
    hook = model.model.layers[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    state.extend(events_of(2, 2, history[-1]["time"]))
    hook.remove()
    assert seen == [4 if family.startswith("hstu") else 2]  # HSTU has two tokens per event
    assert state.reencoded == 0
    assert state.num_encoded == 11


@pytest.mark.parametrize("family", CACHED)
def test_a_full_history_is_encoded_again(family):
    model, processor = MODELS[family, 6]
    history = events_of(1, 6)
    state = UserState(model, processor, history)
    state.extend(events_of(2, 1, history[-1]["time"]))
    assert state.reencoded == 6
    assert state.num_encoded == 6


@pytest.mark.parametrize("family", RIVALS)
def test_states_travel_and_know_their_model(family, tmp_path):
    model, processor = MODELS[family, None]
    history = events_of(3, 8)
    time = history[-1]["time"] + 1
    UserState(model, processor, history).save(tmp_path / "u.safetensors")
    again = UserState.load(tmp_path / "u.safetensors", model, processor)
    expected = one_by_one(model, processor, history, CANDIDATES, time)
    torch.testing.assert_close(score(model, processor, again, CANDIDATES, time), expected, atol=1e-5, rtol=1e-5)
    assert again.num_encoded == (8 if family in CACHED else 0)
    other, _ = make(family)
    with torch.no_grad():
        other.head.bias.add_(1)
    with pytest.raises(ValueError, match="another model"):
        UserState.load(tmp_path / "u.safetensors", other, processor)


@pytest.mark.parametrize("family", ["twin", "hstu"])
def test_several_tasks_features_and_refusals(family):
    model, processor = make(
        family, tasks=["label", "like"], item_features=["genres"], user_features=["country"], list_values=2
    )
    history = events_of(4, 5)
    time = history[-1]["time"] + 1
    candidates = [{"item": 100 + i, "user": {"country": "c1"}} for i in range(3)]
    found = score(model, processor, history, candidates, time)
    with torch.no_grad():
        batch = processor([history], [[100, 101, 102]], times=[time], users=[{"country": "c1"}])
        expected = model(**batch).logits[0]
    assert found.shape == (3, 2)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert score(model, processor, history, [], time).shape == (0, 2)
    with pytest.raises(ValueError, match=r"candidates\[1\] has another 'user'"):
        score(model, processor, history, [candidates[0], {"item": 101, "user": {"country": "c0"}}], time)
    with pytest.raises(ValueError, match=r"candidates\[2\]:? has 'statistics', of which this model reads nothing"):
        score(model, processor, history, [*candidates[:2], candidates[2] | {"statistics": [0.5]}], time)
    with pytest.raises(ValueError, match="takes none"):
        score(model, processor, history, candidates, time, similarity=[[0.0] * 5] * 3)
    with pytest.raises(ValueError, match=r"candidates come after it"):
        score(model, processor, history, candidates, history[-1]["time"])
    with pytest.raises(ValueError, match=r"history\[0\]: unknown scenario 'serach'"):
        score(model, processor, [{**history[0], "scenario": "serach"}], candidates, time)


def test_reasons():
    shared = {family: scorer_for(*MODELS[family, None]).encoded_class is not None for family in RIVALS}
    assert shared == {family: family in CACHED for family in RIVALS}
