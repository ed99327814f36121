"""The batcher, kept states, and candidates of several users in one pass."""

import itertools
import math
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from serving_models import assert_equal, candidates_of, history_of, make, row_by_row

from lmctr.serving import Batcher, KeptStates, UserState, scorer_for
from lmctr.serving.batching import DeadlinePassed, Draining, QueueFull


class Recorder:
    """Works whose first batch waits until it is let go."""

    def __init__(self):
        self.batches, self.began, self.go = [], threading.Event(), threading.Event()

    def __call__(self, works):
        self.batches.append(list(works))
        self.began.set()
        assert self.go.wait(20)
        return [ValueError(f"no {work}") if work < 0 else work * 10 for work in works]


def test_what_waits_is_taken_together_in_order_up_to_the_bound():
    run = Recorder()
    batcher = Batcher(run, max_positions=10, max_wait=0.0)
    first = batcher.submit(1)
    assert run.began.wait(20)
    futures = [batcher.submit(work, positions) for work, positions in ((2, 4), (-3, 4), (4, 4), (5, 30), (6, 1))]
    assert batcher.num_waiting == 5
    run.go.set()
    assert [first.result(), futures[0].result(), futures[2].result()] == [10, 20, 40]
    with pytest.raises(ValueError, match="no -3"):
        futures[1].result()
    batcher.close()
    assert futures[4].result() == 60  # what waits is done before the end
    assert run.batches == [[1], [2, -3], [4], [5], [6]]  # 30 positions go alone
    with pytest.raises(Draining):
        batcher.submit(7)


def test_a_batch_waits_for_company_only_so_long():
    batches = []
    with_time = Batcher(lambda works: batches.append(len(works)) or works, max_wait=0.3)
    futures = []
    for work in range(3):
        futures.append(with_time.submit(work))
        time.sleep(0.02)
    began = time.monotonic()
    assert [future.result() for future in futures] == [0, 1, 2]
    assert time.monotonic() - began < 5
    with_time.close()
    assert batches == [3]


def test_deadlines_full_queues_and_callers_who_left():
    run = Recorder()
    batcher = Batcher(run, max_wait=0.0, max_queue=3)
    first = batcher.submit(1)
    assert run.began.wait(20)
    late = batcher.submit(2, deadline=time.monotonic() + 0.05)
    left = batcher.submit(3)
    good = batcher.submit(4, deadline=time.monotonic() + 60)
    with pytest.raises(QueueFull) as full:
        batcher.submit(5)
    assert full.value.retry_after >= 1
    ahead = batcher.submit(6, alone=True)
    assert left.cancel()
    time.sleep(0.1)
    run.go.set()
    with pytest.raises(DeadlinePassed):
        late.result()
    assert (first.result(), good.result(), ahead.result()) == (10, 40, 60)
    batcher.close()
    assert run.batches == [[1], [6], [4]]


class Traced:
    """Works that last as long as they say, and when each began and ended."""

    def __init__(self):
        self.lock, self.spans, self.batches = threading.Lock(), {}, []

    def __call__(self, works):
        with self.lock:
            self.batches.append([name for name, _ in works])
        for name, seconds in works:
            began = time.monotonic()
            time.sleep(seconds)
            with self.lock:
                self.spans[name] = (began, time.monotonic())
        return [name for name, _ in works]

    def overlap(self, one, other):
        return self.spans[one][0] < self.spans[other][1] and self.spans[other][0] < self.spans[one][1]


def test_threads_work_at_the_same_time_and_share_what_waits():
    run = Traced()
    batcher = Batcher(run, workers=2, max_wait=0.0)
    busy = []
    for name in "ab":
        busy.append(batcher.submit((name, 0.5)))
        time.sleep(0.1)
    waiting = [batcher.submit((number, 0.01)) for number in range(5)]
    assert [future.result() for future in (*busy, *waiting)] == ["a", "b", 0, 1, 2, 3, 4]
    assert batcher.is_alive
    batcher.close()
    assert not batcher.is_alive
    assert run.overlap("a", "b")
    assert [len(batch) for batch in run.batches[:3]] == [1, 1, 3]


