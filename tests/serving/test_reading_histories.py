"""Histories of requests are read by the kinds of their events: what is found, and what is refused, is that of one event after the other."""

import copy
import dataclasses

import numpy as np
import pytest
from sequence_rows import sequence_log
from serving_models import make

import lmctr.data.processors.sequence as of_events
import lmctr.models.ctr_sink.processing_ctr_sink as of_texts
from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.runs.answers.predict import answers_for
from lmctr.statistics import StatisticsReader

NUM_EVENTS, TIME = 24, 1_700_000_000
ODD = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    2,
    3,
    2.5,
    2**63,
    -1,
    "",
    "positive",
    "nothing",
    "104",
    [1],
    {"a": 1},
    float("nan"),
]
ODD += [1e39, 16_777_217, np.int64(1), np.float32(0.1), TIME, TIME + 0.5, TIME * 1000, TIME + 10**9, "absent"]


@pytest.fixture(scope="module", params=["events", "texts"])
def read(request):
    """The module, the processor, the names of what histories of it hold, and both ways in which it reads one."""
    log = sequence_log(3, num_users=8, most_events=25, seconds=4000)
    log = dataclasses.replace(log, feedback_names=("unknown", "negative", "positive"))
    reader = StatisticsReader.fit(log, log.sample_events(), "full")
    if request.param == "events":
        processor = SequenceProcessor.fit(log, statistics_reader=reader, behavior_labels=[-1, 0, 1])
        numbers = [[[0.0] * len(processor.statistics)]]
        batch = lambda history: processor([history], [[104]], [TIME + 100], statistics=numbers)  # noqa: E731
        return of_events, processor, ("item", "time", "behavior", "scenario", "label", "value"), batch
    settings = {"sink_signal": ["feedback", "feedback_value"], "feedback": "sink", "value_levels": [1.0, 3.0, 5.0]}
    _, processor = make(
        "bert",
        statistics_reader=reader,
        feedback_labels=[-1, 0, 1],
        prompt="generic/en",
        model={"num_statistics": len(reader.names)},
        **settings,
    )
    target = {"text": "A", "statistics": [0.0] * len(reader.names)}
    batch = lambda history: processor([[{"text": "B", "time": 5}], history], [target] * 2, [TIME, TIME + 100])  # noqa: E731
    return of_texts, processor, ("item", "time", "feedback", "group", "label", "value", "text"), batch


def history_of(module):
    told = "behavior" if module is of_events else "feedback"
    events = [
        {"item": 100 + n, "time": TIME + n, told: ("negative", "positive")[n % 2], "value": n / 2}
        for n in range(NUM_EVENTS)
    ]
    return events if module is of_events else [{**event, "text": f"Title {event['item']}"} for event in events]


def outcome(run, history):
    try:
        found = run(history)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return repr(found if isinstance(found, tuple) else {key: own.tolist() for key, own in found.items()})


def test_as_one_by_one(read, monkeypatch):
    module, processor, names, batch = read
    rng, accepted = np.random.default_rng(0), 0
    for number in range(150):
        history = copy.deepcopy(history_of(module))
        for _ in range(int(rng.integers(3))):
            name, value = names[rng.integers(len(names))], ODD[rng.integers(len(ODD))]
            for event in (history, history[::2], [history[rng.integers(NUM_EVENTS)]])[rng.integers(3)]:
                event[name] = value
                if value == "absent":
                    del event[name]
        if number % 25 == 0:
            history[3 : 3 + number % 2] = [ODD[rng.integers(len(ODD))]]
        found = [outcome(run, history) for run in (processor.statistics_events, batch)]
        with monkeypatch.context() as patch:
            patch.setattr(module, "each_kind", lambda *arguments: None)
            assert found == [outcome(run, history) for run in (processor.statistics_events, batch)], history
        accepted += not any("Error: " in one for one in found)
    assert accepted > 40


def test_each_kind_once(read, monkeypatch):
    module, processor, _, batch = read
    history, calls = history_of(module), []
    name = "_code" if module is of_events else "feedback_code"
    code = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments: calls.append(1) or code(*arguments))
    processor.statistics_events(history)
    batch(history)
    assert len(calls) < 8 < NUM_EVENTS


def test_tokens_of_a_text_are_counted_once(monkeypatch):
    model, processor = make("bert", prompt="generic/en")
    answers, calls = answers_for(model, processor), []
    count = answers._count_tokens
    monkeypatch.setattr(answers, "_count_tokens", lambda texts: calls.extend(texts) or count(texts))
    for texts in ([], ["A title", "\u4e00 \u4e01", "A title", None, ""], ["\u4e00 \u4e01", "Another"]):
        rows = [processor.tokenizer(text or "", add_special_tokens=False)["input_ids"] for text in texts]
        unknown = [row.count(processor.tokenizer.unk_token_id) for row in rows]
        examples = [text for text, own in zip(texts, unknown) if own]
        expected = sum(map(len, rows)), sum(unknown), examples
        assert answers.unknown_entries([{"text": text} for text in texts]) == expected
    assert expected[1] > 0
    assert calls == ["A title", "\u4e00 \u4e01", "", "Another"]
