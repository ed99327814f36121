"""Requests and kept states on an accelerator: the scores of the CPU, and no tensor that was made elsewhere."""

import copy

import pytest
import serving_models
import test_event_scorers
import torch
from pretended_device import pretended
from sequence_rows import CANDIDATES, events_of

from lmctr.serving import UserState, score


def scores(model, processor, history, candidates):
    """Of a request, a kept state, and the state after one more behaviour."""
    time = history[-1]["time"] + 5
    kept = UserState(model, processor, history[:-1])
    found = [score(model, processor, history, candidates, time), score(model, processor, kept, candidates, time)]
    kept.extend(history[-1:])
    return [*found, score(model, processor, kept, candidates, time)]


def assert_equal_there(monkeypatch, model, *request):
    expected = scores(model, *request)
    moved = copy.deepcopy(model)
    with pretended(monkeypatch):
        moved.to("cuda")
        assert {one.device.type for one in moved.parameters()} == {"cuda"}
        found = [one.cpu() for one in scores(moved, *request)]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", ["qwen2", "gpt2", "bert"])
@pytest.mark.parametrize("bias", [None, "all"])
def test_texts(monkeypatch, model_type, bias):
    model, processor = serving_models.make(model_type, model={"sink_bias_layers": bias, "sink_bias_scale_init": 3.0})
    history, candidates = serving_models.history_of(5), serving_models.candidates_of(6)
    assert_equal_there(monkeypatch, model, processor, history, candidates)


@pytest.mark.parametrize("family", list(test_event_scorers.SMALL))
def test_events(monkeypatch, family):
    model, processor = test_event_scorers.make(family)
    assert_equal_there(monkeypatch, model, processor, events_of(5, 8), CANDIDATES)
