"""What a training refuses: before it begins, what would fail hours later or do something else than was asked for; then, logits that are none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from lmctr.evaluation.evaluator import METRIC_NAMES
from lmctr.evaluation.ranking_evaluator import RankingSettings
from lmctr.models.common.base import IGNORED_LABEL, plain_model
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.samples import measure_samples, sample_values

_OF_GROUPS = ("grouped_auc", "user_auc")
_OF_CLICKS = ("loss", *(name for name in METRIC_NAMES if name not in _OF_GROUPS), "positive_rate")


def check_labels(
    name: str,
    labels: np.ndarray | None,
    remedy: str = "take other split fractions, another label rule, or more samples",
    weight: np.ndarray | None = None,
) -> None:
    """Raises `ValueError` that starts with the `name` of a data set and ends with the `remedy`, for labels of one class only, so before
    anything expensive; None are not known. Samples of `weight` 0 do not count."""
    if labels is None:
        return
    counted, words = labels != IGNORED_LABEL, "samples"
    if weight is not None and not weight.all():
        counted &= weight.reshape(weight.shape + (1,) * (labels.ndim - weight.ndim)) > 0
        words = "samples of a weight above 0"
    found = np.unique(labels[counted])
    if len(found) < 2:
        shown = f"only the label {found[0]:g}" if len(found) else "no label"
        raise ValueError(f"{name} ({counted.sum()} {words}) has {shown}; AUC needs positives and negatives: {remedy}")


def check_best_metric(metric: str | None, eval_dataset: Any, tasks: Sequence[str] = ()) -> None:
    """Raises `ValueError` for a `metric_for_best_model` that no evaluation of these data, one set or a dict of them, will have; `tasks` are the
    names of the model's."""
    if metric is None:
        return
    name, given = metric.removeprefix("eval_"), f"metric_for_best_model={metric!r}"
    if isinstance(eval_dataset, dict) and eval_dataset:
        of = [one for one in eval_dataset if name.startswith(f"{one}_")]
        if not of:
            raise ValueError(
                f"{given} names none of several eval_datasets ({', '.join(eval_dataset)}); say whose, for example "
                f"'eval_{next(iter(eval_dataset))}_{name}'"
            )
        whose = max(of, key=len)
        name, eval_dataset = name.removeprefix(f"{whose}_"), eval_dataset[whose]
    if eval_dataset is not None and not hasattr(eval_dataset, "measure"):
        ranks = getattr(eval_dataset, "ecpm", None) is not None
        check_metric_name(metric, ranks, sample_values(eval_dataset, "groups") is not None, tasks, name)
        if not ranks and name not in _OF_CLICKS and name not in _defined(eval_dataset, tasks, name):
            lacks = "fewer than two labels have both" if name == "mean_auc" else "its label has not both"
            lacks = "no group has both" if name.endswith(_OF_GROUPS) else lacks
            raise ValueError(
                f"{given} has no value on these data, where {lacks} positives and negatives of a weight above 0; choose by another metric, or take "
                "other parts"
            )


def _defined(dataset: Any, tasks: Sequence[str], name: str) -> Collection[str]:
    """The metrics that samples of clicks will have, as far as their labels are known; else `name`."""
    labels, mask = sample_values(dataset, "labels"), sample_values(dataset, "candidate_mask")
    labels = labels if mask is None or labels is None else labels[mask]
    if labels is None or labels.shape[1:] != ((len(tasks),) if len(tasks) > 1 else ()):
        return (name,)
    return measure_samples(dataset, labels, np.zeros(labels.shape), tasks)


def check_metric_name(
    metric: str | None, ranks: bool, groups: bool = True, tasks: Sequence[str] | None = None, name: str | None = None
) -> None:
    """Raises `ValueError` for a `metric_for_best_model` that is none of impressions (`ranks`), or of samples with or without groups and of these
    tasks, None where they are not known yet. `name` is what it is called without the evaluation's prefix."""
    if metric is None:
        return
    name, several = name or metric.removeprefix("eval_"), not ranks and (tasks is None or len(tasks) > 1)
    known = [*_OF_CLICKS, *(_OF_GROUPS if groups else ())]
    known = [*RankingSettings().titles()] if ranks else known
    of_task = (name.removesuffix(f"_{one}") for one in known if name.endswith(f"_{one}"))
    if name in known or (several and (name == "mean_auc" or any(tasks is None or task in tasks for task in of_task))):
        return
    known += ["mean_auc", *(f"{task}_auc" for task in tasks or ("<label>",))] if several else []
    raise ValueError(
        f"metric_for_best_model={metric!r} is no metric of {'impressions' if ranks else 'these samples'}; accepted: "
        f"{', '.join(f'eval_{one}' for one in known)}"
    )


