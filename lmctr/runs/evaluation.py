"""Metrics of a trained run on one part of its data, or of other data."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers.trainer_utils import PredictionOutput

from lmctr.evaluation.evaluator import (
    METRIC_NAMES,
    RANKING_METRIC_NAMES,
    format_metrics,
    rows_by_task,
    words_on_undefined,
)
from lmctr.evaluation.slices import slices_text
from lmctr.runs.download import local_folder
from lmctr.runs.folder import RECIPE, RunFolder, open_run, rewriting
from lmctr.runs.inputs import input_class, input_of
from lmctr.runs.inputs.base import PARTS, InputKind, RunContext
from lmctr.runs.loading import load_run
from lmctr.runs.options import EvaluateOptions
from lmctr.runs.progress import ProgressLines
from lmctr.runs.recipe import Recipe, load_recipe, refuse_other_overrides
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.trainer import CTRTrainer
from lmctr.utils.files import read_json, replacing, write_json
from lmctr.utils.load_report import without_bars
from lmctr.utils.measure import has_bf16_units
from lmctr.utils.progress import showing
from lmctr.utils.random_state import kept_random_state, kept_settings

logger = logging.getLogger(__name__)

# Training arguments that matter to a measurement.
_EVALUATION_KEYS = (
    "per_device_eval_batch_size",
    "use_cpu",
    "bf16",
    "fp16",
    "tf32",
    "dataloader_num_workers",
    "dataloader_prefetch_factor",
    "seed",
)


def run_evaluate(options: EvaluateOptions) -> int:
    """`lmctr evaluate RUN`: measure one run, print a table. Returns the exit code."""
    (path,) = options.run
    if options.output and Path(options.output).suffix != ".json":
        raise ValueError(
            f"--output {options.output}: give a file that ends in .json; tables (.md) are for several runs"
        )
    slices: list[dict[str, Any]] | None = [] if options.slices else None
    measured = evaluate(
        path,
        options.split,
        overrides=options.overrides,
        predictions=options.predictions,
        allow_unknown=options.allow_unknown,
        slices=slices,
        frozen_histories=options.frozen_histories,
    )
    if measured:
        print(format_metrics(rows_by_task(options.split, measured)))
        if options.split != "test" and "before_refit" in (RunFolder(local_folder(path)).metrics() or {}):
            print("the model was trained on these samples: training.refit; metrics.json holds validation from before")
        if options.slices:
            print("\n" + (slices_text(slices) if slices else "no slices: the data are no interaction log"))
        if options.output:
            found = {"slices": slices} if slices else {}
            found |= {"frozen_histories": True} if options.frozen_histories else {}
            write_json(options.output, {"run": path, "split": options.split, "metrics": measured, **found})
    return 0


@without_bars()
@kept_settings()
@kept_random_state()
def evaluate(
    run: str | Path,
    split: str = "test",
    *,
    overrides: Mapping[str, Any] | Sequence[tuple[str, str]] = (),
    predictions: str | Path | None = None,
    allow_unknown: bool = False,
    slices: list[dict[str, Any]] | None = None,
    frozen_histories: bool = False,
    quiet: bool = False,
) -> dict[str, float]:
    """Metrics of one part; empty in processes other than the first.

    Args:
        run: folder of a finished run; or another folder that `from_pretrained` loads, or a Hub id, with `overrides` that name the data.
        split: train, validation or test.
        overrides: dotted keys over the run's own recipe; only keys that leave the model and its inputs as they were trained. A folder
            without a recipe takes every data key: `{"data.name": "clicks.yaml"}`.
        predictions: Parquet file for the scores.
        allow_unknown: measure although nearly all values of a field are unknown.
        slices: a list to which the metrics by slice are added, see [`~lmctr.evaluation.slices.slice_metrics`], beside the strongest baseline's.
        frozen_histories: read of a log what was known when the part began, for baselines too: what users did since then, which teaches of them what the
            order inside a user pays for, stands in no history and in no statistic.
        quiet: show no progress.

    Raises:
        FileNotFoundError, ValueError: no finished run and no data, another key, data that do not go with the processor, a field with next
            to no known value.
    """
    if split not in PARTS:
        raise ValueError(f"split is {split!r}, accepted: {', '.join(PARTS)}")
    for name, value, kinds in (("predictions", predictions, (str, Path)), ("slices", slices, list)):
        if value is not None and not isinstance(value, kinds):
            raise ValueError(
                f"{name}: got {value!r:.80}, accepted: {'a list' if kinds is list else 'a path'}, or None"
            )
    folder = RunFolder(local_folder(run))
    recipe = recipe_of(folder, overrides, str(run))
    view = input_of(recipe)
    with showing(not quiet), tempfile.TemporaryDirectory() as scratch:
        values = {key: recipe.training[key] for key in _EVALUATION_KEYS if key in recipe.training}
        if values.get("bf16") == "auto":  # as it was trained, where that can be done here
            chosen = folder.precision.is_file() and read_json(folder.precision)["bf16"]
            values["bf16"] = chosen and has_bf16_units("cuda" if torch.cuda.is_available() else "cpu")
            values["use_cpu"] = values.get("use_cpu", False) or (values["bf16"] and not torch.cuda.is_available())
        arguments = CTRTrainingArguments(
            output_dir=scratch, eval_strategy="no", save_strategy="no", disable_tqdm=True, **values
        )
        view.load(Path(scratch))
        if frozen_histories:
            view.freeze(split)
        model, processor = load_run(folder.path)
        view.open(processor, (split,), RunContext(folder.path))
        for warning in view.unknown_warnings(split, folder.unknown_shares(), allow_unknown):
            logger.warning(warning)
        sizes = {part: view.num_samples(part) for part in PARTS}
        known = ((folder.data() or {}).get("counts") or {}).get("samples")
        if {"data.name", "data.path", "data.options"} & {*dict(overrides)} and known not in (None, sizes):
            told = "measured on %s of the %s samples of other data than the run's: the part that their split calls %s, others not; run.predict scores all"
            logger.warning(told, f"{sizes[split]:,}", f"{sum(sizes.values()):,}", split)
        trainer = CTRTrainer(
            model=model,
            args=arguments,
            data_collator=view.collator(arguments.bf16 or arguments.fp16),
            processing_class=processor,
        )
        with ProgressLines() as lines:
            lines.part = split
            trainer.add_callback(lines)
            dataset = view.dataset(split)
            output = trainer.predict(dataset, metric_key_prefix=split)
        if arguments.process_index != 0:
            return {}
        if predictions:
            write_predictions(predictions, view, split, output)
        if slices is not None:
            logits = output.predictions if output.predictions.ndim == 1 else output.predictions[:, 0]
            events = view.identify(split)["event"].to_numpy()
            slices += view.slices(split, events, logits, arguments.seed, with_baseline=True)
        found = plain_metrics(output.metrics, split, view.tasks)
        if lacking := words_on_undefined(found, view.tasks, dataset.groups is not None):
            logger.warning("%s: %s", split, lacking)
        return found


def recipe_of(
    folder: RunFolder, overrides: Mapping[str, Any] | Sequence[tuple[str, str]], name: str | None = None
) -> Recipe:
    """The recipe of a finished run, or one around a bare model, which knows its inputs itself and needs data.

    Args:
        name: what errors call the folder.
    """
    refuse_other_overrides(overrides)
    if folder.started or not (folder.path / "config.json").is_file():
        path = open_run(folder.path).path / RECIPE
        check_overrides(overrides, free_data_keys(folder))
        return load_recipe(path, overrides)
    if "data.name" not in dict(overrides):
        raise FileNotFoundError(
            f"{name or folder.path} is no run folder: it has no {RECIPE}, which would say what to measure on; give the data: "
            "--data.name NAME and what else they need of --data.KEY"
        )
    model = {"family": folder.model_type}
    if "text_config" in folder.config:
        model |= {
            "backbone": {"model_type": folder.config["text_config"]["model_type"]},
            "tokenizer": "the model's own",
        }
    check_overrides(overrides, free_data_keys(folder))
    return load_recipe({"model": model}, overrides)


def free_data_keys(folder: RunFolder) -> tuple[str, ...]:
    """Data keys that may be overridden: of a run those that leave its inputs as they were trained, of a bare model all."""
    if folder.started:
        return input_of(load_recipe(folder.path / RECIPE)).free_data_keys
    return tuple(input_class(folder.model_type).data_keys.model_fields)


def check_overrides(overrides: Mapping[str, Any] | Sequence[tuple[str, str]], free_data_keys: tuple[str, ...]) -> None:
    """Only what leaves the model and its inputs as they were trained may be overridden.

    Raises:
        ValueError: an override of another key.
    """
    for key in dict(overrides):
        group, _, name = key.partition(".")
        name = name.split(".")[0]
        if group == "model" or (group == "data" and name not in free_data_keys):
            free = ", data.".join(free_data_keys)
            raise ValueError(f"--{key}: the run was trained with its own value; free are data.{free}")
        if group == "training" and name not in _EVALUATION_KEYS:
            raise ValueError(
                f"--{key} has no effect on a measurement; free are training.{', '.join(_EVALUATION_KEYS)}"
            )


def plain_metrics(metrics: dict[str, float], prefix: str, tasks: Sequence[str] = ()) -> dict[str, float]:
    """Metrics without prefix and without the trainer's own timing entries; those of several tasks as `<task>_auc`, beside the first
    task's as `auc`."""
    dropped = tuple(f"{name}_dropped" for name in RANKING_METRIC_NAMES)
    names = (*METRIC_NAMES, *RANKING_METRIC_NAMES, *dropped, "num_samples", "positive_rate")
    if len(tasks) > 1:
        names += tuple(f"{task}_{name}" for task in tasks for name in names)
    return {name: metrics[f"{prefix}_{name}"] for name in names if f"{prefix}_{name}" in metrics}


def write_predictions(path: str | Path, view: InputKind, part: str, output: PredictionOutput) -> None:
    """Write the scores of a part as Parquet: the view's identifying columns, then `label` and `logit`.

    Labels are int8 where they are whole and small, else float32. (S, T) labels and logits: those are the first task's, and
    `label_<task>` and `logit_<task>` of the others follow (-100: no label). A `weight` column goes last, so that the metrics can be computed again.
    """
    path, ordered = Path(path), view.identify(part)
    weight = ordered.pop("weight", None)
    for task, name in enumerate(view.tasks):
        end = "" if task == 0 else f"_{name}"
        labels, logits = (x if x.ndim == 1 else x[:, task] for x in (output.label_ids, output.predictions))
        # clicks are; a rank index may be above 127, or no whole number
        whole = (labels == labels.astype("int8")).all()
        ordered[f"label{end}"] = pa.array(labels.astype("int8" if whole else "float32"))
        ordered[f"logit{end}"] = pa.array(logits, pa.float32())
    if weight is not None:
        ordered["weight"] = weight
    path.parent.mkdir(parents=True, exist_ok=True)
    with rewriting(path), replacing(path) as temporary:
        pq.write_table(pa.table(ordered), temporary)
