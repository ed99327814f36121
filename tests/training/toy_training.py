"""A tiny CTR-Sink training on made-up token sequences; tests import it and also run it as a script in subprocesses."""

import argparse
import json
import os
import signal
from pathlib import Path

import numpy as np
import torch
from transformers import TrainerCallback, set_seed

from lmctr.models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.processes import leave_process_group
from lmctr.training.trainer import CTRTrainer

TINY = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}


class ToyDataset:
    """Token sequences of different lengths; token 7 in a sequence makes a click likely."""

    def __init__(self, num_samples=75, seed=0, one_class=False, weighted=False):
        rng = np.random.default_rng(seed)
        self.lengths = rng.integers(4, 20, num_samples)
        self.rows = [rng.integers(5, 12, length) for length in self.lengths]
        self.labels = np.array([float((row == 7).sum() > 1) for row in self.rows], dtype=np.float32)
        if one_class:
            self.labels[:] = 1.0
        self.groups = rng.integers(0, 5, num_samples)
        self.times = np.random.default_rng(seed + 1).integers(0, 40 * 86400, num_samples)
        self.sample_weight = rng.uniform(0.5, 2.0, num_samples).astype(np.float32) if weighted else None

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        assert index >= 0
        return int(index)


class ToyCollator:
    """Pads to the longest row of the batch; every third token is a sink, the last two tokens are the target."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.seen = []

    def __call__(self, rows):
        self.seen.append(list(rows))
        length = max(len(self.dataset.rows[row]) for row in rows)
        batch = {
            "input_ids": torch.zeros(len(rows), length, dtype=torch.long),
            "attention_mask": torch.zeros(len(rows), length, dtype=torch.long),
            "sink_buckets": torch.full((len(rows), length), -1, dtype=torch.long),
            "target_mask": torch.zeros(len(rows), length, dtype=torch.bool),
            "labels": torch.tensor([float(self.dataset.labels[row]) for row in rows]),
        }
        for place, row in enumerate(rows):
            tokens = torch.from_numpy(self.dataset.rows[row])
            batch["input_ids"][place, : len(tokens)] = tokens
            batch["attention_mask"][place, : len(tokens)] = 1
            batch["sink_buckets"][place, 2 : len(tokens) - 2 : 3] = 1
            batch["target_mask"][place, len(tokens) - 2 : len(tokens)] = True
        if self.dataset.sample_weight is not None:
            batch["sample_weight"] = torch.from_numpy(self.dataset.sample_weight[rows])
        return batch


class KillAt(TrainerCallback):
    """Ends the process like a power cut: SIGKILL after an optimiser step, or while a checkpoint is being written."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def make_model(seed=0, dropout=0.1, **config_values):
    set_seed(seed)
    text_config = {**TINY, "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    values = {"sink_kind": "sink", "num_sink_buckets": 8, "sink_embedding_dim": 8, "sink_bias_dropout": dropout}
    if config_values.get("sink_kind") == "none":
        values = {"sink_kind": "none"}
    return CTRSinkForCTR(CTRSinkConfig(text_config=text_config, **{**values, **config_values}))


def make_trainer(output_dir, train=None, evaluation=None, model=None, callbacks=None, collator=None, **arguments):
    train = ToyDataset() if train is None else train
    evaluation = ToyDataset(33, seed=1) if evaluation is None else evaluation
    collators = {id(train): collator or ToyCollator(train), id(evaluation): ToyCollator(evaluation)}
    values = {
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 1000,
        "stage1_epochs": 1,
        "stage2_epochs": 2,
        "seed": 3,
        **arguments,
    }
    trainer = ToyTrainer(
        model=make_model() if model is None else model,
        args=CTRTrainingArguments(str(output_dir), **values),
        data_collator=collators[id(train)],
        train_dataset=train,
        eval_dataset=evaluation,
        callbacks=callbacks,
    )
    trainer.toy_collators = collators
    return trainer


class ToyTrainer(CTRTrainer):
    """Switches the collator with the dataset (the library's own datasets share one view and need no switch)."""

    toy_collators: dict

    def _loader(self, dataset, sampler):
        self.data_collator = self.toy_collators.get(id(dataset)) or ToyCollator(dataset)
        return super()._loader(dataset, sampler)


def main():
    train_and_write(parse_arguments())
    leave_process_group()


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("output_dir")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--resume")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--weighted", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--ema-decay", type=float)
    parser.add_argument("--half-life", type=float)
    parser.add_argument("--optim", default="adamw_torch_fused")
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    return parser.parse_args()


def train_and_write(args):
    torch.set_num_threads(1)
    arguments = {}
    if args.steps:
        arguments = {
            "eval_strategy": "steps",
            "eval_steps": args.steps,
            "save_strategy": "steps",
            "save_steps": args.steps,
        }
    train = ToyDataset(weighted=args.weighted)
    collator = ToyCollator(train)
    trainer = make_trainer(
        args.output_dir,
        train=train,
        collator=collator,
        model=make_model(dropout=args.dropout),
        callbacks=[KillAt(args.kill_at)] if args.kill_at else None,
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulation,
        load_best_model_at_end=False,
        optim=args.optim,
        learning_rate=args.learning_rate,
        ema_decay=args.ema_decay,
        recency_half_life=args.half_life,
        **arguments,
    )
    trainer.train(resume_from_checkpoint=args.resume)
    metrics = trainer.evaluate()
    folder = Path(args.output_dir)
    rank = trainer.args.process_index
    (folder / f"seen-{rank}.json").write_text(json.dumps(collator.seen))
    if rank == 0:
        (folder / "metrics.json").write_text(json.dumps(metrics))
        torch.save(trainer.accelerator.unwrap_model(trainer.model).state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    main()
