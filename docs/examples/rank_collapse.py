"""Rank collapse, watched.

A token mixer turns each sample's fields into a matrix of tokens. The effective rank of that matrix says how many directions its rows really
use: here of 8 that its shape allows. RankMixer and RankElastor are trained on one generated table while every stage of the network is measured
after each epoch: the embeddings use about two directions, the deeper stages two to four. Which family keeps more depends on the table and on
widths; `lmctr analyze rank RUN RUN` draws the curves of runs beside each other.
"""

import json
import tempfile
from pathlib import Path

import lmctr

TABLE = {"num_rows": 12_000, "num_categorical": 11, "num_numeric": 1, "vocab_size": 200, "num_pairs": 4, "seed": 0}
SHAPE = {"embedding_dim": 8, "num_tokens": 8, "token_dim": 16, "num_hidden_layers": 3}


def watch(family: str, folder: str) -> list[dict]:
    """Trains a family; gives its measurements, one per epoch, each with a row per stage."""
    recipe = {
        "data": {"name": "synthetic_table", "options": TABLE, "baselines": False},
        "model": {"family": family, **SHAPE},
        "training": {
            "epochs": 3,
            "learning_rate": 3e-3,
            "per_device_train_batch_size": 256,
            "per_device_eval_batch_size": 2048,
            "effective_rank_samples": 256,
            "use_cpu": True,
            "disable_tqdm": True,
        },
    }
    run = lmctr.runs.train(recipe, output_dir=f"{folder}/{family}")
    lines = Path(run.path, "checkpoints", "effective_rank.jsonl").read_text().splitlines()
    measured = [json.loads(line) for line in lines]
    print(f"\n{family}: test AUC {run.metrics['test']['auc']:.3f}; effective rank (of at most, by epoch)")
    for stage in measured[-1]["stages"]:
        ranks = [row["stable"] for entry in measured for row in entry["stages"] if row["stage"] == stage["stage"]]
        most = min(stage["tokens"], stage["size"])
        print(f"  {stage['stage']:<24} {most:>3}   " + "  ".join(f"{rank:.2f}" for rank in ranks))
    return measured


def main(folder: str) -> dict:
    """Trains both into `folder`; gives the measurements by family."""
    return {family: watch(family, folder) for family in ("rank_mixer", "rank_elastor")}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
