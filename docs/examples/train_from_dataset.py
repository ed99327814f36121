"""Train in Python from a `datasets.Dataset`.

A table of clicks as it might come from `datasets.load_dataset`, a processor fitted on its training part, a DeepFM, and a Trainer. What is
saved is a folder that `from_pretrained` and `lmctr predict` read; raw rows are scored through the processor.
"""

import tempfile

import datasets
import numpy as np

import lmctr


def clicks(rows: int = 12_000) -> datasets.Dataset:
    """Clicks that depend on the price and on whether an ad's topic suits the page."""
    rng = np.random.default_rng(0)
    topic, page, price = rng.integers(0, 6, rows), rng.integers(0, 6, rows), rng.lognormal(2, 1, rows)
    logit = 2.2 * (topic == page) - 0.6 * np.log(price) + 0.3
    names = np.array(["garden", "music", "chess", "hiking", "cooking", "travel"])
    return datasets.Dataset.from_dict(
        {
            "topic": names[topic],
            "page": names[page],
            "price": price,
            "click": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(int),
        }
    )


def main(folder: str) -> dict:
    """Trains into `folder`; gives the metrics of the test part and the probabilities of three new rows."""
    source = lmctr.data.table_source(clicks(), label="click", fractions=(0.8, 0.1, 0.1), seed=0)
    store = lmctr.data.TabularStore.build(source)  # fits the processor on the training part, then transforms all rows
    view = lmctr.data.TabularView(store)
    parts = [lmctr.data.TabularDataset(view, np.flatnonzero(store.split == part)) for part in range(3)]

    config = lmctr.DeepFMConfig(**store.processor.model_config_values(), embedding_dim=8, hidden_units=[32])
    trainer = lmctr.CTRTrainer(
        lmctr.DeepFMForCTR(config),
        lmctr.CTRTrainingArguments(
            folder,
            num_train_epochs=6,
            per_device_train_batch_size=256,
            per_device_eval_batch_size=2048,
            learning_rate=2e-2,
            train_sampling_strategy="random",
            use_cpu=True,
            disable_tqdm=True,
        ),
        data_collator=lmctr.data.TabularCollator(view),
        train_dataset=parts[0],
        eval_dataset=parts[1],
        processing_class=store.processor,
    )
    trainer.train()
    trainer.save_model()
    metrics = trainer.evaluate(parts[2], metric_key_prefix="test")
    print(f"test AUC {metrics['test_auc']:.3f}, log loss {metrics['test_log_loss']:.3f}")

    run = lmctr.runs.load(folder)
    rows = [
        {"topic": "chess", "page": "chess", "price": 2.0},
        {"topic": "chess", "page": "music", "price": 2.0},
        {"topic": "chess", "page": "music", "price": 40.0},
    ]
    probabilities = 1 / (1 + np.exp(-run.predict(rows)))
    for row, probability in zip(rows, probabilities):
        print(f"{probability:.3f}  {row}")
    return {"auc": metrics["test_auc"], "probabilities": probabilities}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
