"""Many threads, a training beside them, and wrong requests among right ones: every score is that of the request alone."""

import copy
import gc
import random
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from serving_models import make as make_text

from lmctr.models.common.base import evaluation_copy
from lmctr.runs.answers.served import ServedModel
from lmctr.runs.folder import open_run
from lmctr.runs.loading import load_folder
from lmctr.serving import KeptStates, UserState, score

sys.path.append(str(Path(__file__).parents[1] / "server"))
import served_runs
from served_runs import KINDS, event_request, text_request

TEXT = {"sink_bias_dropout": 0.5}
DROPOUT = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}


def text_model(kind):
    text = {"attention_dropout": 0.5} if kind == "qwen2" else DROPOUT
    return make_text(kind, text_config=text, model=TEXT, feedback="inline", sink_signal="feedback")


def event_model(kind, folder):
    """With dropout wherever the family has some, and running statistics that a training leaves as they are."""
    served_runs.event_run(folder, kind)
    model, processor = load_folder(open_run(folder, "model"))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
        if hasattr(module, "running_mean"):
            module.momentum = 0.0
    return model, processor


@pytest.fixture(params=["qwen2", "bert", "hstu", "din"])
def asked(request, tmp_path):
    """A model with dropout, its processor, and the arguments of 24 requests."""
    is_text = request.param in ("qwen2", "bert")
    model, processor = text_model(request.param) if is_text else event_model(request.param, tmp_path / "run")
    bodies = [(text_request if is_text else event_request)(seed) for seed in range(24)]
    requests = []
    for body in bodies:
        scenario = {} if is_text else {"scenario": body["scenario"]}
        candidates = [{"text" if is_text else "item": one} | scenario for one in body["candidates"]]
        requests.append((body["history"], candidates, body["time"]))
    return model, processor, requests


def in_threads(model, processor, requests, count=8):
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda one: score(model, processor, *one), requests * 3))


def modes(model):
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("is_training", [False, True])
def test_eight_threads_score_as_one_and_leave_the_mode_alone(asked, is_training, monkeypatch):
    model, processor, requests = asked
    expected = [score(model.eval(), processor, *one) for one in requests]
    model.train(is_training)
    own, before, flipped = set(map(id, model.modules())), modes(model), []
    right = torch.nn.Module.train

    def watched(module, mode=True):
        flipped.append(id(module) in own)
        return right(module, mode)

    monkeypatch.setattr(torch.nn.Module, "train", watched)
    for found, wanted in zip(in_threads(model, processor, requests), expected * 3):
        assert torch.equal(found, wanted)
    assert not any(flipped)
    assert modes(model) == before


SCORES = {
    "HSTUForCTR": 450_000,
    "DINForCTR": 450_000,
    "CTRSinkForCTR": 50_000,
}  # twice CTR-Sink: a decoder and an encoder


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_a_million_scores_of_eight_threads_are_those_of_one(asked):
    """In evaluation and in training mode, at most 250 candidates a request; six minutes in all."""
    model, processor, requests = asked
    wanted = SCORES[type(model).__name__]
    requests = [
        (history, (candidates * 250)[: 10 + 10 * n], time) for n, (history, candidates, time) in enumerate(requests)
    ]
    expected = [score(model.eval(), processor, *one) for one in requests]
    compared = 0
    while compared < wanted:
        model.train(compared >= wanted / 2)
        for found, wanted_scores in zip(in_threads(model, processor, requests), expected * 3):
            assert torch.equal(found, wanted_scores)
            compared += len(found)
    print(type(model).__name__, compared, "scores")


def test_scores_during_a_training_are_those_of_evaluation_mode(asked):
    """Another thread computes losses and gradients with the same model all the while."""
    model, processor, requests = asked
    expected = [score(model.eval(), processor, *one) for one in requests]
    model.train()
    history, candidates, time = next(one for one in requests if one[0])
    is_text = "text" in candidates[0]
    targets = {"targets": candidates[:1]} if is_text else {"candidates": [candidates[:1]]}
    batch = processor(histories=[history], times=[time], **targets)
    done, losses, seen = threading.Event(), [], []

    def train():
        while not done.is_set():
            labels = torch.ones(1) if is_text else torch.ones(1, 1)
            loss = model(**batch, labels=labels).loss
            loss.backward()
            losses.append(loss.item())
            seen.append(all(modes(model)))

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for found, wanted in zip(in_threads(model, processor, requests, 4), expected * 3):
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    finally:
        done.set()
        trainer.join()
    assert len(seen) > 1
    assert all(seen)
    if any(isinstance(module, torch.nn.Dropout) for module in model.modules()):
        assert len(set(losses)) > len(losses) / 2  # it stayed on


def test_a_state_made_before_the_training_mode_scores_on():
    model, processor = text_model("qwen2")
    body = text_request(3, behaviors=5)
    state = UserState(model, processor, body["history"])
    expected = state.score(body["candidates"], body["time"])
    model.train()
    for _ in range(3):
        assert torch.equal(score(model, processor, state, body["candidates"], body["time"]), expected)
    model.model.sink_bias.eval()  # half of the model, and it stays so
    before = modes(model)
    assert torch.equal(score(model, processor, body["history"], body["candidates"], body["time"]), expected)
    assert modes(model) == before