def test_works_of_one_key_wait_for_each_other_and_nobody_else_for_them():
    run = Traced()
    batcher = Batcher(run, workers=3, max_wait=0.0)
    kept = []
    for number in range(3):  # each in a batch of its own
        kept.append(batcher.submit((f"kept {number}", 0.2), key="user"))
        time.sleep(0.05)
    others = [batcher.submit((f"other {number}", 0.2), key=number) for number in range(2)]
    for future in (*kept, *others):
        future.result()
    batcher.close()
    ends = [run.spans[f"kept {number}"] for number in range(3)]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
    assert run.overlap("kept 0", "other 0")


def test_what_goes_alone_has_all_threads_idle():
    run = Traced()
    batcher = Batcher(run, workers=2, max_wait=0.0)
    before = [batcher.submit((name, 0.2)) for name in "ab"]
    time.sleep(0.05)
    after = [batcher.submit((name, 0.2)) for name in "cd"]
    alone = batcher.submit(("alone", 0.2), alone=True)
    for future in (*before, alone, *after):
        future.result()
    batcher.close()
    assert not any(run.overlap("alone", name) for name in "abcd")
    assert max(run.spans[name][1] for name in "ab") <= run.spans["alone"][0]
    assert run.spans["alone"][1] <= min(run.spans[name][0] for name in "cd")


def test_a_run_that_fails_does_not_end_the_thread():
    def run(works):
        if 0 in works:
            raise RuntimeError("broken")
        return works

    batcher = Batcher(run, max_wait=0.0)
    with pytest.raises(RuntimeError, match="broken"):
        batcher.submit(0).result()
    assert batcher.submit(1, deadline=math.inf).result() == 1
    assert batcher.is_alive
    batcher.close()


def test_what_was_done_is_held_by_no_thread_that_waits():
    """Such as the model before the last that was taken over."""
    batcher = Batcher(lambda works: [None] * len(works), workers=3, max_wait=0.0)
    works = [threading.Event() for _ in range(3)]
    held = [weakref.ref(work) for work in works]
    for work in works:
        batcher.submit(work).result()
    batcher.submit(None, alone=True).result()
    del works, work
    end = time.monotonic() + 20
    while any(ref() for ref in held) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(ref() for ref in held)
    batcher.close()


