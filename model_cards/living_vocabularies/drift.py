"""What `lmctr train --from RUN` brings on a generated table whose values come and go: `python drift.py SEED FOLDER`, a JSON line per arm and day."""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq

import lmctr
from lmctr.data.registry import load_tabular

SEED, FOLDER, DAYS = int(sys.argv[1]), sys.argv[2], 4
SHAPE = {"num_rows": 30_000, "num_categorical": 8, "num_numeric": 3, "num_pairs": 2, "vocab_size": 6000, "drift": 0.15}
TRAINING = {
    "epochs": 1,
    "learning_rate": 2e-3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "per_device_train_batch_size": 256,
    "per_device_eval_batch_size": 8192,
    "use_cpu": True,
    "seed": SEED,
}

tables = []
for day in range(DAYS + 1):  # a file of each day, and one of all days up to it
    source = load_tabular("synthetic_table", **SHAPE, seed=SEED, day=day, fractions=(1, 0, 0))
    tables.append(pa.concat_tables(pa.Table.from_batches([rows.table]) for rows in source.rows()))
    pq.write_table(tables[-1], f"{FOLDER}/day{day}.parquet")
    pq.write_table(pa.concat_tables(tables), f"{FOLDER}/upto{day}.parquet")


def train(name: str, file: str, features: dict, before: str | None = None, **training: bool) -> str:
    """The folder of a run on a file; `before`: the run that it goes on from."""
    fields = [{**field, **features} if field["type"] == "categorical" else field for field in source.fields]
    data = {"name": f"{FOLDER}/{file}.parquet", "options": {"fields": fields}, "baselines": False}
    recipe = {
        "data": {**data, "split": "random", "fractions": [0.9, 0.05, 0.05]},
        "model": {"family": "deepfm", "embedding_dim": 8, "hidden_units": [64, 32], "initializer_range": 0.05},
        "training": {**TRAINING, "from_run": before, **training},
    }
    return str(lmctr.runs.train(recipe, output_dir=f"{FOLDER}/{name}", overwrite=True).path)


LIVING = {"max_idle": 3}
ARMS = {
    "frozen": lambda day, before: before or train("frozen", "day0", {}),
    "refitted on the day": lambda day, before: train(f"own{day}", f"day{day}", {}),
    "refitted on all days": lambda day, before: train(f"all{day}", f"upto{day}", {}),
    "extended": lambda day, before: train(f"extended{day}", f"day{day}", LIVING, before),
    "extended, weights only": lambda day, before: train(
        f"weights{day}", f"day{day}", LIVING, before, from_optimizer=False
    ),
    "hashed, 2,048 buckets a field": lambda day, before: train(
        f"hashed{day}", f"day{day}", {"hash_buckets": 2048}, before
    ),
    "hashed, 256 buckets a field": lambda day, before: train(
        f"small{day}", f"day{day}", {"hash_buckets": 256}, before
    ),
}
runs = dict.fromkeys(ARMS)
for day in range(DAYS):
    for arm, step in ARMS.items():
        runs[arm] = step(day, runs[arm])
        tomorrow = {"data.name": f"{FOLDER}/day{day + 1}.parquet"}
        found = lmctr.runs.evaluate(runs[arm], "train", overrides=tomorrow, allow_unknown=True)
        rows = sum(lmctr.runs.load(runs[arm]).model.config.vocab_sizes)
        said = {"seed": SEED, "tested_on_day": day + 1, "arm": arm, "auc": found["auc"], "log_loss": found["log_loss"]}
        print(json.dumps({**said, "rows": rows}), file=sys.stderr, flush=True)
