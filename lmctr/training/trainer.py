"""CTRTrainer: transformers' Trainer for click-through-rate models.

What it adds: two-stage pooling, exact metrics over all scores, batches that do not depend on the number of processes,
a loss normalised over the whole global batch, and checkpoints that survive a kill.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from operator import itemgetter
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn
from torch.utils.data import DataLoader
from transformers import EvalPrediction, Trainer, TrainerCallback
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_pt_utils import nested_numpify
from transformers.trainer_utils import EvalLoopOutput, denumpify_detensorize
from transformers.utils import SAFE_WEIGHTS_NAME

from lmctr.models.common.base import IGNORED_LABEL, CTRPreTrainedModel, check_head, count_items, plain_model
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.averaging import WeightAverage
from lmctr.training.callbacks import StageTwoEarlyStopping, StopAt, TwoStageCallback, should_stop
from lmctr.training.checkpoints import (
    MARKER,
    load_epoch_state,
    mark_complete,
    newest_complete_checkpoint,
    read_marker,
    rotate,
    save_epoch_state,
)
from lmctr.training.checks import (
    check_best_metric,
    check_labels,
    check_logits,
    check_own_optimizer,
    check_sparse_tables,
    check_trained,
)
from lmctr.training.optim import (
    GroupedOptimizer,
    clip_gradients,
    embedding_optimizer,
    gradient_norm,
    split_new_modules,
    table_parameters,
    use_sparse_gradients,
)
from lmctr.training.processes import end_with_parent
from lmctr.training.recency import WeightedCollator, no_times, recency_weights
from lmctr.training.row_gradients import RowGradients, can_hold_rows
from lmctr.training.sampler import (
    EpochDataLoader,
    EvaluationBatchSampler,
    FillerCollator,
    FillerDataset,
    GlobalBatchSampler,
)
from lmctr.training.samples import in_order, measure_samples, sample_values, training_speed
from lmctr.training.sharded import (
    add_tables,
    dense_weights,
    load_row_states,
    load_weights,
    save_checkpoint,
    shard_model,
    sharded_banks,
    without_row_states,
)
from lmctr.training.uploads import CheckpointUploads
from lmctr.utils.suggest import refuse_unknown

_READ_WHEN_MADE = ("ema_decay", "effective_rank_samples", "callbacks", "embedding_optimizer", "shard_tables")
_READ_BY_TRAIN = (
    *("linear_start", "boosting_share", "calibration", "rolling_origin", "refit"),
    *("from_run", "from_optimizer", "lora"),
)
_OF_TRAINER = ("groups", "times", "lengths", "loss_weight")  # of a sample, and for no model


class CTRTrainer(CheckpointUploads, Trainer):
    r"""Trains and measures a model whose forward takes `labels`, `sample_weight` and `num_items_in_batch`.

    Datasets are map-style; besides `__len__` and `__getitem__` these attributes, or columns of a `datasets.Dataset`, are used when present:
    `lengths` (S,) token lengths (for batches of similar length), `labels` (S,), `groups` (S,) user of each sample (for
    the grouped AUC), `sample_weight` (S,) for the metrics, `times` (S,) unix seconds for `recency_half_life`, `loss_weight` (S,) what training samples
    count in the loss beside that. Rows of several samples: `labels`, `times` and these weights are (R, C), `groups` (R,), and
    `candidate_mask` (R, C) says where a row has a sample; metrics, predictions and rates are those of the samples, row by row, so that they
    do not depend on how samples are gathered into rows. Impressions (a dataset of an `ImpressionView`, with its `ecpm`) are measured by
    `lmctr.evaluation.ranking_evaluator.evaluate_ranking`, with its default settings. A dataset with a method `measure(labels, logits) -> dict` has metrics of its own: it gets those of the samples, in its own
    order, and its values take the place of those below.

    Args:
        model: for example a [`CTRSinkForCTR`]. Stage 1 needs one whose `poolings` has "sinks".
        args: [`CTRTrainingArguments`].
        data_collator: list of dataset items to a dict of tensors with `labels`.
        train_dataset, eval_dataset: see above; `eval_dataset` may be a dict of datasets.
        processing_class: the processor, saved with each checkpoint.
        kwargs: as for [`~transformers.Trainer`].

    Metrics of `evaluate` and `predict` are those of `lmctr.evaluation.evaluator.evaluate_predictions`, prefixed, and
    `<prefix>_loss`, which equals the log loss. A model with several tasks has them for each, `<prefix>_<task>_auc`, and without a
    task's name those of the first. Evaluation always pools all tokens.

    Raises:
        ValueError: stage 1 with a model without sinks; training or evaluation labels of one class only (before
            training starts); an argument class other than `CTRTrainingArguments`.

    Example:

    ```python
    >>> trainer = CTRTrainer(model, CTRTrainingArguments("out", stage1_epochs=1, stage2_epochs=1),
    ...     data_collator=TextCollator(view), train_dataset=TextDataset(view, splits.train),
    ...     eval_dataset=TextDataset(view, splits.validation), processing_class=processor)
    >>> trainer.train()
    ```
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: CTRTrainingArguments | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        **kwargs,
    ):
        if not isinstance(args, CTRTrainingArguments):
            raise ValueError(f"args must be CTRTrainingArguments, got {type(args).__name__}")
        if isinstance(model, (str, os.PathLike)):
            raise ValueError(f"model: got {str(model)!r}; give the model itself, of AutoModelForCTR.from_pretrained")
        check_head(model)
        if data_collator is None:
            raise ValueError(
                "data_collator is missing: give the collator of the data view, for example TextCollator(view)"
            )
        for name, dataset in {"train_dataset": train_dataset, **_by_name(eval_dataset)}.items():
            if dataset is not None and not hasattr(dataset, "__len__"):
                raise ValueError(
                    f"{name}: a stream ({type(dataset).__name__}) has no length, which exact epochs and metrics need; give a map-style data set, "
                    "such as datasets.load_dataset(...) without streaming"
                )
            if dataset is not None and not hasattr(dataset, "__getitem__"):
                raise ValueError(
                    f"{name}: a {type(dataset).__name__} has no items; give a data set, of a store TabularDataset(TabularView(store), rows)"
                )
        if (kwargs.get("optimizers") or (None, None))[0] is not None:
            check_own_optimizer(args, kwargs["optimizers"][0], model)
        if args.embedding_optimizer != "dense" and model is not None:
            if args.shard_tables:
                shard_model(model, args)
            check_sparse_tables(model, args)
            if not use_sparse_gradients(plain_model(model)):  # COO gradients, before anything wraps the model
                raise ValueError(
                    f"embedding_optimizer={args.embedding_optimizer!r}, but {type(plain_model(model)).__name__} has no embedding table; use 'dense'"
                )
        if train_dataset is not None and hasattr(model, "peft_config"):
            from lmctr.training.lora import check_adapters

            check_adapters(model, args.load_best_model_at_end)
        self.start_optimizer: Callable[[torch.optim.Optimizer], None] | None = None
        self._row_gradients: RowGradients | None = None
        self._tree_scores: dict[bytes, torch.Tensor] = {}
        self.stages = TwoStageCallback()
        self.average = None if args.ema_decay is None else WeightAverage(args.ema_decay)
        if self.average is not None and (args.fsdp or args.deepspeed):
            raise ValueError(
                f"ema_decay={args.ema_decay} does not work with FSDP or DeepSpeed, where no process holds the weights; leave it out"
            )
        averaging = [] if self.average is None else [self.average]
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=[
                self.stages,
                StageTwoEarlyStopping(),
                *averaging,
                *_diagnostics(model, args),
                *(callback() for callback in args.load_callbacks()),
                *(callbacks or []),
            ],
            **kwargs,
        )
        # The loss below is normalised over the whole global batch: the parent must not divide it again.
        self.model_accepts_loss_kwargs = True
        self.loss_is_scaled_for_ga = True
        inner = plain_model(self.model)
        poolings = inner.poolings if isinstance(inner, CTRPreTrainedModel) else ()
        self._takes_pooling = bool(poolings)
        if args.stage1_epochs > 0 and "sinks" not in poolings:
            reason = 'sink_kind="none"' if poolings else f"{type(inner).__name__} has no sinks"
            raise ValueError(
                f"stage1_epochs={args.stage1_epochs} pools the sinks only, but {reason}; set stage1_epochs=0"
            )

    # ---- data ----

    def get_train_dataloader(self) -> DataLoader:
        """Loader of this process's micro-batches; see [`GlobalBatchSampler`]."""
        if self.train_dataset is None:
            raise ValueError("training needs a train_dataset")
        args = self.args
        grouped = args.train_sampling_strategy == "group_by_length"
        sampler = GlobalBatchSampler(
            len(self.train_dataset),
            self._train_batch_size,
            accumulation_steps=args.gradient_accumulation_steps,
            num_processes=args.world_size,
            process_index=args.process_index,
            lengths=sample_values(self.train_dataset, "lengths") if grouped else None,
            strategy=args.train_sampling_strategy,
            group_batches=args.length_group_batches,
            seed=args.data_seed if args.data_seed is not None else args.seed,
        )
        return self._loader(self.train_dataset, sampler)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Loader of this process's evaluation batches, longest first; see [`EvaluationBatchSampler`]."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            if not isinstance(self.eval_dataset, Mapping) or dataset not in self.eval_dataset:
                known = f"one of {', '.join(self.eval_dataset)}, or " if isinstance(self.eval_dataset, Mapping) else ""
                raise ValueError(f"eval_dataset: got {dataset!r}, accepted: {known}a data set")
            dataset = self.eval_dataset[dataset]
        if dataset is None:
            raise ValueError("evaluation needs an eval_dataset")
        sampler = EvaluationBatchSampler(
            len(dataset),
            self.args.per_device_eval_batch_size,
            num_processes=self.args.world_size,
            process_index=self.args.process_index,
            lengths=sample_values(dataset, "lengths"),
        )
        return self._loader(dataset, sampler)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """The same loader as for evaluation."""
        return self.get_eval_dataloader(test_dataset)

    def _loader(self, dataset: Any, sampler: GlobalBatchSampler | EvaluationBatchSampler) -> DataLoader:
        args, collator = self.args, self.data_collator
        is_training = isinstance(sampler, GlobalBatchSampler)
        weight = self._loss_weight(dataset) if is_training else None
        rows = FillerDataset(dataset, weight)
        # A loader for evaluation is read once.
        persistent = is_training and args.dataloader_persistent_workers and args.dataloader_num_workers > 0
        # An iterator draws a seed when it is made: once with persistent workers, and once more when a run goes on. From the global
        # generator that would shift every dropout mask after it.
        own = torch.Generator().manual_seed(args.seed) if persistent else None
        return (EpochDataLoader if is_training else DataLoader)(
            rows,
            batch_sampler=sampler,
            collate_fn=FillerCollator(collator if weight is None else WeightedCollator(collator)),
            num_workers=args.dataloader_num_workers,
            worker_init_fn=end_with_parent,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
            persistent_workers=persistent,
            generator=own,
            prefetch_factor=args.dataloader_prefetch_factor,
        )

    def _loss_weight(self, dataset: Any) -> np.ndarray | None:
        """What training samples count in the loss beside their own weight, or None."""
        half_life, weight = self.args.recency_half_life, sample_values(dataset, "loss_weight")
        if half_life is None:
            return weight
        times = sample_values(dataset, "times")
        if times is None:
            raise no_times(half_life)
        recent = recency_weights(times, half_life)
        return recent if weight is None else recent * weight

    # ---- loss ----

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """As in the parent, without what only the trainer reads of a sample, which a data set may have as columns."""
        return super()._prepare_inputs({key: value for key, value in inputs.items() if key not in _OF_TRAINER})

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor:
        """Weight of the rows that count in the global batch: all processes, all accumulation steps."""
        total = torch.zeros((), dtype=torch.float32, device=device)
        model = plain_model(self.model)
        count = model.count_items if isinstance(model, CTRPreTrainedModel) else count_items
        for batch in batch_samples:
            if "labels" not in batch:
                raise ValueError(
                    f"a batch has no 'labels', as the column of clicks is to be called; it has {', '.join(batch)}"
                )
            total += count(batch).to(device)
        if self.args.world_size > 1:
            total = self.accelerator.gather(total).sum()
        return torch.where(total > 0, total, torch.ones_like(total))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """The model's own loss, or that of `compute_loss_func(outputs, labels, num_items_in_batch)`, pooling what the stage asks for (all
        tokens outside training)."""
        if self._takes_pooling:
            inputs = {**inputs, "pooling": self.stages.pooling if model.training else "all"}
        if self.compute_loss_func is None:
            outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
            loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
        else:
            if "sample_weight" in inputs:
                raise ValueError(
                    "compute_loss_func gets no weights, but the samples have some (sample_weight, loss_weight or recency_half_life); leave them out, "
                    "or override compute_loss"
                )
            outputs = model(**{key: value for key, value in inputs.items() if key != "labels"})
            loss = self.compute_loss_func(outputs, inputs["labels"], num_items_in_batch=num_items_in_batch)
        if num_items_in_batch is not None:
            # Gradients are averaged over the processes; the loss is already a share of the global mean.
            loss = loss * self.args.world_size
        return (loss, outputs) if return_outputs else loss

    # ---- optimiser ----

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As in the parent; with a sparse `embedding_optimizer`, that one for the tables beside `optim` for the rest.

        `start_optimizer`, where it is set, is called with a new one: what a training goes on from is put there.
        """
        is_new = self.optimizer is None
        optimizer = self._make_optimizer(model)
        if is_new and self.args.new_modules_learning_rate is not None:
            split_new_modules(optimizer, self.model if model is None else model, self.args.new_modules_learning_rate)
        if is_new and self.start_optimizer is not None:
            self.start_optimizer(optimizer)
        if self._row_gradients is not None:
            self._row_gradients.attach(self.model if model is None else model, optimizer)
        return optimizer

    def _make_optimizer(self, model: nn.Module | None) -> torch.optim.Optimizer:
        args = self.args
        if args.embedding_optimizer == "dense" or self.optimizer is not None:
            return super().create_optimizer() if model is None else super().create_optimizer(model)
        whole = self.model if model is None else model
        tables = table_parameters(whole)
        sparse = {id(table) for table in tables}
        decayed = set(self.get_decay_parameter_names(whole))
        # by whether they decay, at any weight_decay: a state is kept in this order
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, parameter in whole.named_parameters():
            if parameter.requires_grad and id(parameter) not in sparse:
                groups[name in decayed].append(parameter)
        optimizer_class, options = self.get_optimizer_cls_and_kwargs(args, whole)
        dense = [{"params": own, "weight_decay": args.weight_decay * decays} for decays, own in groups.items() if own]
        rate = args.learning_rate if args.embedding_learning_rate is None else args.embedding_learning_rate
        rows = embedding_optimizer(
            args.embedding_optimizer,
            tables,
            lr=rate,
            weight_decay=args.weight_decay,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
        )
        self.optimizer = GroupedOptimizer([*([optimizer_class(dense, **options)] if dense else []), rows])
        return self.optimizer

    @property
    def _wraps_gradients(self) -> bool:
        """Whether an engine holds shards of the gradients, which only it can measure."""
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    @property
    def _shards(self) -> list[nn.Parameter]:
        """This process's rows of tables that it shares with others."""
        return [bank.weight for bank in sharded_banks(self.model).values()]

    @property
    def holds_whole_model(self) -> bool:
        """Whether each process has all weights, so that it can run the model alone."""
        return not self.is_fsdp_enabled and not self._shards

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        if self._wraps_gradients:
            return super()._clip_grad_norm(model)
        self.accelerator.unscale_gradients()
        return clip_gradients(model.parameters(), self.args.max_grad_norm, self._shards)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        if grad_norm is not None or self._wraps_gradients:
            return super()._get_grad_norm(model, grad_norm=grad_norm)
        self.accelerator.unscale_gradients()
        return gradient_norm(model.parameters(), self._shards)

    # ---- evaluation ----

    def _averaged(self) -> AbstractContextManager[None]:
        """Inside a training, the block in which the model has its averaged weights, with `ema_decay`."""
        return nullcontext() if self.average is None or not self.is_in_train else self.average.applied()

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        """As in the parent; with `ema_decay` the averaged weights are measured."""
        with self._averaged():
            return super().evaluate(*args, **kwargs)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, torch.Tensor, torch.Tensor]:
        """Logits (float32) and labels of one batch; the loss is computed from all logits at once."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels", None)
        inputs.pop("sample_weight", None)
        if self._takes_pooling:
            inputs["pooling"] = "all"
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
        logits = (outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]).detach().float()
        labels = torch.full_like(logits, IGNORED_LABEL) if labels is None else labels.float()
        return None, logits, labels

    def _share_buffers(self) -> None:
        """Let all processes measure the model that the first one saves: batch normalisation has statistics of each process's own rows."""
        if self.args.world_size > 1 and not self.is_fsdp_enabled:
            for buffer in plain_model(self.model).buffers():
                if buffer.is_floating_point():
                    torch.distributed.broadcast(buffer, 0)

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Scores every row once, puts the scores in the dataset's order and measures them exactly."""
        dataset = dataloader.dataset.dataset
        self._share_buffers()
        compute_metrics, self.compute_metrics = self.compute_metrics, None
        processed, self.preprocess_logits_for_metrics = self.preprocess_logits_for_metrics, None
        self.gather_function = self.accelerator.gather  # the parent resets it; batches have equal sizes already
        beside = getattr(plain_model(self.model), "trees_beside", lambda: None)()
        try:
            with nullcontext() if beside is None else beside.keeping(self._tree_scores):
                output = super().evaluation_loop(dataloader, description, False, ignore_keys, metric_key_prefix)
        finally:
            self.compute_metrics, self.preprocess_logits_for_metrics = compute_metrics, processed
        rows = dataloader.batch_sampler.gathered_rows
        logits, labels = in_order(output.predictions, rows), in_order(output.label_ids, rows)
        check_logits(logits, labels, self.args)
        metrics = dict(output.metrics)
        mask = sample_values(dataset, "candidate_mask")
        if mask is not None:
            logits, labels = logits[mask], labels[mask]
        measured = measure_samples(dataset, labels, logits, self._task_names())
        metrics.update({f"{metric_key_prefix}_{key}": value for key, value in measured.items()})
        if compute_metrics is not None:
            shown = logits
            if processed is not None:
                shown = nested_numpify(processed(*map(torch.from_numpy, (logits, labels))))
            own = compute_metrics(EvalPrediction(predictions=shown, label_ids=labels))
            if not isinstance(own, Mapping):
                raise ValueError(f"compute_metrics: gave {own!r:.80}; accepted: a dict of metrics by their names")
            own = denumpify_detensorize(dict(own))  # what is written down as JSON
            prefix = f"{metric_key_prefix}_"
            metrics.update({key if key.startswith(prefix) else prefix + key: value for key, value in own.items()})
        return EvalLoopOutput(predictions=logits, label_ids=labels, metrics=metrics, num_samples=len(logits))

    def _task_names(self) -> list[str]:
        return list(getattr(getattr(plain_model(self.model), "config", None), "task_names", None) or [])

    # ---- stages, checkpoints, resuming ----

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs) -> Any:
        """As in the parent, after checks that would otherwise fail hours later; `resume_from_checkpoint=True`: from the newest complete one.

        Raises:
            ValueError: a training or evaluation set with one class only; a model of which nothing is trained; a checkpoint to resume from that is not
                complete or was written with another global batch size.
        """
        check_trained(self.model)
        _check_labels("train_dataset", self.train_dataset)
        if str(getattr(self.args.eval_strategy, "value", self.args.eval_strategy)) != "no":
            for name, dataset in _by_name(self.eval_dataset).items():
                _check_labels(name, dataset)
            measures = self.compute_metrics is None and type(self).evaluate is CTRTrainer.evaluate  # and nobody else
            if self.args.stage2_epochs and measures:  # looked for after the first epoch of stage 2
                check_best_metric(self.args.metric_for_best_model, self.eval_dataset, self._task_names())
        self._began, self._seconds_before = time.monotonic(), 0.0
        if resume_from_checkpoint is True:  # the newest may be one that a kill cut short
            resume_from_checkpoint = newest_complete_checkpoint(self.args.output_dir)[0] or True
        knows_all = not resume_from_checkpoint
        if isinstance(resume_from_checkpoint, (str, os.PathLike)):
            resume_from_checkpoint = str(resume_from_checkpoint)
            if (Path(resume_from_checkpoint) / MARKER).is_file():
                marker, knows_all = read_marker(resume_from_checkpoint), True
                before, self._seconds_before = marker.get("global_batch_size"), marker.get("seconds", 0.0)
                if before != self.args.total_train_batch_size:
                    raise ValueError(
                        f"{resume_from_checkpoint} was written with {before} samples per optimiser step, now it is "
                        f"{self.args.total_train_batch_size}; keep per_device_train_batch_size x "
                        "gradient_accumulation_steps x processes"
                    )
        self._row_gradients = RowGradients() if can_hold_rows(self.args) else None
        if self.average is not None:
            self.average.clear()  # of a training that an error ended
        on_start = self.args.eval_on_start
        self.args.eval_on_start = on_start and not resume_from_checkpoint  # once: patience counts evaluations
        try:
            output = super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.args.eval_on_start = on_start
            if self._row_gradients is not None:
                self._row_gradients.release()
            loader = self.callback_handler.train_dataloader
            if isinstance(loader, EpochDataLoader):
                loader.end_workers()
        if knows_all and "train_runtime" in output.metrics:
            seconds = output.metrics["train_runtime"] + self._seconds_before
            batch_size = self.args.total_train_batch_size
            output.metrics.update(training_speed(self.train_dataset, self.state.global_step, batch_size, seconds))
        return output

    def hyperparameter_search(
        self,
        hp_space: Callable | None = None,
        compute_objective: Callable[[dict[str, float]], float] | None = None,
        n_trials: int = 20,
        direction: str | list[str] | None = None,
        *args,
        **kwargs,
    ) -> Any:
        """As in the parent, which sums up all metrics: without `compute_objective` it is `metric_for_best_model` that is looked for, in the
        direction in which that is better. Values of `hp_space` are checked as those of new training arguments, and epochs of stages count.

        Raises:
            ValueError: a `direction` in which it is worse; a key of `hp_space` that is no training argument, was read when the trainer was
                made, or is read by `lmctr train` alone; values that the arguments refuse.
        """
        if hp_space is not None:
            hp_space = self._checked_space(hp_space)
        if compute_objective is None:
            metric = f"eval_{(self.args.metric_for_best_model or 'loss').removeprefix('eval_')}"
            better = "maximize" if self.args.greater_is_better else "minimize"
            if direction not in (None, better):
                raise ValueError(
                    f"direction={direction!r}, but {metric}, which is looked for without compute_objective, is better the other way; leave "
                    f"direction out, or give compute_objective"
                )
            compute_objective, direction = itemgetter(metric), better
        return super().hyperparameter_search(
            hp_space, compute_objective, n_trials, direction or "minimize", *args, **kwargs
        )

    def _checked_space(self, space: Callable) -> Callable:
        """The parent sets a trial's values one by one and checks none."""
        start = {field.name: getattr(self.args, field.name) for field in fields(self.args) if field.init}
        epochs = type(self.args).__dataclass_fields__["num_train_epochs"].default

        def checked(trial: Any) -> dict[str, Any]:
            values = space(trial)
            if not hasattr(trial, "suggest_float"):  # what other backends draw from
                return values
            refuse_unknown(values, start, "hp_space")
            if early := [key for key in _READ_WHEN_MADE if key in values]:
                raise ValueError(
                    f"hp_space: {early[0]} is read when the trainer is made, and would change nothing; search it by `lmctr search`, or make a "
                    "trainer for each value"
                )
            if unread := [key for key in _READ_BY_TRAIN if key in values]:
                raise ValueError(
                    f"hp_space: {unread[0]} is read by `lmctr train` alone, and would change nothing; accepted: what a training itself reads, "
                    "such as learning_rate or recency_half_life"
                )
            if "num_train_epochs" in values and not {"stage1_epochs", "stage2_epochs"} & values.keys():
                stage2 = values["num_train_epochs"] - start["stage1_epochs"]
                values = {**values, "num_train_epochs": epochs, "stage2_epochs": stage2}
            try:
                found = type(self.args)(**{**start, "num_train_epochs": epochs, **values})
            except ValueError as error:
                raise ValueError(f"hp_space: {error}") from error
            return {**values, "num_train_epochs": found.num_train_epochs}

        return checked

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args, **kwargs) -> None:
        with _damage_named(resume_from_checkpoint):
            self.stages.epoch_state = load_epoch_state(resume_from_checkpoint, self.args.process_index)
            if self.args.shard_tables:
                load_weights(self.model, resume_from_checkpoint)
            else:
                super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _plain_optimizer(self) -> Any:
        """The optimiser without accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        apart = without_row_states(self.model, self._plain_optimizer()) if self.args.shard_tables else nullcontext()
        with apart:
            super()._save_optimizer_and_scheduler(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _damage_named(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)
            if self.args.shard_tables and checkpoint is not None:
                load_row_states(self.model, self._plain_optimizer(), checkpoint)
            if self.average is not None and checkpoint is not None:
                self.average.load(self.model, checkpoint)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if best is not None and Path(best, MARKER).is_file():
            read_marker(best)
        if self.args.shard_tables:
            load_weights(self.model, best)
        else:
            super()._load_best_model()
        if self.average is not None:
            self.average.clear()  # the checkpoint's weights are averaged ones

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _damage_named(checkpoint):
            super()._load_rng_state(checkpoint)

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        result = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is None:
            return result
        if self.state.best_global_step:
            # A run folder may have been moved since.
            best = Path(self.args.output_dir) / f"checkpoint-{self.state.best_global_step}"
            if best.is_dir():
                self.state.best_model_checkpoint = str(best)
        last = [callback.step for callback in self.callback_handler.callbacks if isinstance(callback, StopAt)]
        if should_stop(self.args, self.state) or self.state.global_step >= min([max_steps, *last]):
            return num_train_epochs, 0  # the run had ended early: no further epoch
        return result

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save weights, configuration and processor, so that the folder can be loaded, measured, used and shared as it is; of a model with
        adapters these, as [`~lmctr.training.lora.save_adapter`] does.

        The training arguments, which transformers pickles beside the weights, stay in checkpoints only: a pickle has no place beside a
        model that people share.
        """
        config = getattr(plain_model(self.model), "config", None)
        found = getattr(self.processing_class, "fingerprint", None)
        if found is not None and hasattr(config, "processor_fingerprint"):  # ids mean nothing without the vocabularies
            config.processor_fingerprint = found
        folder = Path(output_dir or self.args.output_dir)
        is_checkpoint = _internal_call and folder != Path(self.args.output_dir)  # else what is pushed
        if self.args.shard_tables:
            self._save_sharded(str(folder), is_checkpoint)
        else:
            with self._averaged():
                super().save_model(output_dir, _internal_call)
        if self.args.should_save and not is_checkpoint:
            (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
            if hasattr(model := self.accelerator.unwrap_model(self.model), "get_base_model"):  # PEFT's
                from lmctr.training.lora import save_base_config

                save_base_config(model, folder, self.args.from_run)

    def _save_sharded(self, output_dir: str, is_checkpoint: bool) -> None:
        """As the parent's `_save`, of which all processes do a part."""
        self._save(output_dir, state_dict=dense_weights(self.model))
        if not is_checkpoint:
            add_tables(self.model, output_dir, self.args.should_save)
            return
        if self.args.should_save:
            Path(output_dir, SAFE_WEIGHTS_NAME).unlink()  # no file of a model without its tables
        save_checkpoint(self.model, self._plain_optimizer(), output_dir)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return self.stages.stage == 2 and super()._determine_best_metric(metrics, trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            (folder / MARKER).unlink(missing_ok=True)
        limit = self.args.save_total_limit
        self.args.save_total_limit = None  # no rotation before the new one is complete
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        if not self.args.push_to_hub:  # else it was completed before its upload began
            self._complete(folder)
        if self.args.should_save:
            rotate(folder.parent, limit, self.state.best_model_checkpoint)

    def _complete(self, folder: Path) -> None:
        """What makes a checkpoint of a folder in which the parent has written all of its own."""
        if self.average is not None and self.args.should_save:
            self.average.save(folder)
        if isinstance(model := plain_model(self.model), CTRPreTrainedModel) and self.state.epoch % 1:
            save_epoch_state(folder, self.args.process_index, model.epoch_state())
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark_complete(
                folder,
                global_batch_size=self.args.total_train_batch_size,
                num_processes=self.args.world_size,
                seconds=round(self._seconds_before + time.monotonic() - self._began, 3),
            )


def _diagnostics(model: nn.Module | None, args: CTRTrainingArguments) -> list[TrainerCallback]:
    """Callbacks that measure what the arguments ask for."""
    if args.effective_rank_samples is None:
        return []
    from lmctr.training.diagnostics import EffectiveRankCallback  # analysis is loaded where it is wanted only

    inner = None if model is None else plain_model(model)
    if inner is not None and not (isinstance(inner, CTRPreTrainedModel) and inner.diagnostic_points()):
        raise ValueError(
            f"effective_rank_samples={args.effective_rank_samples}, but {type(model).__name__} names no stages to measure; "
            "tabular families do"
        )
    return [EffectiveRankCallback(max_samples=args.effective_rank_samples)]


@contextmanager
def _damage_named(checkpoint: str | None) -> Iterator[None]:
    """Errors of unreadable files become a `ValueError` that names the checkpoint."""
    try:
        yield
    except (UnpicklingError, SafetensorError, EOFError, OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "Error(s) in loading state_dict" in str(error):
            first = next(filter(None, str(error).splitlines()[1:]), "").strip()
            raise ValueError(
                f"{checkpoint} has weights of another model ({first}); resume with the model, and the version of lmctr, that wrote it, or train again "
                "(lmctr train: --overwrite)"
            ) from error
        if isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(error):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, UnpicklingError):  # torch's own text proposes to unpickle the file without checks
            reason = "a file of the optimiser's or scheduler's state is corrupt"
        raise ValueError(
            f"{checkpoint} is damaged and cannot be read ({reason}); delete this folder and resume from an earlier "
            "checkpoint, or train again"
        ) from error


def _check_labels(name: str, dataset: Any) -> None:
    check_labels(name, sample_values(dataset, "labels"), weight=sample_values(dataset, "sample_weight"))


def _by_name(eval_dataset: Any) -> dict[str, Any]:
    return eval_dataset if isinstance(eval_dataset, dict) else {"eval_dataset": eval_dataset}