def test_kept_states_are_bounded_by_memory_and_time():
    model, processor = make(sink_signal="feedback", feedback="inline")
    now = [0.0]
    one = UserState(model, processor, history_of(6)).num_bytes
    layers, heads, width = 3, 2, 8  # of the keys and values that are held, float32
    assert one > 6 * 2 * 4 * layers * heads * width
    states = KeptStates(int(2.5 * one), time_to_live=100, clock=lambda: now[0])
    for user in ("a", "b"):
        assert states.put(user, UserState(model, processor, history_of(6)))
        now[0] += 1
    assert states.get("a") is not None  # so that b is the least recently used
    assert states.put("c", UserState(model, processor, history_of(6)))
    assert (states.get("b"), len(states)) == (None, 2)
    assert states.num_bytes == sum(states.get(user).num_bytes for user in ("a", "c")) <= states.max_bytes
    now[0] += 101
    assert states.get("a") is None
    assert (len(states), states.num_bytes) == (0, 0)
    assert dict(states.counts) == {"hits": 3, "misses": 2, "memory": 1, "expired": 2, "model": 0}
    small = KeptStates(one // 2)
    assert not small.put("a", UserState(model, processor, history_of(6)))
    assert (len(small), small.num_bytes) == (0, 0)


def test_the_time_of_a_kept_state_begins_at_the_end_of_its_use():
    """However the uses of several overlap: none goes before its time, and none stays behind one that was used later."""
    model, processor = make(sink_signal="feedback", feedback="inline")
    now = [0.0]
    states = KeptStates(1 << 30, time_to_live=100, clock=lambda: now[0])
    for user in "ab":
        assert states.put(user, UserState(model, processor, history_of(2)))
    for at, use, user in ((10, "get", "a"), (20, "get", "b"), (60, "grown", "b"), (90, "grown", "a")):
        now[0] = at
        assert getattr(states, use)(user)
    now[0] = 161
    states.expire()
    assert [(user, idle) for user, _, idle in states.all()] == [("a", 71.0)]
    now[0] = 189
    assert states.get("a") is not None
    assert states.counts["expired"] == 1


def test_states_go_over_to_another_model_before_their_next_use():
    """Nobody waits for the states of others; those that nobody asks for go over in the end; a new one is left alone."""
    model, processor = make(sink_signal="feedback", feedback="inline")
    states, moved = KeptStates(1 << 30), []
    old, new = ({user: UserState(model, processor, history_of(4)) for user in "abcd"} for _ in range(2))
    replacements = {id(old["a"]): new["a"], id(old["c"]): None, id(old["d"]): new["d"]}
    for user, state in old.items():
        states.put(user, state)

    def move(state):
        moved.append(state)
        return replacements[id(state)]

    states.begin_move(move)
    assert moved == []
    assert states.get("a") is new["a"]
    assert states.get("a") is new["a"]
    assert moved == [old["a"]]
    states.put("b", new["b"])
    assert states.get("c") is None
    assert states.finish_move() == 1
    assert moved == [old["a"], old["c"], old["d"]]
    assert [states.get(user) for user in "abd"] == [new[user] for user in "abd"]
    assert states.finish_move() == 1
    assert (len(moved), states.counts["model"]) == (3, 1)


def test_states_that_a_move_has_left_go_over_to_the_next_model_at_once():
    """Nobody waits for all of them in between."""
    model, processor = make(sink_signal="feedback", feedback="inline")
    states, moves = KeptStates(1 << 30), []
    old, newer, newest = ({user: UserState(model, processor, history_of(4)) for user in "abc"} for _ in range(3))
    for user, state in old.items():
        states.put(user, state)
    of_user = {id(state): user for made in (old, newer) for user, state in made.items()}
    for number, models in enumerate((newer, newest)):
        states.begin_move(
            lambda state, number=number, models=models: (
                moves.append((number, of_user[id(state)])) or models[of_user[id(state)]]
            )
        )
        assert len(moves) == number
        assert states.get("a") is models["a"]
    assert states.finish_move() == 0
    assert sorted(moves) == [(0, "a"), (1, "a"), (1, "b"), (1, "c")]
    assert [states.get(user) for user in "abc"] == list(newest.values())


def test_a_state_that_grows_in_use_counts_as_it_is():
    """With elapsed times nothing is encoded before the first request."""
    model, processor = make(sink_signal="elapsed")
    states = KeptStates(1 << 30)
    states.put("a", UserState(model, processor, history_of(6)))
    before = states.num_bytes
    states.get("a").score(candidates_of(2), 10**6)
    assert states.grown("a")
    assert states.num_bytes > before + 1000
    assert not states.grown("nobody")


@pytest.mark.parametrize("settings", [{}, {"sink_signal": "recency", "max_length": 60}, {"sink_kind": "none"}])
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_several_users_in_one_pass_get_the_scores_of_each_alone(settings, attn):
    """Prefixes and candidates of many lengths, an empty history and a long list among them."""
    model, processor = make(attn=attn, **settings)
    users = [(history_of(length, seed=length), candidates_of(count, seed=count)) for length, count in _USERS]
    states = [UserState(model, processor, history) for history, _ in users]
    time_ = 10**6
    passes = []
    hook = model.model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append(kwargs["use_cache"]), with_kwargs=True
    )
    scorer = scorer_for(model, processor)
    found = scorer.score_many([state.request(own, time_) for state, (_, own) in zip(states, users)])
    hook.remove()
    assert passes.count(False) < len(users)  # candidates of several users stand in one row
    for (logits, encoded, reencoded), state, (history, candidates) in zip(found, states, users):
        assert_equal_or_single(logits, row_by_row(model, processor, history, candidates, time_))
        torch.testing.assert_close(
            logits, UserState(model, processor, history).score(candidates, time_), atol=1e-5, rtol=0
        )
        state.keep(encoded, reencoded)
        np.testing.assert_allclose(state.score(candidates, time_), logits, atol=1e-5, rtol=0)


_USERS = [(5, 4), (6, 3), (0, 3), (3, 2), (5, 60), (2, 1), (6, 5)]


def assert_equal_or_single(found, expected):
    if len(expected) > 1:
        assert_equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_close_that_does_not_wait_for_ever():
    began, go = threading.Event(), threading.Event()
    batcher = Batcher(lambda works: (began.set(), go.wait(20), works)[2])
    future = batcher.submit(1)
    assert began.wait(20)
    assert not batcher.close(timeout=0.05)
    go.set()
    assert batcher.close(timeout=20)
    assert future.result() == 1
