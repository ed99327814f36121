"""Statistics of requests of items: counted from events and a table of items, they are those that a training saw."""

import dataclasses
import gc
import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
import torch
from sequence_rows import sequence_log
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import lmctr
from lmctr.data import SequenceProcessor, SequenceView
from lmctr.data.processors.extend_sequence import extend_sequence_processor
from lmctr.runs.answers.predict import answers_for
from lmctr.serving import UserState, score
from lmctr.statistics import ItemStatistics, StatisticsReader

SMALL = {
    "din": {"embedding_dim": 8},
    "hstu": {"hidden_size": 16, "num_hidden_layers": 2},
    "astro": {"hidden_size": 16, "num_hidden_layers": 1, "sequence_length": 30},
}


@pytest.fixture(scope="module")
def log():
    """Behaviours say the label; some events have stars, of which some are unknown."""
    log = sequence_log(3, num_users=8, most_events=25, seconds=4000)
    rng = np.random.default_rng(0)
    stars = rng.integers(1, 11, log.num_events).astype(np.float32) / 2
    stars[rng.random(log.num_events) < 0.2] = np.nan
    return dataclasses.replace(log, feedback=(log.label + 1).astype(log.feedback.dtype), feedback_values=stars)


@pytest.fixture(scope="module")
def reader(log):
    return StatisticsReader.fit(log, log.sample_events()[::2], ["full", "factors"])


def made(family, log, reader, **options):
    processor = SequenceProcessor.fit(log, statistics_reader=reader, behavior_labels=[-1, 0, 1], **options)
    torch.manual_seed(0)
    values = {**SMALL[family], **processor.model_config_values(), "initializer_range": 0.1}
    model = lmctr.AutoModelForCTR.from_config(CONFIG_MAPPING[family](**values)).eval()
    with torch.no_grad():
        model.statistics_skip.weight.normal_(std=0.3)
    return model, processor


def event_of(log, row, **more):
    names = {"behavior": log.feedback_names[log.feedback[row]], "scenario": log.scenario_names[log.scenario[row]]}
    value = None if np.isnan(log.feedback_values[row]) else float(log.feedback_values[row])
    return {"item": 100 + int(log.item[row]), "time": int(log.time[row]), "value": value, **names, **more}


def request_of(log, event):
    start, end = (int(bound[0]) for bound in log.history_bounds([event]))
    candidate = {"item": 100 + int(log.item[event]), "scenario": log.scenario_names[log.scenario[event]]}
    return [event_of(log, row) for row in range(start, end)], candidate, int(log.time[event])


@pytest.mark.parametrize("family", ["din", "hstu", "astro"])
def test_a_row_has_the_values_that_training_saw(family, log, reader):
    """Also where the model reads the latest few events only: statistics count the whole history."""
    model, processor = made(family, log, reader, max_history_length=3)
    view = SequenceView(log, processor)
    found, wanted = [], []
    for event in log.sample_events()[::7]:
        history, candidate, time = request_of(log, event)
        items = ItemStatistics.from_log(log, reader, time)
        expected = score(model, processor, history, [candidate], time, items=items)
        state = UserState(model, processor, history[:4], items=items)
        state.extend(history[4:])
        torch.testing.assert_close(state.score([candidate], time), expected, atol=1e-5, rtol=1e-5)
        found.append(expected[0])
        with torch.no_grad():
            batch = view.batch(np.array([event]))
            wanted.append(model(**{key: value for key, value in batch.items() if key != "labels"}).logits[0])
        assert batch["statistics"].abs().max() > 0
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted), atol=1e-5, rtol=1e-4)


def test_the_processor_keeps_its_reader(log, reader, tmp_path):
    _, processor = made("din", log, reader)
    assert processor.statistics == reader.names
    assert processor.statistics_prior == reader.prior
    assert processor.to_dict()["statistics"] == []  # as in all files
    processor.save_pretrained(tmp_path)
    again = SequenceProcessor.from_pretrained(tmp_path)
    assert again.fingerprint == processor.fingerprint
    assert again.statistics_reader == reader
    assert again.behavior_labels == (-1, 0, 1)
    raw = reader.raw(log, log.sample_events()[:1])
    served = again([[]], [[100]], times=[5], statistics=raw[None])["statistics"]
    torch.testing.assert_close(served[0], torch.from_numpy(reader.scaled(raw)))


