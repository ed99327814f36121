"""Small files for the tests of guesses."""

import gzip
import json

import numpy as np

from lmctr.data import load_log
from lmctr.data.guess import guess_log, sample_file

ROWS = 400


def table(**more):
    rng = np.random.default_rng(0)
    item = rng.integers(0, 30, ROWS)
    columns = {
        "user_id": rng.integers(0, 40, ROWS),
        "item_id": item,
        "ts": np.sort(rng.integers(1_700_000_000, 1_700_900_000, ROWS)),
        "click": rng.integers(0, 2, ROWS),
    }
    return {name: list(values) for name, values in (columns | more).items() if values is not None}


def write(path, columns, delimiter=","):
    rows = list(zip(*columns.values()))
    if ".jsonl" in path.name:
        plain = [{n: v.item() if isinstance(v, np.generic) else v for n, v in zip(columns, row)} for row in rows]
        text = "".join(json.dumps(row) + "\n" for row in plain)
    else:
        text = "".join(delimiter.join(map(str, row)) + "\n" for row in [tuple(columns), *rows])
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return sample_file(path)


def guessed(path, columns, delimiter=",", **options):
    """The guess, whose schema must read the file."""
    guess = guess_log(write(path, columns, delimiter), **options)
    keys = {key: value for key, value in guess.schema.items() if key != "events"}
    reading = {key: value for key, value in guess.schema["events"].items() if key != "path"}
    return guess, load_log(path, **keys, **reading)


def clicks(**more):
    """Rows of a table without users, items and times."""
    rng = np.random.default_rng(1)
    columns = {
        "clicked": rng.integers(0, 2, ROWS),
        "visits": rng.integers(0, 60, ROWS),
        "price": rng.normal(size=ROWS).round(3),
        "site_id": rng.integers(0, 90, ROWS),
        "slot": rng.integers(0, 7, ROWS),
        "browser": rng.choice(["fox", "bear", "owl"], ROWS),
        "topics": rng.choice(["a|b", "b", "a|c|d"], ROWS),
        "same": np.zeros(ROWS, dtype=int),
    }
    return {name: list(values) for name, values in (columns | more).items() if values is not None}
