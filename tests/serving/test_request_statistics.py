"""Statistics at serving time: counted from behaviours and a table of items, they are those that a training saw."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from serving_models import assert_equal, make

from lmctr.data.batches.text import TextView
from lmctr.runs.answers.engine import Engine
from lmctr.runs.answers.predict import answers_for
from lmctr.runs.answers.served import ServedModel
from lmctr.runs.folder import ITEM_STATISTICS
from lmctr.serving import UserState, score, scorer_for, user_state
from lmctr.serving.statistics import RequestStatistics
from lmctr.statistics import ItemStatistics, StatisticsReader

sys.path.append(str(Path(__file__).parents[1] / "data"))

from text_logs import small_log

MODELS = {
    "packed": ("qwen2", {"sink_signal": ["recency", "feedback"], "feedback": "sink"}),
    "rows": ("bert", {"sink_signal": ["recency", "feedback"], "feedback": "sink"}),
    "fields": ("bert", {"layout": "split", "sink_signal": "feedback", "feedback": "sink"}),
}


@pytest.fixture(scope="module")
def log():
    """Feedback says the label: unknown, negative, positive."""
    log = small_log(num_users=8, most_events=25, copies=2)
    log.feedback[:] = log.label + 1
    return log


@pytest.fixture(scope="module")
def reader(log):
    return StatisticsReader.fit(log, log.sample_events()[::2], "full")


def made(kind, reader):
    model_type, settings = MODELS[kind]
    model, processor = make(
        model_type,
        statistics_reader=reader,
        feedback_labels=[-1, 0, 1],
        prompt="generic/en",
        model={"num_statistics": len(reader.names), "statistics_hidden_sizes": [8]},
        **settings,
    )
    with torch.no_grad():
        model.head.statistics.skip.weight.normal_(std=0.3)
    return model, processor


def request_of(log, processor, event):
    """The sample as a request: behaviours and a target with items' ids."""
    texts = processor.item_texts(log.catalogue)
    start, end = (int(bound[0]) for bound in log.history_bounds([event]))
    history = [
        {
            "text": texts[log.item[e]],
            "time": int(log.time[e]),
            "feedback": int(log.feedback[e]),
            "item": int(log.catalogue["item_id"][int(log.item[e])].as_py()),
        }
        for e in range(start, end)
    ]
    item = int(log.item[event])
    target = {"text": texts[item], "item": int(log.catalogue["item_id"][item].as_py())}
    return history, target, int(log.time[event])


@pytest.mark.parametrize("kind", MODELS)
def test_a_row_has_the_values_that_training_saw(kind, log, reader):
    model, processor = made(kind, reader)
    assert scorer_for(model, processor).shares_prefix == (kind == "packed")
    view = TextView(log, processor)
    raw = dict(zip(log.sample_events().tolist(), reader.raw(log, log.sample_events())))
    found, wanted = [], []
    for event in log.sample_events()[::9]:
        history, target, time = request_of(log, processor, event)
        items = ItemStatistics.from_log(log, reader, time)
        known = RequestStatistics(processor, items)
        known.extend(history)
        (filled,) = known.fill([target], time)
        np.testing.assert_allclose(filled["statistics"], raw[int(event)], rtol=1e-6, atol=1e-6)
        found.append(score(model, processor, history, [target], time, items=items)[0])
        with torch.no_grad():
            batch = view.batch([int(event)])
            wanted.append(model(**batch).logits[0])
    assert_equal(torch.stack(found), torch.stack(wanted))