def test_the_label_is_that_of_the_first_task(log, reader):
    """Statistics count what the model predicts."""
    flipped = np.where(log.label < 0, -1, 1 - log.label).astype(log.label.dtype)
    two = dataclasses.replace(log, extra_labels={"other": flipped})
    processor = SequenceProcessor.fit(two, tasks=["other"], statistics_reader=reader)
    events = two.sample_events()[5:9]
    found = SequenceView(two, processor).batch(events)["statistics"].numpy()
    np.testing.assert_allclose(found, reader.scaled(reader.raw(dataclasses.replace(log, label=flipped), events)))
    assert np.abs(found - reader.scaled(reader.raw(log, events))).max() > 0.1


@pytest.mark.parametrize("wrong", [{"item": 1.5}, {"label": 7}, {"time": 1}, {"time": "x"}, {"behavior": "odd"}])
@pytest.mark.parametrize("family", ["din", "hstu"])
def test_a_wrong_behaviour_is_called_by_its_place_in_what_was_given(log, reader, family, wrong):
    """Whether the model reads it first, or its statistics do; also where the history goes on from the request before."""
    model, processor = made(family, log, reader)
    items, later = ItemStatistics.from_log(log, reader), int(log.time.max()) + 10
    events = np.flatnonzero(log.user == log.user[0])[:3]
    history = [event_of(log, row) for row in events]
    more = [event_of(log, events[-1]), event_of(log, events[-1], **wrong)]
    for name, call in {
        "history[4]": lambda: score(model, processor, history + more, [100], later, items=items),
        "history[4] ": lambda: UserState(model, processor, history + more, items=items),
        "behaviors[1]": lambda: UserState(model, processor, history, items=items).extend(more),
        "events[1]": lambda: UserState(model, processor, history, items=items).extend(more, name="events"),
    }.items():
        with pytest.raises(ValueError) as told:
            call()
        assert name.strip() in str(told.value)
    requests = [{"history": own, "candidates": [100], "time": later} for own in (history, history + more)]
    for some in (requests, requests[1:]):
        with pytest.raises(ValueError, match=r"^x: .*history\[4\]"):
            list(answers_for(model, processor, items=items).scored([("x", request) for request in some]))


def test_what_is_missing_is_told(log, reader):
    model, processor = made("din", log, reader)
    assert processor.statistics_events([event_of(log, 0, value=0.1)])[3] == [
        float(np.float32(0.1))
    ]  # as a log holds it
    items, later = ItemStatistics.from_log(log, reader), int(log.time.max()) + 10
    history = [event_of(log, 0)]
    with pytest.raises(ValueError, match=r"candidates\[0\] has no 'statistics'"):
        score(model, processor, history, [100], later)
    assert score(model, processor, history, [100, {"item": 999}], later, items=items).shape == (2,)
    with pytest.raises(
        ValueError, match=r"history\[0\]: 'value' must be graded feedback, a finite number or None, got 'high'"
    ):
        score(model, processor, [{**history[0], "value": "high"}], [100], later, items=items)
    with pytest.raises(ValueError, match="label 3 is not accepted"):
        score(model, processor, [{**history[0], "label": 3}], [100], later, items=items)
    with pytest.raises(ValueError, match=r"candidates\[1\]: time must be a number of seconds, got 'noon'"):
        score(model, processor, history, [100, {"item": 101, "time": "noon"}], later, items=items)
    vague = SequenceProcessor.fit(log, statistics_reader=reader)
    with pytest.raises(ValueError, match="has no 'label', which its behavior does not say"):
        score(model, vague, history, [100], later, items=items)
    stated = score(model, vague, [{**history[0], "label": 1}], [100], later, items=items)
    assert not torch.equal(stated, score(model, vague, [{**history[0], "label": 0}], [100], later, items=items))
    with pytest.raises(ValueError, match="behavior_labels: got"):
        SequenceProcessor(behavior_labels=[1])
    view = SequenceView(log, processor, samples=log.sample_events()[:4])
    with pytest.raises(ValueError, match="its statistics were not computed"):
        view.batch(log.sample_events()[4:5])


