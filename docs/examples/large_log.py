"""A log larger than you would like to hold in memory.

Events are written to a folder of Parquet files as a warehouse leaves them, read and checked once, and kept as memory-mapped arrays of 14 bytes per
event, on which DIN trains and predicts; where a set of statistics is named, it reads those of each sample too. The resident memory of this process is
printed after each step; mapped files count among it, though the system may take their pages back at any time. As it stands it takes seconds;
`docs/scaling.md` has what 50 million events take, without statistics and with them:

    python docs/examples/large_log.py FOLDER 50000000
    python docs/examples/large_log.py FOLDER 50000000 full
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lmctr
from lmctr.utils.measure import peak_memory

TOPICS = 8
EVENTS_PER_USER = 40
SCHEMA = """
name: large_log
events: events
columns: {user: user_id, item: item_id, time: time, label: clicked}
catalogue: {path: items.parquet, item: item_id}
"""


def events_of(part: int, rows: int, users: int, topics: np.ndarray) -> pa.Table:
    """A file's events, one per second: who was shown what, and whether they clicked: often on two favourite topics each, and on some topics rather than others."""
    rng = np.random.default_rng([part, 1])
    user = rng.integers(0, users, rows)
    item = (len(topics) * rng.random(rows) ** 2).astype(np.int64)  # low numbers are popular
    liked = (topics[item] == user * 7 % TOPICS) | (topics[item] == user * 13 // TOPICS % TOPICS)
    clicked = rng.random(rows) < np.where(liked, 0.7, 0.4 * topics[item] / TOPICS)
    seconds = 1_700_000_000 + part * rows + np.arange(rows)
    return pa.table({"user_id": user, "item_id": item, "time": seconds, "clicked": clicked.astype(np.int8)})


def write(folder: Path, events: int, parts: int = 50) -> int:
    """Writes events, items and the schema; gives the number of users."""
    (folder / "events").mkdir(parents=True)
    users, items = max(events // EVENTS_PER_USER, 1), max(events // 250, 100)
    topics = np.random.default_rng(0).integers(0, TOPICS, items)
    pq.write_table(
        pa.table({"item_id": np.arange(items), "topic": [f"topic {topic}" for topic in topics]}),
        folder / "items.parquet",
    )
    for part in range(parts):
        pq.write_table(events_of(part, events // parts, users, topics), folder / "events" / f"{part:03}.parquet")
    (folder / "schema.yaml").write_text(SCHEMA)
    return users


def main(folder: str, events: int = 40_000, steps: int = 60, statistics: str | list[str] = ()) -> dict:
    """Prepares a log in `folder`, trains on it, predicts rows; gives the AUC, logits, and memory and seconds by step."""
    root, steps_done, start = Path(folder), {}, time.perf_counter()

    def done(step: str) -> None:
        nonlocal start
        peak = (peak_memory() or 0) / 2**30
        steps_done[step] = {"peak_gib": round(peak, 2), "seconds": round(time.perf_counter() - start, 1)}
        print(f"{step:<10}{steps_done[step]['seconds']:>9} s   peak of memory so far {peak:.2f} GiB", flush=True)
        start = time.perf_counter()

    users = write(root, events)
    done("write")
    lmctr.data.load(root / "schema.yaml").save(root / "log")
    done("prepare")
    recipe = {
        "data": {
            "name": str(root / "log"),
            "item_features": ["topic"],
            "statistics": statistics or [],
            "max_history_length": EVENTS_PER_USER,
            "max_eval_samples": max(events // 100, 2_000),
            "baselines": False,  # they count every statistic of the whole log
        },
        "model": {"family": "din", "initializer_range": 0.1},
        "training": {
            "epochs": 1,
            "max_steps": steps,
            "learning_rate": 1e-2,
            "per_device_train_batch_size": 256,
            "per_device_eval_batch_size": 1024,
            "use_cpu": True,
            "disable_tqdm": True,
        },
    }
    run = lmctr.runs.train(recipe, output_dir=root / "run")
    done("train")
    rng, rows = np.random.default_rng(1), 10_000
    user, item = rng.integers(0, users, rows), rng.integers(0, max(events // 250, 100), rows)
    logits = run.predict({"user_id": user, "item_id": item, "time": np.full(rows, 1_700_000_000 + events)})
    done("predict")
    return {"auc": run.metrics["test"]["auc"], "logits": logits, "steps": steps_done}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], int(sys.argv[2]), 1_000, *sys.argv[3:])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            print("test AUC", main(scratch)["auc"])
