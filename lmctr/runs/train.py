"""`lmctr train RECIPE`: data, model, training, metrics beside the baselines, and the run folder."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.runs.folder import DATA, METRICS, RECIPE, RunFolder, check_new_run, check_resume, write_predictions
from lmctr.utils.files import read_json, write_json

if TYPE_CHECKING:
    from lmctr.runs.inputs.base import View
    from lmctr.runs.recipe import Recipe
    from lmctr.training.arguments import CTRTrainingArguments

ACCEPTS_OVERRIDES = True
_REFERENCE_ROWS = 8


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "train",
        help="train a model by a recipe",
        description="Train a model by a recipe, measure it beside the baselines, and leave a run folder.",
        epilog="Any value of the recipe can be overridden: --data.path FOLDER, --training.learning_rate=1e-3, "
        "--model.sink_signal '[recency, feedback]'. Several processes: accelerate launch -m lmctr train RECIPE.",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", help="YAML file, or the name of a recipe of the package (ctr_sink/quickstart)")
    parser.add_argument("--output_dir", help="run folder (default: runs/<name of the recipe>)")
    parser.add_argument("--resume", action="store_true", help="continue the run from its newest complete checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run in the same folder")


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    if args.resume and args.overwrite:
        raise ValueError("--resume continues a run, --overwrite deletes it: give one of them")
    from lmctr.runs.recipe import load_recipe

    recipe = load_recipe(args.recipe, args.overrides)
    folder = args.output_dir or recipe.training.pop("output_dir", None) or f"runs/{Path(args.recipe).stem}"
    recipe.training.pop("output_dir", None)
    return Training(recipe, RunFolder(Path(folder)), args.resume, args.overwrite, args.command).run()


class Training:
    """One `lmctr train`: the steps in order, each written so that a kill between two of them is harmless.

    In a launch of several processes the first one prepares the data and writes files; the others wait and read.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder, resume: bool, overwrite: bool, command: str):
        import transformers

        from lmctr.runs.inputs import view_of
        from lmctr.training.arguments import CTRTrainingArguments

        transformers.utils.logging.disable_progress_bar()
        self.recipe, self.folder, self.resume, self.overwrite = recipe, folder, resume, overwrite
        self.command = command
        self.view: View = view_of(recipe)
        self._loaded = False
        values = {"disable_tqdm": True, **recipe.training}
        self.args: CTRTrainingArguments = CTRTrainingArguments(output_dir=str(folder.checkpoints), **values)
        self.is_first = self.args.process_index == 0

    def say(self, line: str) -> None:
        """Print a line, from the first process only."""
        if self.is_first:
            print(line, flush=True)

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.args.distributed_state.wait_for_everyone()

    def run(self) -> int:
        """All steps. Returns the exit code."""
        began = time.monotonic()
        if self.is_first and self._open_folder():
            self._prepare()
        self.wait()
        if self.resume and self.folder.finished:
            self.say(f"{self.folder.path} holds a finished run: nothing to resume")
            self._close()
            return 0
        self._build_and_train()
        self.say(f"run folder: {self.folder.path}  ({time.monotonic() - began:.0f} s)")
        self._close()
        return 0

    def _build_and_train(self) -> None:
        """The trainer lives no longer than this, see [`~lmctr.training.processes.leave_process_group`]."""
        trainer = self._build()
        outcome = self._train(trainer)
        self._finish(trainer, outcome)

    # ---- before training ------------------------------------------------------------------------------------------

    def _open_folder(self) -> bool:
        """Check the folder; returns whether the data must be prepared."""
        if not self.resume:
            check_new_run(self.folder, self.overwrite)
            return True
        check_resume(self.folder, self.recipe.resolved())
        return not self.folder.finished and (not self.folder.prepared or self._several)

    @property
    def _several(self) -> bool:
        return self.args.world_size > 1

    def _prepare(self) -> None:
        """Read the data once, fit the processor once, and write the recipe."""
        from lmctr.runs.recipe import RecipeError

        self.view.load(self.folder.cache)
        self._loaded = True
        lines = self.view.check()
        if not self.folder.prepared:
            processor = self.view.make_processor()
            self.folder.path.mkdir(parents=True, exist_ok=True)
            try:
                self.recipe.save(self.folder.path / RECIPE)
            except Exception as error:
                raise RecipeError(f"the recipe cannot be written: {error}") from error
            processor.save_pretrained(self.folder.path)
            for line in lines:
                self.say(line)
        if self._several:
            self.view.share(self.folder.cache)

    def _build(self) -> Any:
        """The trainer, with data and model, in each process."""
        from transformers import set_seed
        from transformers.trainer_callback import PrinterCallback

        from lmctr.runs.progress import ProgressLines
        from lmctr.training.trainer import CTRTrainer

        view, args = self.view, self.args
        if self._several:
            view.load_shared(self.folder.cache)
        elif not self._loaded:  # a resumed run of one process
            view.load(self.folder.cache)
        processor = view.load_processor(self.folder.path)
        view.open(processor, folder=self.folder.path, is_first=self.is_first, wait=self.wait, writes=True)
        if self.is_first:
            description = view.describe(self.say)
            if self.folder.prepared:
                before = read_json(self.folder.path / DATA).get("fingerprint")
                if before != description["fingerprint"]:
                    raise ValueError(
                        f"the data are not those that the run in {self.folder.path} was started with (checksum "
                        f"{before} before, {description['fingerprint']} now); restore them, or use --overwrite"
                    )
            else:
                write_json(self.folder.path / DATA, description)
        self.wait()
        set_seed(args.seed)
        model = view.model(processor)
        if args.lora is not None:
            from lmctr.training.lora import add_lora

            model = add_lora(model, args.lora)
        trainer = CTRTrainer(
            model=model,
            args=args,
            data_collator=view.collator(args.bf16 or args.fp16),
            train_dataset=view.training_dataset(),
            eval_dataset=view.dataset("validation"),
            processing_class=processor,
        )
        if args.lora is not None and trainer.is_fsdp_enabled:
            raise ValueError(
                "training.lora is set, but the launcher shards the model (FSDP), so that no process could merge the adapters; "
                "launch with recipes/accelerate/ddp.yaml, which suits the little that LoRA trains"
            )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(ProgressLines(lambda: trainer.stages.stage, self.say))
        total = sum(parameter.numel() for parameter in model.parameters())
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self.say(
            f"{view.describe_model(model)}: {total:,} parameters, {trained:,} trained; "
            f"{args.total_train_batch_size} samples per step, {args.stage1_epochs} + {args.stage2_epochs} epochs, "
            f"{args.world_size} process{'es' if self._several else ''} on {args.device.type}"
        )
        return trainer

    # ---- training and after ---------------------------------------------------------------------------------------

    def _train(self, trainer: Any) -> Any:
        from lmctr.training.checkpoints import newest_complete_checkpoint

        checkpoint = None
        if self.resume:
            checkpoint, skipped = newest_complete_checkpoint(self.folder.checkpoints)
            for message in skipped:
                self.say(f"skipped: {message}")
            self.say(f"resuming from {checkpoint}" if checkpoint else "no complete checkpoint: starting from step 0")
        return trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    def _finish(self, trainer: Any, outcome: Any) -> None:
        """Measure the best checkpoint and write the run's files; metrics.json comes last."""
        view, metrics = self.view, {}
        for name in ("validation", "test"):
            output = trainer.predict(view.dataset(name), metric_key_prefix=name)
            metrics[name] = plain_metrics(output.metrics, name, view.tasks)
            if self.is_first:
                path = self.folder.path / "predictions" / f"{name}.parquet"
                write_predictions(path, view.identify(name), output.label_ids, output.predictions, view.tasks)
        self._save_model(trainer, view.dataset("test"))
        if not self.is_first:
            return
        baselines, num_fitted = {}, {"model": view.num_samples("train")}
        if self.recipe.data["baselines"]:
            measured, num_fitted["baselines"] = view.baselines(self.args.seed)
            baselines = {
                name: {part: values[part] for part in ("validation", "test") if part in values}
                for name, values in measured.items()
            }
        state = trainer.state
        result = {
            "split metrics": metrics,
            "baselines": baselines,
            "training_samples": num_fitted,
            "best_auc": view.best_auc,
            "seed": self.args.seed,
            "best_step": state.best_global_step or state.global_step,
            "steps": state.global_step,
            "epochs": state.epoch,
            "samples_per_second": outcome.metrics.get("train_samples_per_second"),
            "train_seconds": outcome.metrics.get("train_runtime"),
            "num_processes": self.args.world_size,
            **({} if trainer.is_fsdp_enabled else view.cost(trainer.accelerator.unwrap_model(trainer.model))),
            "evaluations": [_evaluation(entry) for entry in state.log_history if _is_evaluation(entry)],
            "versions": versions(),
            "machine": machine(self.args.device.type),
            "command": self.command,
        }
        self.say(results_table(result))
        write_json(self.folder.path / METRICS, result)

    def _save_model(self, trainer: Any, samples: Any) -> None:
        """Write model and processor where `from_pretrained` reads them; adapters are merged into the weights.

        A few rows of `samples` and the model's logits for them stay beside it, for `lmctr push` to compare with.
        """
        if self.args.lora is None:
            trainer.save_model(str(self.folder.path))
        if not self.is_first:
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        if self.args.lora is not None:
            from lmctr.training.lora import merge_lora, save_adapter

            save_adapter(model, self.folder.path / "adapter")
            model = merge_lora(model)
            model.save_pretrained(self.folder.path)
        # The arguments are in recipe.yaml; a pickle has no place beside a model that people share.
        (self.folder.path / "training_args.bin").unlink(missing_ok=True)
        if not trainer.is_fsdp_enabled:  # there no process holds the whole model
            from lmctr.hub.publish import write_reference

            rows = [samples[row] for row in range(min(_REFERENCE_ROWS, len(samples)))]
            write_reference(self.folder.path, model, trainer.data_collator(rows))

    def _close(self) -> None:
        import shutil

        from lmctr.training.processes import leave_process_group

        self.wait()
        if self.is_first:
            shutil.rmtree(self.folder.cache, ignore_errors=True)
        leave_process_group()