def test_what_a_state_counts_of_its_memory(log, reader):
    """Statistics and the state itself too: within a factor of two of what Python says."""
    model, processor = made("din", log, reader)
    items = ItemStatistics.from_log(log, reader)
    events = [event_of(log, event) for event in range(6)]
    events = [{**event, "time": place} for place, event in enumerate(events)]
    for count in (0, 1, 6):
        UserState(model, processor, events[:count], items=items)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        states = [
            UserState(model, processor, [dict(event) for event in events[:count]], items=items) for _ in range(40)
        ]
        grown = (tracemalloc.get_traced_memory()[0] - before) / len(states)
        tracemalloc.stop()
        assert 0.5 < states[0].num_bytes / grown < 2, (count, states[0].num_bytes, grown)


@pytest.mark.parametrize("family", list(SMALL))
def test_a_state_goes_over_to_a_run_that_went_on(family, log, reader):
    """Items came, and the reader stayed: what was let go is not needed, and what was counted of it is kept."""
    half = log.sample_events()[: len(log.sample_events()) // 4]
    model, processor = made(family, log, reader, train_events=half, max_history_length=6)
    grown, report = extend_sequence_processor(processor, log, log.sample_events())
    assert report["items"]["added"] > 0
    values = {**SMALL[family], **grown.model_config_values(), "initializer_range": 0.2}
    newer = lmctr.AutoModelForCTR.from_config(CONFIG_MAPPING[family](**values)).eval()
    items = ItemStatistics.from_log(log, reader, int(log.time.max()) + 1)
    starts, ends = log.history_bounds(log.sample_events())
    history, candidate, _ = request_of(log, log.sample_events()[int(np.argmax(ends - starts))])
    time = int(log.time.max()) + 5
    for count in (4, len(history)):  # all kept; some let go
        state = UserState(model, processor, history[:count], items=items)
        assert (state.num_kept < state.num_seen) == (count > 6)
        moved = state.moved_to(newer, grown, items)
        expected = score(newer, grown, history[:count], [candidate], time, items=items)
        torch.testing.assert_close(moved.score([candidate], time), expected, atol=1e-5, rtol=0)
    longer = made(family, log, reader, max_history_length=9)
    assert state.moved_to(*longer, items) is None  # it would read behaviours that were let go
    other = dataclasses.replace(reader, prior=reader.prior / 2)
    anew = made(family, log, other, max_history_length=6)
    table = ItemStatistics.from_log(log, other, int(log.time.max()) + 1)
    assert state.moved_to(*anew, table) is None  # what it counted was counted otherwise
    short = UserState(model, processor, history[:4], items=items).moved_to(*anew, table)
    expected = score(*anew, history[:4], [candidate], time, items=table)
    torch.testing.assert_close(short.score([candidate], time), expected, atol=1e-5, rtol=0)


def test_a_state_of_a_whole_history_follows_a_table_whose_items_have_other_categories(log, reader, tmp_path):
    model, processor = made("din", log, reader)
    history, candidate, _ = request_of(
        log, int(log.sample_events()[np.argmax(log.history_lengths(log.sample_events()))])
    )
    genres = pa.array(log.catalogue["genres"].to_pylist()[::-1])
    changed = log.catalogue.set_column(log.catalogue.column_names.index("genres"), "genres", genres)
    time = int(log.time.max()) + 1
    before, after = (
        ItemStatistics.from_log(dataclasses.replace(log, catalogue=own), reader, time)
        for own in (log.catalogue, changed)
    )
    states = [UserState(model, processor, history, items=table) for table in (before, after)]
    moved = states[0].moved_to(model, processor, after)
    loaded = UserState.load(states[0].save(tmp_path / "state"), model, processor, after)
    *found, expected = (
        numbers_of(UserState.filled([(state, [candidate], time)])[0]) for state in (moved, loaded, states[1])
    )
    np.testing.assert_array_equal(found, [expected, expected])


def test_counts_of_what_was_let_go_do_not_follow_a_table_whose_items_have_other_categories(log, reader, tmp_path):
    """They cannot be counted again; a table with more items is another matter, and a state in a file does not know which it is."""
    model, processor = made("din", log, reader, max_history_length=4)
    history, candidate, _ = request_of(
        log, int(log.sample_events()[np.argmax(log.history_lengths(log.sample_events()))])
    )
    rows, time = log.catalogue.num_rows, int(log.time.max()) + 1
    genres = log.catalogue["genres"].to_pylist()
    place = log.catalogue.column_names.index("genres")
    more = pa.table(
        {
            name: pa.concat_arrays([c.combine_chunks(), c.combine_chunks()[:1]])
            for name, c in zip(log.catalogue.column_names, log.catalogue.columns)
        }
    )
    more = more.set_column(
        more.column_names.index("item_id"), "item_id", pa.array([*log.catalogue["item_id"].to_pylist(), 10**6])
    )
    swapped = log.catalogue.set_column(place, "genres", pa.array([genres[-1], *genres[1:]]))
    table, same, grown, other = (
        ItemStatistics.from_log(dataclasses.replace(log, catalogue=own), reader, time)
        for own in (log.catalogue, log.catalogue, more, swapped)
    )
    assert genres[0] != genres[-1]
    assert len(grown) == rows + 1
    state = UserState(model, processor, history, items=table)
    assert state.num_kept < state.num_seen
    expected = numbers_of(UserState.filled([(state, [candidate], time)])[0])
    for items in (table, same, grown):
        moved = state.moved_to(model, processor, items)
        np.testing.assert_array_equal(numbers_of(UserState.filled([(moved, [candidate], time)])[0]), expected)
    assert state.moved_to(model, processor, other) is None
    own = {key: getattr(reader, key)[:2] for key in ("names", "mean", "scale", "low", "high")}
    fewer = dataclasses.replace(reader, **own)
    short = UserState(
        *made("din", log, fewer, max_history_length=4), history, items=ItemStatistics.from_log(log, fewer, time)
    )
    assert short.moved_to(model, processor, table) is None  # whose statistics read columns that its own did not
    text = json.loads(json.dumps(state.left()))
    assert UserState.gone_on(text, model, processor, same) is not None
    file = state.save(tmp_path / "state")
    assert UserState.load(file, model, processor, same).num_seen == len(history)
    for items in (grown, other):
        assert UserState.gone_on(text, model, processor, items) is None
        with pytest.raises(ValueError, match=r"the others were counted by a table .* load it with that table"):
            UserState.load(file, model, processor, items)


def numbers_of(candidates):
    return np.array([candidate["statistics"] for candidate in candidates])


def test_requests_are_counted_at_once(log, reader, monkeypatch):
    """Those whose history goes on from the one before in as many steps as they are; each has the numbers that it has by itself."""
    model, processor = made("din", log, reader)
    items, calls = ItemStatistics.from_log(log, reader), []
    expected = ItemStatistics.expected
    monkeypatch.setattr(ItemStatistics, "expected", lambda *own: calls.append(len(own[1])) or expected(*own))
    starts, ends = log.history_bounds(log.sample_events())
    histories = [[event_of(log, row) for row in range(start, end)] for start, end in zip(starts[::4], ends[::4])]
    whole = max(histories, key=len)
    histories = [*histories, whole[:-3], whole[:-1], whole, []]
    rows = [
        (f"line {place}", {"history": history, "candidates": [100 + place % 30, 999], "time": items.time + place})
        for place, history in enumerate(histories)
    ]
    answers, one = answers_for(model, processor, items=items), answers_for(model, processor, items=items)
    found = list(answers.scored(rows))
    assert len(calls) == 4 < sum(map(bool, histories)) / 3  # of no user more than four go on from each other
    for (request, logits), row in zip(found, rows):
        alone = one.prepare([one.check(row[1], "")])[0]
        np.testing.assert_array_equal(numbers_of(request["candidates"]), numbers_of(alone["candidates"]))
        np.testing.assert_allclose(logits, one.together([("", alone)])[0], atol=1e-5)


def test_one_wrong_request_touches_no_other(log, reader):
    """What is wrong is told of the first one, also where a later line cannot be read at all; where it is skipped the others have their numbers."""
    model, processor = made("din", log, reader)
    items = ItemStatistics.from_log(log, reader)
    history, last = [event_of(log, row) for row in range(3)], int(log.time.max()) + 5
    asked = [{"history": history[:count], "candidates": [100, 101], "time": last} for count in (1, 2, 3, 3, 2, 3)]
    whole = answers_for(model, processor, items=items)
    expected = [
        request["candidates"] for request, _ in whole.scored((f"line {n}", one) for n, one in enumerate(asked))
    ]
    asked[1] = {**asked[1], "history": [{**event, "label": 7} for event in history[:2]]}
    asked[4] = {**asked[4], "time": int(items.time) - 1, "history": []}

    def lines():
        yield from ((f"line {n}", one) for n, one in enumerate(asked))
        raise ValueError("line 6: not valid JSON")

    with pytest.raises(ValueError, match=r"^line 1: history\[0\]: label 7 is not accepted"):
        list(answers_for(model, processor, items=items).scored(lines()))
    answers = answers_for(model, processor, items=items)
    answers.skips = True
    found = [request for request, _ in answers.scored((f"line {n}", one) for n, one in enumerate(asked))]
    assert [n for n, request in enumerate(found) if "error" in request] == [1, 4]
    assert "cannot give those of second" in found[4]["error"]
    for n in (0, 2, 3, 5):  # the later ones go on from another place than before
        own, other = numbers_of(found[n]["candidates"]), numbers_of(expected[n])
        np.testing.assert_allclose(own, other, rtol=1e-12)


def test_states_of_a_batch_are_counted_at_once(log, reader, monkeypatch):
    model, processor = made("din", log, reader)
    items, calls = ItemStatistics.from_log(log, reader), []
    states = [UserState(model, processor, [event_of(log, row) for row in range(n)], items=items) for n in (0, 3, 9)]
    asked = [(state, [{"item": 100 + n}, {"item": 5}], items.time + n) for n, state in enumerate(states)]
    expected = [state.request(candidates, time)[0].candidates for state, candidates, time in asked]
    at = ItemStatistics.at
    monkeypatch.setattr(ItemStatistics, "at", lambda *own: calls.append(1) or at(*own))
    for found, alone in zip(UserState.filled(asked), expected):
        np.testing.assert_array_equal(numbers_of(found), numbers_of(alone))
    assert calls == [1]


def test_fractions_of_seconds_are_cut_off(log, reader):
    """A request in the second of the last event does not see it, whatever its fraction: neither the statistics nor the model do."""
    model, processor = made("din", log, reader, max_history_length=4)
    event = int(log.sample_events()[np.argmax(log.history_lengths(log.sample_events()))])
    history, candidate, time = request_of(log, event)
    items = ItemStatistics.from_log(log, reader, history[-1]["time"])
    answers = answers_for(model, processor, items=items)
    for second in (history[-1]["time"], time):
        found = [
            next(answers.scored([("request", {"history": history, "candidates": [candidate], "time": own})]))[1]
            for own in (second, second + 0.9)
        ]
        np.testing.assert_array_equal(*found)
    state = UserState(
        model, processor, [*history[:-1], {**history[-1], "time": history[-1]["time"] + 0.2}], items=items
    )
    for own, name in (({}, "time"), ({"time": history[-1]["time"] + 0.9}, r"candidates\[0\]: time")):
        late = history[-1]["time"] + (0.9 if not own else 60)
        with pytest.raises(ValueError, match=rf"^{name} {history[-1]['time']} is not after the user's last behaviour"):
            state.request([{**candidate, **own}], late)