@pytest.mark.parametrize("kind", MODELS)
def test_kept_states_and_given_numbers(kind, log, reader, tmp_path):
    model, processor = made(kind, reader)
    event = int(log.sample_events()[np.argmax(log.history_lengths(log.sample_events()))])
    history, target, time = request_of(log, processor, event)
    texts = processor.item_texts(log.catalogue)
    candidates = [
        target,
        *({"text": texts[i] or "", "item": i} for i in range(5)),
        {"text": "Never seen", "item": None},
    ]
    items = ItemStatistics.from_log(log, reader, time)
    expected = score(model, processor, history, candidates, time, items=items)
    state = UserState(model, processor, history[:3], items=items)
    state.extend(history[3:7])
    state = UserState.load(state.save(tmp_path / "user.safetensors"), model, processor, items=items)
    state.extend(history[7:])
    assert_equal(state.score(candidates, time), expected)

    known = RequestStatistics(processor, items)
    known.extend(history)
    given = [{"text": c["text"], "statistics": c["statistics"]} for c in known.fill(candidates, time)]
    assert_equal(score(model, processor, history, given, time), expected)
    rows = processor(histories=[history] * len(given), targets=given, times=[time] * len(given))
    with torch.no_grad():
        assert_equal(model(**rows).logits, expected)
    labelled = [{key: value for key, value in entry.items() if key != "feedback"} for entry in history]
    labelled = [entry | {"label": (None, 0, 1)[old["feedback"]]} for entry, old in zip(labelled, history)]
    known = RequestStatistics(processor, items)
    known.extend(labelled)
    assert [c["statistics"] for c in known.fill(candidates, time)] == [
        pytest.approx(c["statistics"], nan_ok=True) for c in given
    ]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", MODELS)
def test_a_copied_state_goes_on_by_itself(kind, copied, log, reader):
    model, processor = made(kind, reader)
    event = int(log.sample_events()[np.argmax(log.history_lengths(log.sample_events()))])
    history, target, time = request_of(log, processor, event)
    items = ItemStatistics.from_log(log, reader, time)
    history[-1]["feedback"] = 2  # is counted
    asked = [target], time + 9
    states = [UserState(model, processor, part, items=items) for part in (history[:-1], history)]
    before, after = (state.score(*asked) for state in states)
    assert not torch.equal(before, after)
    other = copied(states[0])
    other.extend(history[-1:])
    torch.testing.assert_close(other.score(*asked), after, atol=1e-5, rtol=0)
    torch.testing.assert_close(states[0].score(*asked), before, atol=1e-5, rtol=0)


def test_what_is_missing_is_told(log, reader, tmp_path):
    model, processor = made("packed", reader)
    plain, plain_processor = make("qwen2")
    items = ItemStatistics.from_log(log, reader)
    later = int(log.time.max()) + 10
    history = [{"text": "Heat", "time": later - 5, "feedback": 2, "item": 0}]
    with pytest.raises(ValueError, match=r"candidates\[0\] has no 'statistics', of which the model reads"):
        score(model, processor, history, ["Casino"], later)
    with pytest.raises(ValueError, match=r"candidates\[1\] has no 'item'"):
        score(model, processor, history, [{"text": "a", "item": 1}, "Casino"], later, items=items)
    with pytest.raises(ValueError, match=r"history\[0\] has no 'item'"):
        score(model, processor, [{"text": "Heat", "time": 1}], [{"text": "a", "item": 1}], later, items=items)
    for item in (3.5, True, "nope", [1], float("nan")):
        with pytest.raises(ValueError, match=r"candidates\[1\]: item: .* is no id; those .* are integers"):
            score(
                model, processor, history, [{"text": "a"} | {"item": own} for own in (None, item)], later, items=items
            )
        with pytest.raises(ValueError, match=r"history\[0\]: item: .* is no id; those .* are integers"):
            score(model, processor, [history[0] | {"item": item}], [{"text": "a", "item": 1}], later, items=items)
    with pytest.raises(ValueError, match=r"history\[0\] has no 'time'; a behaviour needs 'text' and 'time'"):
        RequestStatistics(processor, items).extend([{"text": "Heat", "item": 1, "feedback": 2}])
    with pytest.raises(ValueError, match="items: the model reads no statistics"):
        score(plain, plain_processor, [], ["Casino"], later, items=items)
    state = UserState(model, processor, history, items=items)
    before = state.score([{"text": "a", "item": 1}], later)
    with pytest.raises(ValueError, match=r"behaviors\[0\] has no 'item'"):
        state.extend([{"text": "Heat", "time": later - 1, "feedback": 1}])
    assert torch.equal(state.score([{"text": "a", "item": 1}], later), before)
    assert state.num_seen == 1
    with pytest.raises(ValueError, match="items: a UserState reads the table"):
        score(model, processor, state, ["Casino"], later, items=items)
    file = state.save(tmp_path / "user.safetensors")
    with pytest.raises(ValueError, match="counts the user's statistics: give"):
        UserState.load(file, model, processor)
    _, vague = make("qwen2", statistics_reader=reader, feedback="inline")
    with pytest.raises(ValueError, match=r"history\[0\] has no 'label'"):
        RequestStatistics(vague, items).extend(history)