def check_logits(logits: np.ndarray, labels: np.ndarray, args: CTRTrainingArguments) -> None:
    """Raises `ValueError` where logits of labelled samples are no numbers: nothing can be measured any more."""
    counted = labels != IGNORED_LABEL
    lost = counted & ~np.isfinite(logits)
    if lost.any():
        raise ValueError(
            f"{lost.sum()} of {counted.sum()} logits of the model are NaN or infinite: the training diverged; take a lower learning_rate (now "
            f"{args.learning_rate:g}), or bound the gradients with max_grad_norm (now {args.max_grad_norm:g})"
        )


def check_own_optimizer(args: CTRTrainingArguments, optimizer: torch.optim.Optimizer, model: nn.Module | None) -> None:
    """Raises `ValueError` for what has no effect on an optimiser that the user makes, which has its own groups, and for one made of
    another model, which would train nothing."""
    for name, plain in {"new_modules_learning_rate": None, "embedding_optimizer": "dense"}.items():
        if getattr(args, name) != plain:
            raise ValueError(
                f"{name}={getattr(args, name)!r} has no effect on an optimizer that is given; leave one of them out"
            )
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = [] if model is None else [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
    if trained and held.isdisjoint(trained):
        raise ValueError(
            "optimizers: the optimizer holds no parameter that the model trains; make it from model.parameters() of the very model that is given"
        )


def check_trained(model: nn.Module | None) -> None:
    """Raises `ValueError` for a model whose parameters are all frozen, as those of adapters are that were loaded to score with."""
    if model is not None and not any(parameter.requires_grad for parameter in model.parameters()):
        hint = "; load its adapters with is_trainable=True" if hasattr(model, "peft_config") else ""
        raise ValueError(f"model: nothing of it is trained, all parameters have requires_grad=False{hint}")


def check_tables(args: CTRTrainingArguments, has_tokenizer: bool, regularize_tables: bool) -> None:
    """Raises `ValueError` for a sparse `embedding_optimizer` of a model that cannot have one, by what its configuration says."""
    option = _sparse(args)
    if args.embedding_optimizer != "dense" and has_tokenizer:
        raise ValueError(
            f"{option} trains tables of ids, but a model with a tokenizer has none; leave it out, or use 'dense'"
        )
    if args.embedding_optimizer != "dense" and regularize_tables:
        raise ValueError(
            f"{option} updates the rows of a batch only, and regularize_tables reads whole tables; use 'dense', or leave that out"
        )


def check_sparse_tables(model: nn.Module, args: CTRTrainingArguments) -> None:
    """Raises `ValueError` for a sparse `embedding_optimizer` of a model, or in a launch, that cannot have one."""
    option = _sparse(args)
    if args.fsdp or args.deepspeed:
        raise ValueError(f"{option} does not work with FSDP or DeepSpeed, which shard dense gradients; use 'dense'")
    if args.world_size > 1 and args.device.type == "cuda" and not args.shard_tables:
        raise ValueError(
            f"{option} does not work with several GPUs: NCCL adds up dense gradients only; set shard_tables, or use 'dense'"
        )
    config = getattr(plain_model(model), "config", None)
    check_tables(args, getattr(config, "has_tokenizer", False), getattr(config, "regularize_tables", False))


def _sparse(args: CTRTrainingArguments) -> str:
    return f"embedding_optimizer={args.embedding_optimizer!r}"


def says_of_stages(args: CTRTrainingArguments, rows: int) -> str:
    """A line on a training that ends before its second stage, whose pooling is that of predictions; empty for others."""
    first = -(-rows // args.total_train_batch_size) * args.stage1_epochs
    if not 0 < args.max_steps <= first or not args.stage2_epochs:
        return ""
    return (
        f"max_steps={args.max_steps} ends in stage 1, whose {args.stage1_epochs} epochs (stage1_epochs) are {first} steps: what predictions pool is "
        "not trained; for more than a first look raise max_steps, or set stage1_epochs to 0"
    )
