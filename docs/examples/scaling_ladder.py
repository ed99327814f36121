"""A scaling ladder.

A DNN in five widths on a generated table whose best reachable AUC is known: FLOPs are counted from the modules that run, a law is
fitted to the smaller sizes and held against the largest one, which it has not seen. `lmctr scaling ladder` does the same from one file, over
seeds, and goes on to machine cost and the choice of a size.
"""

import tempfile

import numpy as np

import lmctr
from lmctr.scaling.fits import fit_scaling_law
from lmctr.scaling.flops import measure_flops
from lmctr.scaling.inputs import random_inputs, request_shape

WIDTHS = (2, 4, 8, 16, 32)
TABLE = {
    "num_rows": 50_000,
    "fractions": [0.6, 0.1, 0.3],
    "num_categorical": 4,
    "num_numeric": 1,
    "vocab_size": 24,
    "num_pairs": 3,
    "pair_strength": 1.5,
    "latent_dim": 2,
    "seed": 0,
}


def main(folder: str) -> dict:
    """Trains into `folder`; gives FLOPs, AUCs, and what the law says of the largest size."""
    flops, aucs = [], []
    for width in WIDTHS:
        recipe = {
            "data": {"name": "synthetic_table", "options": TABLE, "baselines": False},
            "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [width]},
            "training": {
                "epochs": 6,
                "learning_rate": 1e-2,
                "per_device_train_batch_size": 512,
                "per_device_eval_batch_size": 4096,
                "eval_strategy": "no",
                "save_strategy": "no",
                "use_cpu": True,
                "disable_tqdm": True,
            },
        }
        run = lmctr.runs.train(recipe, output_dir=f"{folder}/width-{width}")
        one = request_shape(run.model.config, candidates=1)
        flops.append(measure_flops(run.model, random_inputs(run.model.config, one)).per_sample)
        aucs.append(run.metrics["test"]["auc"])
    law = fit_scaling_law(flops[:-1], aucs[:-1], law="power", complement=True)  # 1 - AUC falls
    told = float(law.predict(flops[-1]))
    for width, count, auc in zip(WIDTHS, flops, aucs):
        print(f"width {width:>3}: {count:>8,.0f} FLOPs per sample, test AUC {auc:.4f}")
    print(f"the law of the four smaller sizes says {told:.4f} of the largest; measured {aucs[-1]:.4f}")
    return {"flops": np.array(flops), "aucs": np.array(aucs), "told": told}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