@pytest.mark.parametrize("kind", ["packed", "rows"])
def test_kept_states_of_several_users_move_to_other_weights_and_are_served(kind, log, reader, tmp_path, monkeypatch):
    """What a state has counted goes over to a model of other weights; in a server it scores as the whole history does."""
    model, processor = made(kind, reader)
    newer = copy.deepcopy(model)
    with torch.no_grad():
        newer.head.dense.weight.add_(0.3 * torch.randn_like(newer.head.dense.weight))
    starts, ends = log.history_bounds(log.sample_events())
    long = log.sample_events()[np.argsort(starts - ends, kind="stable")[:4]]
    time = int(log.time.max()) + 100
    items = ItemStatistics.from_log(log, reader, time)
    asked = [request_of(log, processor, event)[:2] for event in long]
    candidates = [target for _, target in asked]
    states = [UserState(model, processor, history, items=items) for history, _ in asked]
    assert any(state.num_kept < state.num_seen for state in states)
    found = scorer_for(model, processor).score_many([state.request(candidates, time) for state in states])
    for (logits, *_), state, (history, _) in zip(found, states, asked):
        assert_equal(logits, score(model, processor, history, candidates, time, items=items))
        moved = state.moved_to(newer, processor, items)
        assert moved.num_seen == len(history)
        assert_equal(moved.score(candidates, time), score(newer, processor, history, candidates, time, items=items))
        assert (moved.score(candidates, time) - logits).abs().max() > 1e-3

    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    items.save(tmp_path / ITEM_STATISTICS)
    engine = Engine(ServedModel(str(tmp_path)), max_wait=0.05)
    for user, (history, _) in enumerate(asked):
        assert engine.add_events(str(user), {"events": history, "start": True}).result().num_seen == len(history)
    body = {"candidates": candidates, "time": time}
    kept = [engine.score({**body, "user_id": user}) for user in range(len(asked))]
    inline = [engine.score({**body, "history": history}) for history, _ in asked]
    for (history, _), *futures in zip(asked, kept, inline):
        expected = score(model, processor, history, candidates, time, items=items)
        for future in futures:
            np.testing.assert_allclose(future.result().logits, expected, atol=1e-5, rtol=0)

    looked = []
    for name in ("weights_version", "settings_fingerprint"):
        own = getattr(user_state, name)
        monkeypatch.setattr(user_state, name, lambda *given, own=own: looked.append(own) or own(*given))
    ready = [engine.served.check({**body}, has_state=True)] * len(asked)
    ways = [engine.states.get(str(user)) for user in range(len(asked))]
    assert not any(isinstance(one, Exception) for one in engine.served.score(list(zip(ready, ways))))
    assert len(looked) == 2  # once for the states of a batch
    with torch.no_grad():
        next(engine.served.model.parameters()).add_(1)
    for one in engine.served.score(list(zip(ready, ways))):
        assert "the model's weights were changed" in str(one)
    engine.close()


def test_ids_of_items_that_the_table_has_not_are_counted(log, reader):
    """By them statistics are found; null says that an item is new."""
    model, processor = made("rows", reader)
    items = ItemStatistics.from_log(log, reader)
    starts, ends = log.history_bounds(log.sample_events())
    history, target, _ = request_of(log, processor, log.sample_events()[int(np.argmax(ends - starts))])
    answers = answers_for(model, processor, items=items)
    candidates = [target, {**target, "item": 10**6}, {**target, "item": None}, {**target, "item": str(target["item"])}]
    history[0]["item"] = -7
    counts = answers.unknown_in(*answers.prepare([{"history": history, "candidates": candidates, "time": items.time}]))
    assert counts["items of candidates"] == {"values": 4, "missing": 1, "unknown": 1}
    assert counts["items of histories"] == {"values": len(history), "missing": 0, "unknown": 1}
    assert "items of candidates" not in answers_for(model, processor).unknown_in(
        {"history": [], "candidates": [target]}
    )
