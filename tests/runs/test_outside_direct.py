"""Direct calls of the library with values from outside: `serving.score`, `UserState`, impressions, schemas, CSV files and configurations.

The short form runs in every suite; `pytest -m campaign tests/runs/test_outside_direct.py` runs 40,000 inputs in about 15 minutes on two
cores. Seeds are the numbers of the blocks: a failure names the block and the input.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_outside_values import NASTY, PYTHON, blocks, campaign, check, finite, mutated

from lmctr.data import load_log
from lmctr.runs import load
from lmctr.runs.answers import predict_rows
from lmctr.serving import UserState, score

sys.path.append(str(Path(__file__).parents[1] / "server"))
import served_runs


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Tiny run folders by kind, made once."""
    made = {}

    def folder(kind):
        if kind not in made:
            make, request = served_runs.KINDS[kind]
            made[kind] = make(tmp_path_factory.mktemp(kind) / "run"), request
        return made[kind]

    return folder


def arguments(kind, seed):
    body = served_runs.KINDS[kind][1](seed)
    key = "text" if kind in ("qwen2", "bert") else "item"
    more = {} if key == "text" else {"scenario": body["scenario"]}
    return {
        "history": body["history"],
        "candidates": [{key: one, **more} for one in body["candidates"]],
        "time": body["time"],
        "max_tokens": 8192,
    }


@pytest.mark.parametrize("kind", ["qwen2", "bert", "hstu", "din"])
@pytest.mark.parametrize("seed", blocks(120, 2_400))
def test_score(folders, kind, seed):
    run = load(folders(kind)[0])

    def call(given):
        if not isinstance(given, dict) or set(given) != set(base):
            raise ValueError("what the harness made cannot be passed at all: other arguments")
        return score(run.model, run.processor, **given)

    base = arguments(kind, 1)
    campaign(call, base, seed, 120, NASTY + PYTHON)


@pytest.mark.parametrize("kind", ["qwen2", "hstu"])
@pytest.mark.parametrize("seed", blocks(120, 2_400))
def test_states(folders, kind, seed):
    """A refused extension leaves the state as it was."""
    run, base = load(folders(kind)[0]), arguments(kind, 2)
    draw, refused = np.random.default_rng(seed), 0
    state = UserState(run.model, run.processor)
    expected = state.score(base["candidates"], base["time"])
    for number in range(120):
        given = mutated(base["history"], draw, NASTY + PYTHON)
        try:
            verdict = check(lambda one: UserState(run.model, run.processor, one), given)
            assert (verdict is None) == (check(state.extend, given) is None)
            if verdict is None:
                finite(state.score(base["candidates"], 10**9))
                state = UserState(run.model, run.processor)
            else:
                refused += 1
                assert torch.equal(state.score(base["candidates"], base["time"]), expected)
        except Exception as error:
            raise AssertionError(f"block {seed}, input {number}: {given!r:.500}") from error
    assert refused > 10


@pytest.mark.parametrize("seed", blocks(120, 2_400))
def test_impressions(folders, seed):
    path, request = folders("two_tower")
    run = load(path)
    campaign(
        lambda rows: predict_rows(run.model, run.processor, rows), [request(1), request(2)], seed, 120, NASTY + PYTHON
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("hstu", "config.json"),
        ("bert", "config.json"),
        ("deepfm", "config.json"),
        ("deepfm", "preprocessor_config.json"),
        ("hstu", "preprocessor_config.json"),
        ("bert", "processor_config.json"),
    ],
)
@pytest.mark.parametrize("seed", blocks(30, 600))
def test_configurations(folders, tmp_path, kind, name, seed):
    """A folder without checksums, as others make them."""
    run = shutil.copytree(folders(kind)[0], tmp_path / "run")
    base, draw = json.loads((run / name).read_text()), np.random.default_rng(seed)
    assert check(lambda folder: load(folder).model, run) is None
    nasty, refused = [value for value in NASTY if not isinstance(value, str) or value.isprintable()], 0
    for number in range(30):
        given = mutated(base, draw, nasty)
        (run / name).write_text(json.dumps(given))
        try:
            refused += check(lambda folder: load(folder).model, run) is not None
        except Exception as error:
            raise AssertionError(f"block {seed}, input {number}: {given!r:.1500}") from error
    assert refused


SCHEMA = {
    "events": {"path": "log.csv"},
    "columns": {"user": "user", "item": "item", "time": "time", "label": "label"},
    "name": "clicks",
}
BROKEN = [b"", b'"', b",", b"\n", b"\r", b"\x00", b"\xff", b"9" * 25, b"\xef\xbb\xbf", b"nan", b"-1", b"\xed\xa0\x80"]


CLEAN = b"user,item,time,label\n" + b"".join(
    b"u%d,i%d,%d,%d\n" % (n % 5, n % 7, 1_600_000_000 + 60 * n, n % 2) for n in range(40)
)


def csv_bytes(draw):
    """A small log as CSV with some bytes put in, taken out or exchanged."""
    content = bytearray(CLEAN)
    for _ in range(draw.integers(0, 4)):
        place, size = int(draw.integers(len(content) + 1)), int(draw.choice([0, 1, 2, 30, 2000]))
        content[place : place + size] = BROKEN[draw.integers(len(BROKEN))]
    return bytes(content)


@pytest.mark.parametrize("what", ["bytes", "schema"])
@pytest.mark.parametrize("seed", blocks(120, 6_000))
def test_logs(tmp_path, what, seed):
    draw = np.random.default_rng(seed)
    refused = 0
    nasty = [value for value in NASTY if not isinstance(value, str) or value.isprintable()]
    for number in range(120):
        is_schema = what == "schema"
        content, schema = (CLEAN, mutated(SCHEMA, draw, nasty)) if is_schema else (csv_bytes(draw), SCHEMA)
        (tmp_path / "log.csv").write_bytes(content)
        (tmp_path / "log.yaml").write_text(json.dumps(schema))
        try:
            refused += check(load_log, tmp_path / "log.yaml") is not None
        except Exception as error:
            raise AssertionError(
                f"block {seed}, input {number}: {schema if is_schema else content!r:.3000}"
            ) from error
    assert refused > 10
    assert what == "schema" or refused < 119
