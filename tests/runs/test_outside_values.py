"""Values from outside are scored or refused by name, whatever they are: requests, rows, prompts, recipes and configurations, mutated.

The short form runs in every suite; `pytest -m campaign tests/runs/test_outside_values.py` runs 100,000 inputs in about 25 minutes on two
cores. Seeds are the numbers of the blocks: a failure names the block and the input.
"""

import copy
import datetime
import decimal
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import lmctr
from lmctr.models.ctr_sink.prompt import Prompt
from lmctr.runs.answers import predict_rows
from lmctr.runs.answers.requests import read_objects
from lmctr.runs.recipe import load_recipe
from lmctr.utils.files import parse_json, parse_yaml

sys.path.append(str(Path(__file__).parents[1] / "serving"))
import serving_models

NASTY = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        11.5,
        -0.0,
        1e300,
        float("inf"),
        float("-inf"),
        float("nan"),
        2**31,
        2**53 + 1,
        2**63,
        2**64,
        -(2**63),
    ),
    *(
        10**30,
        10**400,
        10**13,
        "",
        " ",
        "x",
        "11",
        "nan",
        "1e999",
        "\x00",
        "\ud800",
        "a\udfffb",
        "😀" * 50,
        "é" * 900,
        "ca\u0301",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        [{}],
        {"": ""},
        {"text": 5},
        {"item": []},
        {"a": {"a": {"a": 1}}},
        [1, "a", None],
        "{{7*7}}",
        "%s",
        "[SINK]",
    ),
]
PYTHON = [
    *(
        b"bytes",
        {1, 2},
        object(),
        datetime.datetime(2020, 1, 1),
        datetime.date(2020, 1, 1),
        decimal.Decimal("1.5"),
        1 + 2j,
        (1,),
    ),
    *(
        np.int64(3),
        np.float32("inf"),
        np.array([1.0]),
        np.array(["a"], object),
        pd.NA,
        pd.Timestamp("2020"),
        {1: 2},
        {None: 1},
        np.str_("x"),
    ),
]


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value] if depth % 2 else {"a": value}
    return value


def places(value, path=()):
    """Every place of a value, as the keys that lead to it."""
    found = [path]
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found += places(value[key], (*path, key))
    return found


def mutated(value, draw, nasty):
    """A copy of a value with one to three things changed: a value replaced, a key dropped, renamed or added, an entry doubled."""
    value = copy.deepcopy(value)
    for _ in range(draw.integers(1, 4)):
        paths = places(value)
        path = paths[draw.integers(len(paths))]
        new = (
            copy.deepcopy(nasty[draw.integers(len(nasty))])
            if draw.random() < 0.98
            else nested(int(draw.integers(20, 120)))
        )
        if not path:
            if draw.random() < 0.05:
                return new
            continue
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        what = draw.integers(10)
        if what < 6:
            holder[path[-1]] = new
        elif what < 7:
            del holder[path[-1]]
        elif what < 8 and isinstance(holder, dict):
            holder[str(new)[:20]] = holder.pop(path[-1])
        elif isinstance(holder, list):
            holder.insert(0, new if what == 8 else copy.deepcopy(holder[-1]))
        else:
            holder[str(draw.choice(["id", "time", "zzz", "value", "similarity", "label"]))] = new
    return value


def text_case():
    model, processor = serving_models.make("bert", sink_signal=["recency", "feedback"], feedback="inline")
    history = [
        {"text": "Heat", "time": 10, "feedback": "liked"},
        {"text": "Alien", "time": 20, "feedback": "disliked"},
    ]
    base = [
        {"id": 1, "history": history, "target": {"text": "Casino"}, "time": 30},
        {"history": history[:1], "candidates": ["Babe", {"text": "Heat"}], "time": 25},
    ]
    return lambda rows: predict_rows(model, processor, rows), base


def event_case():
    from sequence_rows import sequence_log

    processor = lmctr.SequenceProcessor.fit(sequence_log())
    torch.manual_seed(0)
    model = lmctr.HSTUForCTR(
        lmctr.HSTUConfig(**processor.model_config_values(), hidden_size=8, num_hidden_layers=1)
    ).eval()
    history = [{"item": 100, "time": 3}, {"item": 101, "time": 5}]
    base = [
        {"id": "a", "history": history, "target": 102, "time": 9},
        {"history": history, "candidates": [100, {"item": 103, "time": 8}], "time": 9},
    ]
    return lambda rows: predict_rows(model, processor, rows), base


def table_case():
    fields = [
        {"name": "ad", "type": "categorical"},
        {"name": "price", "type": "numeric"},
        {"name": "tags", "type": "multi_value", "max_length": 3},
        {"name": "hour", "type": "categorical", "column": "at", "extract": "hour"},
    ]
    processor = lmctr.TabularFeatureProcessor(fields, label=None)
    processor.fit(
        [{"ad": f"a{n % 5}", "price": n / 2, "tags": ["x", "y"][: n % 3], "at": 10**9 + n} for n in range(50)]
    )
    torch.manual_seed(0)
    model = lmctr.DNNForCTR(
        lmctr.DNNConfig(**processor.model_config_values(), embedding_dim=4, hidden_units=[8])
    ).eval()
    base = [
        {"ad": "a1", "price": 2.5, "tags": ["x"], "at": 10**9 + 7},
        {"ad": "a2", "price": None, "tags": [], "at": 10**9},
    ]
    return model, processor, base


