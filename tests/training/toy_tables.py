"""A tiny model with an embedding table, and a trainer for it."""

import numpy as np
import torch
from torch import nn
from transformers import set_seed

from lmctr.models.common.base import ctr_loss
from lmctr.models.common.outputs import CTROutput
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.trainer import CTRTrainer

FIELDS, WIDTH = 3, 4


class ToyTable:
    """Rows of three ids; each id has a hidden effect on the label."""

    def __init__(self, num_samples=1024, seed=0, vocabulary=40):
        rng = np.random.default_rng(seed)
        self.vocabulary = vocabulary
        self.ids = rng.integers(0, vocabulary, (num_samples, FIELDS))
        effect = np.random.default_rng(99).normal(size=vocabulary) * 2
        logit = effect[self.ids].sum(axis=1)
        self.labels = (rng.random(num_samples) < 1 / (1 + np.exp(-logit))).astype(np.float32)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index], self.labels[index]


def collate(rows):
    ids, labels = zip(*rows)
    return {"ids": torch.from_numpy(np.stack(ids)), "labels": torch.tensor(np.array(labels))}


class TableModel(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.table = nn.Embedding(vocabulary + 3 if vocabulary > 4 else vocabulary, WIDTH)  # 3 values that never come
        self.hidden = nn.Linear(FIELDS * WIDTH, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, ids, labels=None, sample_weight=None, num_items_in_batch=None):
        hidden = torch.relu(self.hidden(self.table(ids).flatten(1)))
        logits = self.head(hidden).squeeze(-1)
        loss = None if labels is None else ctr_loss(logits, labels, sample_weight, num_items_in_batch)
        return CTROutput(loss=loss, logits=logits)


def make_table_model(seed=0, vocabulary=40):
    set_seed(seed)
    return TableModel(vocabulary)


def make_table_trainer(output_dir, train=None, model=None, **arguments):
    values = {
        "per_device_train_batch_size": 32,
        "learning_rate": 3e-2,
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 4,
        "stage2_epochs": 3,
        **arguments,
    }
    train = ToyTable() if train is None else train
    return CTRTrainer(
        model=make_table_model() if model is None else model,
        args=CTRTrainingArguments(str(output_dir), **values),
        data_collator=collate,
        train_dataset=train,
        eval_dataset=ToyTable(200, seed=1, vocabulary=train.vocabulary),
    )
