"""Ids, times and tables of requests: what they are, and what is no such."""

import io
import time

import numpy as np
import pandas as pd
import pytest

from lmctr.runs.answers.requests import read_objects
from lmctr.utils.rows import plain_id, rows_of_table, whole_seconds


def test_ids_of_whole_numbers():
    for given in (11, 11.0, "11", " 11", np.int64(11), np.float64(11.0), np.float32(11)):
        found = plain_id(given, False, "item")
        assert found == 11
        assert type(found) is int
    assert plain_id(2**70, False, "item") == plain_id(str(2**70), False, "item") == 2**70
    for given in (11.5, True, np.True_, None, "x", "11.5", float("inf"), float("nan"), [11], 2.0**60):
        with pytest.raises(
            ValueError, match=r"candidates\[0\]: item: .* is no id; those of the catalogue's items are integers"
        ):
            plain_id(given, False, "candidates[0]: item")


def test_ids_of_text():
    assert [plain_id(given, True, "item") for given in ("11", 11, 11.0, "a b", "11.0")] == [
        "11",
        "11",
        "11",
        "a b",
        "11.0",
    ]
    for given in (True, 11.5, None, {"a": 1}):
        with pytest.raises(ValueError, match=r"is no id; those of the catalogue's items are texts"):
            plain_id(given, True, "item")


def test_times_far_ahead():
    now = int(time.time())
    assert whole_seconds(now + 30 * 86_400, "time") == now + 30 * 86_400  # for a request of next month
    with pytest.raises(
        ValueError, match=r"time must be a number of seconds; .* lies in the year .* more than a year ahead"
    ):
        whole_seconds(now + 2 * 366 * 86_400, "time")
    with pytest.raises(ValueError, match=r"is outside the years up to 9999. Is it in milliseconds"):
        whole_seconds(now * 1000, "time")


def test_a_key_that_stands_twice():
    def read(line):
        return list(read_objects(io.StringIO(line), "in.jsonl"))

    assert read('{"a": {"b": 1}, "b": 2}') == [("in.jsonl, line 1", {"a": {"b": 1}, "b": 2})]
    with pytest.raises(ValueError, match=r"in.jsonl, line 1: the key 'b' stands twice in one object"):
        read('{"a": {"b": 1, "b": 2}}')
    with pytest.raises(ValueError, match=r"in.jsonl, line 1: not valid JSON: nested too deep"):
        read("[" * 100_000)


def test_a_frames_cells_stay_as_they_are():
    frame = pd.DataFrame(
        {"item": [1, "b"], "history": [[{"item": 1}], [{"item": "b", "feedback": "chosen"}]], "price": [1.5, None]}
    )
    assert rows_of_table(frame) == [
        {"item": 1, "history": [{"item": 1}], "price": 1.5},
        {"item": "b", "history": [{"item": "b", "feedback": "chosen"}], "price": None},
    ]