def check(call, value, accepted=None):
    """What a call makes of a value, or its refusal in words; anything else is the defect that this campaign looks for."""
    try:
        found = call(value)
    except (ValueError, FileNotFoundError) as error:
        if isinstance(error, (UnicodeError, pa.ArrowException)) or not 15 < len(str(error)) < 3000:
            raise RuntimeError(f"an unclear refusal: {error!r:.500}") from error
        return str(error)
    if accepted is not None:
        accepted(found)
    return None


def finite(found):
    assert np.isfinite(found).all()


def campaign(call, base, seed, count, nasty, accepted=finite):
    draw, refused = np.random.default_rng(seed), 0
    for number in range(count):
        value = mutated(base, draw, nasty)
        try:
            refused += check(call, value, accepted) is not None
        except Exception as error:
            raise AssertionError(f"block {seed}, input {number}: {value!r:.500}") from error
    assert 0.02 * count < refused < count  # the mutations reach the checks, and spare what is right
    return refused


def blocks(short, full):
    return [0, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(1, full // short))]


@pytest.fixture(scope="module")
def cases():
    return {"text": text_case(), "events": event_case()}


@pytest.mark.parametrize("kind", ["text", "events"])
@pytest.mark.parametrize("seed", blocks(250, 25_000))
def test_requests(cases, kind, seed):
    call, base = cases[kind]
    assert campaign(call, base, seed, 250, NASTY + PYTHON) < 250
    control = call(base)
    np.testing.assert_allclose(call([*base, *base])[: len(control)], control, atol=1e-5)


@pytest.mark.parametrize("seed", blocks(250, 15_000))
def test_lines_of_json(cases, seed):
    """JSON of the same requests, with bytes changed: what is read is what Python reads, and is then refused or scored."""
    call, base = cases["events"]
    draw = np.random.default_rng(seed)
    for _ in range(250):
        text = json.dumps(mutated(base[0], draw, NASTY))
        place = int(draw.integers(len(text)))
        text = (
            text[:place] + str(draw.choice(list('{}[],:"\\0e-9'))) + text[place + int(draw.integers(2)) :]
        ).replace("\n", " ")
        for _, value in read_objects([text], "lines", skip=True):
            if isinstance(value, ValueError):
                assert str(value).startswith("lines, line 1: ")
            else:
                check(call, [value], finite)


@pytest.mark.parametrize("seed", blocks(250, 15_000))
def test_rows_of_tables(seed):
    model, processor, base = table_case()
    draw, refused = np.random.default_rng(seed), 0
    for number in range(250):
        rows = mutated(base, draw, NASTY + PYTHON)
        verdicts = {"dicts": check(lambda given: predict_rows(model, processor, given), rows, finite)}
        refused += verdicts["dicts"] is not None
        if isinstance(rows, list) and rows and all(isinstance(row, dict) and set(row) == set(base[0]) for row in rows):
            columns = {key: [row[key] for row in rows] for key in base[0]}
            verdicts["columns"] = check(lambda given: predict_rows(model, processor, given), columns, finite)
            for form, make in (("arrow", pa.table), ("frame", pd.DataFrame)):
                try:
                    table = make(columns)
                except Exception:  # no such table can be made
                    continue
                verdict = check(lambda given: predict_rows(model, processor, given), table, finite)
                if form == "arrow":  # a frame's NaN is missing, its columns may have taken other types
                    verdicts[form] = verdict
            assert len({verdict is None for verdict in verdicts.values()}) == 1, (seed, number, rows, verdicts)
    assert refused > 5


@pytest.mark.parametrize("seed", blocks(250, 15_000))
def test_prompts(seed):
    base = Prompt.load("movielens/en").to_dict()
    campaign(Prompt.load, base, seed, 250, NASTY, accepted=None)


@pytest.mark.parametrize("seed", blocks(100, 5_000))
def test_recipes(seed):
    base = load_recipe("dnn/synthetic").resolved()
    campaign(load_recipe, base, seed, 100, NASTY, accepted=None)


@pytest.mark.parametrize("seed", blocks(500, 25_000))
def test_texts_of_json_and_yaml(seed):
    draw = np.random.default_rng(seed)
    base = json.dumps({"a": [1, 2.5, {"b": "x"}], "c": None, "d": {"e": [True, "\u00e9"]}})
    refused = {"json": 0, "yaml": 0}
    for _ in range(500):
        text = base
        for _ in range(draw.integers(1, 6)):
            place, new = (
                int(draw.integers(len(text))),
                draw.choice([*'{}[],:"\\&*!|>#%@-?0e9', "\n", "\t", "*a", "&a ", "<<: ", "!!", "\x07", "1e999"]),
            )
            text = text[:place] + str(new) * int(draw.choice([1, 1, 1, 3000])) + text[place + int(draw.integers(3)) :]
        refused["json"] += check(parse_json, text) is not None
        refused["yaml"] += check(lambda given: parse_yaml(given, "text"), text) is not None
    assert 400 < refused["yaml"] <= refused["json"] < 500
