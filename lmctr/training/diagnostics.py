"""Diagnostics of tabular models during training: effective rank of the representations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lmctr.analysis.effective_rank import RANK_KINDS, measure_effective_rank
from lmctr.utils.files import write_text


class EffectiveRankCallback(TrainerCallback):
    """Measures the effective rank of every stage after each evaluation; with given batches also before the first step.

    Each measurement is a line of `effective_rank.jsonl` in `args.output_dir` (step, epoch and the rows of
    [`EffectiveRanks.rows`][lmctr.analysis.effective_rank.EffectiveRanks.rows]), and its means are an entry of the
    trainer's log history, `"effective_rank/<stage>"`, which checkpoints keep. Only the first process measures, on the same
    samples every time.

    Args:
        batches: batches to measure, dicts of the model's forward keys; kept on the CPU. Default: the first batches of the
            trainer's evaluation data.
        max_samples: samples per measurement.
        kind: `"stable"` or `"entropy"`, the rank in the log history. The file has both.

    Attributes:
        history: what was written, a dict per measurement.

    Example:

    ```python
    >>> trainer = CTRTrainer(model=model, args=arguments, ..., callbacks=[EffectiveRankCallback()])
    ```
    """

    def __init__(
        self,
        batches: Iterable[Mapping[str, torch.Tensor]] | None = None,
        max_samples: int = 1024,
        kind: str = "stable",
    ):
        if max_samples < 1:
            raise ValueError(f"max_samples: {max_samples} is not accepted; use a whole number of at least 1")
        if kind not in RANK_KINDS:
            raise ValueError(f"kind: {kind!r} is not known; use {' or '.join(map(repr, RANK_KINDS))}")
        self.batches = None if batches is None else list(batches)
        self.max_samples, self.kind = max_samples, kind
        self.history: list[dict[str, Any]] = []
        self._is_training = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        self._is_training = True
        if not state.is_world_process_zero:
            return
        file = Path(args.output_dir, "effective_rank.jsonl")
        if state.global_step == 0:  # a resumed training has measured its start
            self.history = []
            file.unlink(missing_ok=True)
            if self.batches is not None:  # the trainer has not made its evaluation batches yet
                self._measure(args, state, **kwargs)
        elif file.is_file():  # what was measured behind the checkpoint is measured again
            lines = (line for line in file.read_text(encoding="utf-8").splitlines(True) if line.endswith("\n"))
            self.history = [entry for entry in map(json.loads, lines) if entry["step"] <= state.global_step]
            write_text(file, "".join(json.dumps(entry) + "\n" for entry in self.history))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        # with a dict of evaluation sets it is called for each; the batches are the first one's
        if self._is_training and self.history and self.history[-1]["step"] == state.global_step:
            return
        self._measure(args, state, **kwargs)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        self._is_training = False

    def _measure(
        self,
        args: TrainingArguments,
        state: TrainerState,
        model: Any = None,
        eval_dataloader: Iterable | None = None,
        **kwargs,
    ) -> None:
        if not state.is_world_process_zero:
            return
        if self.batches is None:
            with torch.random.fork_rng(devices=[]):  # the loader draws a seed, in a training that goes on once more
                self.batches = self._first(eval_dataloader)
        ranks = measure_effective_rank(model, self.batches, max_samples=self.max_samples)
        entry = {"step": state.global_step, "epoch": state.epoch, "stages": ranks.rows()}
        self.history.append(entry)
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "effective_rank.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        means = {f"effective_rank/{row['stage']}": row[self.kind] for row in entry["stages"]}
        state.log_history.append({"epoch": state.epoch, "step": state.global_step, **means})

    def _first(self, loader: Iterable | None) -> list[dict[str, torch.Tensor]]:
        if loader is None:
            raise ValueError("batches: the trainer has no evaluation data; give the batches to measure")
        batches, found = [], 0
        for batch in loader:
            tensors = {key: value.cpu() for key, value in batch.items() if isinstance(value, torch.Tensor)}
            batches.append(tensors)
            found += len(next(iter(tensors.values())))
            if found >= self.max_samples:
                break
        return batches