def results_table(result: dict[str, Any]) -> str:
    """The model and the baselines in one table per part, and the best reachable AUC where it is known."""
    from lmctr.evaluation.evaluator import METRIC_TITLES, format_metrics

    lines = []
    for part, values in result["split metrics"].items():
        rows = {"model": values}
        for task in (key.removesuffix("_log_loss") for key in values if key.endswith("_log_loss")):
            own = {key: values[f"{task}_{key}"] for key in METRIC_TITLES if f"{task}_{key}" in values}
            rows[f"model, {task}"] = own
        rows |= {name.replace("_", " "): parts[part] for name, parts in result["baselines"].items() if part in parts}
        lines += ["", part, format_metrics(rows)]
    fitted = result["training_samples"]
    if "baselines" in fitted:
        lines += ["", f"training samples: model {fitted['model']:,}, baselines {fitted['baselines']:,}"]
    best = result.get("best_auc")
    if best is not None:
        reached = result["split metrics"]["test"]["auc"]
        share = (reached - 0.5) / (best - 0.5)
        lines += [
            "",
            f"best reachable test AUC {best:.4f}; the model reached {reached:.4f}, {share:.0%} of the way from 0.5",
        ]
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    import importlib.metadata

    names = ("lmctr", "torch", "transformers", "tokenizers", "accelerate", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def machine(device: str) -> str:
    """The machine in words."""
    import os

    import torch

    if device == "cuda":
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{platform.machine()}, {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads, {sys.platform}"


def plain_metrics(metrics: dict[str, float], prefix: str, tasks: Sequence[str] = ()) -> dict[str, float]:
    """Metrics without prefix and without the trainer's own timing entries; those of several tasks as `<task>_auc`, beside the first
    task's as `auc`."""
    from lmctr.evaluation.evaluator import METRIC_NAMES, RANKING_METRIC_NAMES

    dropped = tuple(f"{name}_dropped" for name in RANKING_METRIC_NAMES)
    names = (*METRIC_NAMES, *RANKING_METRIC_NAMES, *dropped, "num_samples", "positive_rate")
    if len(tasks) > 1:
        names += tuple(f"{task}_{name}" for task in tasks for name in names)
    return {name: metrics[f"{prefix}_{name}"] for name in names if f"{prefix}_{name}" in metrics}


def _is_evaluation(entry: dict[str, float]) -> bool:
    return "eval_auc" in entry or "eval_revenue_ratio" in entry


def _evaluation(entry: dict[str, float]) -> dict[str, float]:
    return {"step": entry["step"], "epoch": entry["epoch"], **plain_metrics(entry, "eval")}
