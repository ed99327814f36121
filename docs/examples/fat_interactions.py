"""The field interactions that FAT learned.

A generated table hides effects of pairs of fields that no additive model sees. FAT scales what one field reads from another by a learned
weight; after training, these weights say which pairs matter, and that the two fields of a pair need not read each other alike.
"""

import tempfile

import lmctr
from lmctr.analysis.field_interactions import field_interactions

PAIRS = [["C3", "C7"], ["C5", "C2"]]


def main(folder: str) -> dict:
    """Trains into `folder`; gives the test AUC, that of an additive model, and the learned pairs, the heaviest first."""
    run = lmctr.runs.train(
        "fat/synthetic",
        output_dir=f"{folder}/fat",
        overrides={
            "data.options": {
                "num_rows": 24_000,
                "num_categorical": 8,
                "num_numeric": 1,
                "vocab_size": 100,
                "pairs": PAIRS,
                "main_strength": 0.3,
                "pair_strength": 2.0,
                "latent_dim": 2,
                "seed": 0,
            },
            "data.baselines": False,
            "model.hidden_size": 16,
            "model.num_hidden_layers": 1,
            "model.num_attention_heads": 2,
            "model.num_bases": 8,
            "training.epochs": 3,
            "training.learning_rate": 1e-2,
            "training.use_cpu": True,
            "training.disable_tqdm": True,
        },
    )
    auc = run.metrics["test"]["auc"]
    print(f"test AUC {auc:.3f}")
    found = field_interactions(run.model)
    for row in found.table()[:6]:
        print(f"{row['query']:>3} reads {row['key']:<3} {row['weight']:.3f}")
    for row in found.asymmetry(top=3):
        print(f"{row['query']} reads {row['key']} with {row['weight']:.3f}, the other way {row['reverse']:.3f}")
    return {"auc": auc, "weights": found.weights.shape, "table": found.table(), "fields": found.field_names}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
