"""What comes in from outside is plain and bounded, or refused by its place."""

from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from lmctr.utils.outside import checked, entries


def test_plain_values_come_through_as_they_are():
    value = {
        "id": "é😀",
        "a": [1, 2.5, None, True],
        "time": datetime(2020, 1, 1),
        "n": np.int64(3),
        "missing": float("nan"),
    }
    found = checked(value, "here")
    assert found.keys() == value.keys()
    assert all(found[key] is value[key] for key in value if key != "a")
    assert found["a"] == value["a"]
    assert checked({"a": ({"b": 1},)}, "here") == {"a": [{"b": 1}]}
    assert checked(2**64 - 1, "here") == 2**64 - 1
    array = np.arange(3.0)
    assert checked([array], "here")[0] is array
    frame = pd.DataFrame({"item": [1, 2], "feedback": [None, "liked"]})
    rows = [{"item": 1, "feedback": None}, {"item": 2, "feedback": "liked"}]
    assert checked({"history": frame}, "here") == {"history": rows}
    assert entries(frame, "here") == entries(pa.table(frame), "here") == entries(np.array(rows), "here") == rows
    assert entries([row for _, row in frame.iterrows()], "here")[1] == rows[1]
    assert checked([frame["item"], torch.arange(2), pd.NA, pd.NaT], "here") == [[1, 2], [0, 1], None, None]


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"history": [{"text": "a\ud800b"}]}, r"^here: history\[0\].text: .*half of a surrogate pair at character 1"),
        ({"time": 10**30}, r"^here: time: a whole number of 100 bits; .*as text"),
        ({"value": float("-inf")}, r"^here: value: got -inf, expected a finite number"),
        ({"history": nested(100_000)}, "^here: history.*: nested too deep"),
        ({"a": {3: 1}}, r"^here: a: the key 3 is no text"),
        ({"a\udc00": 1}, "^here: the text .*surrogate"),
        ({"a": b"bytes"}, "^here: a: a value of the type bytes .*accepted"),
        ([{1}], r"^here\[0\]: a value of the type set"),
        ([np.array([b"a"], dtype=object)], r"^here\[0\]\[0\]: a value of the type bytes"),
        ([np.array(["2020-01-01"], dtype="datetime64[ns]")], "type ndarray"),
    ],
)
def test_what_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        checked(value, "here")
