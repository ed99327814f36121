"""One process of a launch that trains tiny models with shared tables: `python sharded_worker.py FOLDER WIDTH [KEY=VALUE ...]`."""

import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "models")]

import retrieval_tester  # noqa: E402
import tabular_inputs  # noqa: E402
import torch  # noqa: E402
import warm  # noqa: E402
from sequence_rows import random_batch  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from lmctr import DeepFMConfig, DeepFMForCTR, DINConfig, DINForCTR, TwoTowerConfig, TwoTowerForCTR  # noqa: E402
from lmctr.models.common.layers import RowNorm  # noqa: E402
from lmctr.training.arguments import CTRTrainingArguments  # noqa: E402
from lmctr.training.callbacks import StopAt  # noqa: E402
from lmctr.training.sharded import new_tables, sharded_banks  # noqa: E402
from lmctr.training.trainer import CTRTrainer  # noqa: E402

ROWS, GLOBAL_BATCH, STEPS = (
    37,
    12,
    25,
)  # the last step of an epoch has one row, the other processes one that fills a batch
FAMILIES = ("deepfm", "din", "two_tower")
SMOOTH = "silu"  # at the kink of relu a rounding error would turn a gradient on or off


def model_and_batch(family):
    """A model whose rows read sequences and padding, and all its training data."""
    torch.manual_seed(0)
    if family == "deepfm":
        config = DeepFMConfig(**tabular_inputs.FIELDS, embedding_regularization=0.01, hidden_act=SMOOTH)
        return DeepFMForCTR(config), tabular_inputs.make_batch(config, rows=ROWS)
    if family == "din":
        sizes = {"item_vocab_size": 23, "item_feature_vocab_sizes": [7], "user_feature_vocab_sizes": [5, 2]}
        config = DINConfig(**sizes, num_behaviors=2, num_scenarios=3, embedding_dim=4, use_dice=False)
        return DINForCTR(config), random_batch(config, num_rows=ROWS, num_events=30, num_candidates=2)
    config = TwoTowerConfig(**retrieval_tester.FIELDS)
    model = TwoTowerForCTR(config)
    for norm in (module for module in model.modules() if isinstance(module, RowNorm)):
        norm.training, norm.train = (
            False,
            lambda mode, norm=norm: norm,
        )  # statistics of a batch are those of each process's rows
    return model, retrieval_tester.make_batch(config, counts=[1 + row % 5 for row in range(ROWS)])


class Rows:
    """Numbers of rows of one batch."""

    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return int(row)

    def collate(self, rows):
        return {name: values[rows].clone() for name, values in self.batch.items()}


class Dies(TrainerCallback):
    """The last process of a launch ends without a word."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step and args.process_index == args.world_size - 1:
            os._exit(3)


def train(family, folder, processes=1, stop=None, dies=None, resume=None, **options):
    """Train, keep a checkpoint every ten steps, and leave a finished model in `folder`/final; returns the trainer."""
    values = {
        "per_device_train_batch_size": GLOBAL_BATCH // processes,
        "max_steps": STEPS,
        "learning_rate": 0.02,
        "weight_decay": 0.1,
        "adam_epsilon": 1e-3,  # a smaller one makes steps of rounding errors where gradients vanish
        "max_grad_norm": 0.05,
        "train_sampling_strategy": "random",
        "eval_strategy": "no",
        "save_strategy": "steps",
        "save_steps": 10,
        "save_total_limit": None,
        "embedding_optimizer": "lazy_adam",
        "shard_tables": True,
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_strategy": "no",
    }
    args = CTRTrainingArguments(str(Path(folder) / family), **{**values, **options})
    with new_tables(args):
        model, batch = model_and_batch(family)
    data = Rows(batch)
    callbacks = [StopAt(stop)] if stop else []
    callbacks += [Dies(dies)] if dies else []
    trainer = CTRTrainer(model, args, data_collator=data.collate, train_dataset=data, callbacks=callbacks)
    trainer.train(
        resume_from_checkpoint=None if resume is None else str(Path(folder) / family / f"checkpoint-{resume}")
    )
    trainer.save_model(str(Path(folder) / family / "final"))
    return trainer


def launch(folder, processes, **options):
    """Run this file in several processes; their exit codes and what they printed."""
    running = warm.launch(__file__, folder, processes, json.dumps(options), processes=processes)
    codes = [process.wait() for process in running]
    return codes, [process.out + process.err for process in running]


def main(folder, processes, options):
    families = options.pop("families", FAMILIES)
    for family in families:
        trainer = train(family, folder, int(processes), **options)
        rows = {name: len(bank.weight) for name, bank in sharded_banks(trainer.model).items()}
        print("rows", family, json.dumps(rows), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
