"""What `lmctr train --from RUN` brings a CTR-Sink on MovieLens latest-small: `python texts.py SEED FOLDER MOVIELENS`, a JSON line per arm.

All arms are tested on the newest tenth of the samples and read the whole log up to a sample. The first run learns from the oldest 56 % of the
samples, the run that goes on from it from those up to 80 % alone, the run from scratch from all of these.
"""

import json
import sys
import time
from dataclasses import replace

import numpy as np

import lmctr
from lmctr.data import load_log
from lmctr.runs.recipe import load_recipe

SEED, FOLDER, MOVIELENS = int(sys.argv[1]), sys.argv[2], sys.argv[3]
RECIPE = "ctr_sink/movielens_small_scratch"
PARTS = {
    "first": (0.0, 0.56, 0.63),
    "going on": (0.56, 0.8, 0.9),
    "from scratch": (0.0, 0.8, 0.9),
}  # train, validation; test from 0.9

log = load_log("movielens", path=MOVIELENS, **load_recipe(RECIPE).data["options"])
samples = log.sample_events()
samples = samples[np.argsort(log.time[samples], kind="stable")]
for arm, shares in PARTS.items():
    part = np.full(log.num_events, -1, dtype=np.int8)
    first, validation, end, test = (int(share * len(samples)) for share in (*shares, 0.9))
    part[samples[first:validation]], part[samples[validation:end]], part[samples[test:]] = 0, 1, 2
    replace(log, part=part).save(f"{FOLDER}/{arm}")

for arm in PARTS:
    own = {"data.name": f"{FOLDER}/{arm}", "data.options": {}, "data.split": "given", "data.baselines": False}
    own |= {"training.refit": False, "training.use_cpu": True, "training.seed": SEED}
    if arm == "going on":
        own["training.from_run"] = f"{FOLDER}/run of first"
    began = time.process_time()
    run = lmctr.runs.train(RECIPE, output_dir=f"{FOLDER}/run of {arm}", overrides=own)
    said = {"seed": SEED, "arm": arm, **{key: run.metrics["test"][key] for key in ("auc", "log_loss")}}
    trained = run.metrics["training_samples"]["model"]
    print(
        json.dumps({**said, "trained_on": trained, "cpu_seconds": time.process_time() - began}),
        file=sys.stderr,
        flush=True,
    )