def test_the_copy_follows_its_model_and_goes_with_it():
    model, _ = text_model("bert")
    assert evaluation_copy(model) is model  # nothing to do in evaluation mode
    copied = evaluation_copy(model.train())
    assert copied is evaluation_copy(model)
    assert not any(modes(copied))
    shared = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    assert {id(tensor) for tensor in (*copied.parameters(), *copied.buffers())} == shared
    head = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
    head.weight = torch.nn.Parameter(torch.zeros_like(head.weight))
    again = evaluation_copy(model)
    assert again is not copied
    assert any(weight is head.weight for weight in again.parameters())
    seen = [again]
    model.config = copy.deepcopy(model.config)
    seen.append(evaluation_copy(model))
    handle = model.model.register_forward_hook(lambda *given: None)
    seen.append(evaluation_copy(model))
    handle.remove()
    seen.append(evaluation_copy(model))
    model.head.activation = torch.nn.Identity()
    seen.append(evaluation_copy(model))
    assert len({id(one) for one in seen}) == 5
    assert seen[-1] is evaluation_copy(model)
    assert seen[-1].config is model.config
    held = weakref.ref(seen[-1])
    del model, copied, again, head, seen
    gc.collect()
    assert held() is None


WRONG = {
    "text": [
        {"history": [{"text": "a", "time": 10**15}]},
        {"history": [{"text": "a", "time": 5, "feedback": "loved"}]},
        {"time": -1},
        {"candidates": [{"text": 5}]},
    ],
    "events": [
        {"history": [{"item": 100, "behavior": "buy it", "scenario": "home", "time": 1}]},
        {"history": [{"item": 100, "behavior": "click", "scenario": "home", "time": 10**9}]},
    ],
    "table": [
        {"rows": [{"ad": "a1"}]},
        {"rows": [{"ad": "a1", "price": "cheap"}]},
        {"rows": [{"ad": "a1", "price": 1e39}]},
    ],
    "impressions": [{"user": {}}, {"ads": [{}]}],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_request_changes_no_other_answer(kind, tmp_path):
    """Past the door, in one batch with right ones, wherever it stands."""
    make_run, make_request = KINDS[kind]
    served = ServedModel(str(make_run(tmp_path / "run")))
    right = [served.check(make_request(seed)) for seed in range(6)]
    alone = [served.score([(body, None)])[0].logits for body in right]
    for number, change in enumerate(WRONG[served.kind]):
        bodies = [*right]
        bodies.insert(number * 2, {**right[0], **change})
        found = served.score([(body, None) for body in bodies])
        assert isinstance(found.pop(number * 2), Exception), change
        for one, expected in zip(found, alone):
            torch.testing.assert_close(torch.tensor(one.logits), torch.tensor(expected), atol=1e-5, rtol=1e-5)


def use_at_random(states, made, draw):
    """One of eight uses of kept states; which."""
    user = str(draw.randrange(12))
    do = draw.choice(["put", "put", "get", "grown", "remove", "begin_move", "finish_move", "expire"])
    if do == "put":
        assert states.put(user, draw.choice(made))
    elif do == "begin_move":
        states.begin_move(lambda state: draw.choice([state, None, *made]))
    elif do in ("expire", "finish_move"):
        getattr(states, do)()
    else:
        getattr(states, do)(user)
    return do


def some_states():
    model, processor = make_text(sink_signal="feedback", feedback="inline")
    return [UserState(model, processor, text_request(n, behaviors=n)["history"]) for n in range(8)]


def test_kept_states_stay_within_their_bounds_whatever_is_done():
    """2,000 random uses, each checked against what the states themselves say."""
    made = some_states()
    largest = max(state.num_bytes for state in made)
    now, draw = [0.0], random.Random(0)
    states = KeptStates(3 * largest, time_to_live=50, clock=lambda: now[0])
    for _ in range(2000):
        now[0] += draw.random() * 10
        do = use_at_random(states, made, draw)
        kept = [one.state.num_bytes for one in states._kept.values()]
        assert states.num_bytes == sum(kept)
        if do in ("put", "grown", "move"):
            assert states.num_bytes <= states.max_bytes
    assert min(states.counts[why] for why in ("hits", "misses", "memory", "expired", "model")) > 0


def test_kept_states_count_right_under_eight_threads():
    """Threads that change places after every few instructions: nothing is counted twice, and nothing fails."""
    made = some_states()
    states = KeptStates(3 * max(state.num_bytes for state in made), time_to_live=0.001)

    def use(seed):
        draw = random.Random(seed)
        for _ in range(200):
            use_at_random(states, made, draw)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(use, range(8)))
    finally:
        sys.setswitchinterval(before)
    assert states.num_bytes == sum(one.state.num_bytes for one in states._kept.values()) <= states.max_bytes
