"""Training by a recipe: data, model, training, metrics beside the baselines, and the run folder."""

from __future__ import annotations

import copy
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback

from lmctr.evaluation.evaluator import format_metrics, rows_by_task, words_on_undefined
from lmctr.evaluation.significance import PairedTest
from lmctr.models.common.base import plain_model
from lmctr.models.families import family_of
from lmctr.runs.evaluation import plain_metrics, write_predictions
from lmctr.runs.find import is_data_file
from lmctr.runs.folder import DATA, METRICS, RECIPE, SLICES, RunFolder, claim, unlike_data
from lmctr.runs.in_memory import as_arguments, is_data, options_for
from lmctr.runs.inputs import config_class, input_of
from lmctr.runs.inputs.base import PARTS, InputKind, RunContext
from lmctr.runs.inputs.boosting import add_trees, choose_share, keep_trees, set_share
from lmctr.runs.inputs.calibration import calibrate
from lmctr.runs.inputs.going_on import lost_columns_told
from lmctr.runs.inputs.keys import LogDataKeys
from lmctr.runs.inputs.linear_start import start_linear
from lmctr.runs.keys import key_reference
from lmctr.runs.options import TrainOptions
from lmctr.runs.progress import ProgressLines
from lmctr.runs.recipe import Recipe, RecipeError, load_recipe, refuse_other_overrides
from lmctr.runs.reference import write_reference
from lmctr.runs.run import Run
from lmctr.runs.starting import recipe_for_file
from lmctr.runs.verdict import difference_test, verdict
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.callbacks import EndAtInterrupt, StopAt
from lmctr.training.checkpoints import newest_complete_checkpoint
from lmctr.training.checks import check_metric_name, check_tables, says_of_stages
from lmctr.training.precision import LEAST_GAIN, bf16_gain
from lmctr.training.processes import FirstProcess, end_with_parent, leave_process_group, says_of_launch
from lmctr.training.recency import no_times
from lmctr.training.sharded import count_parameters, new_tables
from lmctr.training.trainer import CTRTrainer
from lmctr.utils.files import expanded, for_arrow, json_text, read_json, write_json, write_text
from lmctr.utils.load_report import without_bars
from lmctr.utils.lock import owned
from lmctr.utils.measure import commit_here, has_bf16_units, machine_line, versions
from lmctr.utils.progress import say, showing
from lmctr.utils.ragged import blocks
from lmctr.utils.random_state import kept_random_state, kept_settings
from lmctr.utils.stopping import HeldInterrupt
from lmctr.utils.tables import write_csv

_REFERENCE_ROWS = 8
_HELD = "interrupted: the step (at the end of an epoch: the measurement) is ended to save a checkpoint; a second Ctrl-C ends at once"
CHOSEN, FIRST = "chosen.json", "first"  # with training.refit: what was chosen on validation, and the processor of then
_WITHOUT_EVALUATION = {"eval_strategy": "no", "eval_on_start": False} | dict.fromkeys(
    ("early_stopping_patience", "effective_rank_samples", "rolling_origin")
)


def train(
    recipe: Any,
    *,
    model: str | None = None,
    output_dir: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    resume: bool | str = "auto",
    overwrite: bool = False,
    quiet: bool = False,
    **columns: Any,
) -> Run:
    """Train a model by a recipe, or on a table, measure it beside the baselines, and leave a run folder, as `lmctr train` does.

    Args:
        recipe: YAML file, name of a recipe of the package ("ctr_sink/quickstart"), a dict of its groups data, model and training, or a
            checked [`Recipe`]. Or data with a row per click or no click, for a short recipe made for them: a data file, a pandas DataFrame, a
            pyarrow Table, a `datasets` Dataset, a dict of columns, a list of dicts; what is in memory is written to `<output_dir>.data`.
        model: of data, the family ("deepfm", "din", "ctr_sink", ...).
        output_dir: run folder; default: `training.output_dir`, else `runs/<name of the recipe>`; of data in memory it must be given.
        overrides: values over the recipe's, by dotted key: `{"data.path": "ml-latest-small", "training.learning_rate": 1e-3}`.
        resume: "auto" goes on with a run that was begun in the folder if its recipe is the same, returns a finished one as it is,
            and starts one where there is none; True: there must be one; False: there must be none.
        overwrite: delete an earlier run in the folder and start again.
        quiet: print nothing, neither progress nor results; warnings stay.
        columns: of data, what `lmctr init` takes: columns that are known (`user`, `item`, `time`, `label`, of impressions `impression`, `rank` or
            `position`, `ecpm`), `items` and `users` (a table or file with a row for each), `negatives`, `kind`, `names`.

    Returns:
        The finished run.

    Raises:
        RecipeError: unknown or missing key, value that is not accepted.
        FileNotFoundError: no such recipe or data.
        ValueError: a folder in use, data or values that do not fit.

    Example:

    ```python
    >>> run = lmctr.runs.train("ctr_sink/quickstart", output_dir="runs/mine", overrides={"training.seed": 1})
    >>> run.metrics["test"]["auc"]
    >>> run = lmctr.runs.train(frame, model="deepfm", label="clicked", output_dir="runs/shop")
    ```
    """
    refuse_other_overrides(overrides or {})
    told = {name: value for name, value in {"model": model, **columns}.items() if value is not None}
    called = repr(str(recipe)) if isinstance(recipe, (str, Path)) else "data" if told else "recipe"
    said = {name: value if isinstance(value, (str, int)) else name for name, value in told.items()}
    said |= {"overrides": dict(overrides)} if overrides else {}
    command = f"lmctr.runs.train({', '.join([called, *(f'{name}={value!r}' for name, value in said.items())])})"
    with showing(not quiet):
        if told or is_data(recipe):
            with as_arguments():
                from_run = dict(overrides or {}).get("training.from_run")
                options = options_for(recipe, output_dir, from_run, overwrite, told)
                recipe, output_dir = _of_file(options, output_dir, (lambda line: None) if quiet else print)
        return train_recipe(recipe, output_dir, overrides or {}, resume, overwrite, command, quiet)


def run_train(options: TrainOptions) -> int:
    """`lmctr train RECIPE`. Returns the exit code."""
    if options.list_keys is not None:
        print(key_reference(options.list_keys))
        return 0
    end_with_parent()  # of a launch
    resume = "auto" if options.resume else False
    recipe, output_dir = options.recipe, options.output_dir
    if options.from_run is not None:
        options.overrides = [*options.overrides, ("training.from_run", options.from_run)]
    if is_data_file(options.recipe):
        recipe, output_dir = _of_file(options, output_dir, print)
    train_recipe(recipe, output_dir, options.overrides, resume, options.overwrite, options.command)
    return 0


def _of_file(
    options: TrainOptions, output_dir: str | Path | None, say: Callable[[str], None]
) -> tuple[dict[str, Any], str | Path]:
    """The recipe for a data file, and where its run lies."""
    recipe = recipe_for_file(options, say)
    return recipe, output_dir or f"runs/{Path(options.recipe).name.split('.')[0]}_{recipe['model']['family']}"


@kept_settings()
@kept_random_state()
def train_recipe(
    recipe: Any,
    output_dir: str | Path | None,
    overrides: Any,
    resume: bool | str,
    overwrite: bool,
    command: str,
    quiet: bool = False,
) -> Run:
    """[`train`], with the command that `metrics.json` names; `overrides` may be pairs of texts, see `load_recipe`."""
    if resume not in (True, False, "auto"):
        raise ValueError(f"resume is {resume!r}, accepted: 'auto', True, False")
    if overwrite not in (True, False):  # "no" would delete a run
        raise ValueError(f"overwrite is {overwrite!r}, accepted: True, False")
    if output_dir is not None and not isinstance(output_dir, (str, Path)):
        raise ValueError(f"output_dir is {output_dir!r}, accepted: the path of a folder")
    if isinstance(recipe, Recipe):
        loaded = load_recipe(recipe.resolved(), overrides) if overrides else copy.deepcopy(recipe)
    else:
        loaded = load_recipe(recipe, overrides)
    folder = output_dir or loaded.training.get("output_dir")
    loaded.training.pop("output_dir", None)
    if folder is None:
        if not isinstance(recipe, (str, Path)):
            raise ValueError("output_dir is missing: a recipe that is no file has no name to make one from")
        folder = f"runs/{Path(recipe).stem}"
    return Training(loaded, RunFolder(Path(folder)), resume, overwrite, command, quiet).run()


class _FirstStep(TrainerCallback):
    """Notes in the folder that there is something to go on from."""

    def __init__(self, folder: RunFolder):
        self.path = folder.first_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        if state.is_world_process_zero and not self.path.exists():
            self.path.parent.mkdir(exist_ok=True)
            self.path.touch()


class Training:
    """One `lmctr train`: the steps in order, each written so that a kill between two of them is harmless.

    In a launch of several processes the first one prepares the data and writes files; the others wait and read.
    """

    def __init__(
        self, recipe: Recipe, folder: RunFolder, resume: bool | str, overwrite: bool, command: str, quiet: bool = False
    ):
        self.recipe, self.folder, self.resume, self.overwrite = recipe, folder, resume, overwrite
        self.command, self.was_started, self.commit = command, False, commit_here()
        self.view: InputKind = input_of(recipe)
        self.quiet, self._loaded = quiet, False
        self.values = {
            "disable_tqdm": True,
            "run_name": folder.path.name,
            **recipe.training,
            "output_dir": str(folder.checkpoints),
        }
        self.args: CTRTrainingArguments = CTRTrainingArguments(**self.values)
        if self.args.from_run is not None:
            earlier, own = (expanded(path).resolve() for path in (self.args.from_run, folder.path))
            if own == earlier or own in earlier.parents:
                raise ValueError(
                    f"training.from_run: {self.args.from_run} is the run's own output_dir {folder.path}; train into another folder"
                )
            self.view.go_on_from(self.args.from_run)
        for name in ("bf16", "fp16"):  # what the launcher said belongs to the recipe of the run
            if getattr(self.args, name) and not self.values.get(name):
                self.values[name] = self.recipe.training[name] = True
        self.is_first = self.args.process_index == 0
        self.first = FirstProcess(self.is_first)
        family = config_class(recipe.model["family"])
        check_tables(self.args, family.has_tokenizer, recipe.model.get("regularize_tables", False))
        if self.view.ranks and self.args.calibration != "none":
            raise ValueError(
                f"training.calibration is {self.args.calibration!r}, accepted: 'none'; logits of impressions rank their ads, and are no log-odds"
            )
        check_metric_name(self.args.metric_for_best_model, self.view.ranks)
        no_trees = self.view.ranks or (
            issubclass(self.view.data_keys, LogDataKeys) and not recipe.data.get("statistics")
        )
        if self.args.boosting_share and no_trees:
            raise self._nothing_for_trees(self.args)
        if self.args.rolling_origin and type(self.view).earlier is InputKind.earlier:
            self.view.earlier(1)  # says why not
        if self.args.lora is not None:
            from lmctr.training.lora import check_lora  # PEFT is loaded where it is used only

            check_lora(self.args.lora, family)

    @staticmethod
    def _nothing_for_trees(args: CTRTrainingArguments) -> ValueError:
        share = "auto" if args.chooses_share else args.boosting_share
        return ValueError(
            f"training.boosting_share is {share}, but the model has nothing that trees could read; give it data.statistics (a "
            "table: fields), or leave boosting_share out"
        )

    def say(self, line: str) -> None:
        """Print a line of progress, from the first process only."""
        if self.is_first and not self.quiet:
            say(line)

    def tell(self, line: str) -> None:
        """Print a line of the result, from the first process only."""
        if self.is_first and not self.quiet:
            print(line, flush=True)

    def wait(self) -> None:
        """Wait until all processes are here; see [`FirstProcess`]."""
        self.first.wait()

    @without_bars()
    def run(self) -> Run:
        """All steps, while no other process writes in the folder."""
        for path in (self.folder.path, *self.folder.path.parents):
            if path.exists() and not path.is_dir():
                raise ValueError(f"output_dir {self.folder.path}: {path} is a file; give a folder")
        try:
            with owned(self.folder.path, "`lmctr train`") if self.is_first else nullcontext():
                return self._run()
        except BaseException as error:
            self.first.failed(error)
            raise

    def _run(self) -> Run:
        began = time.monotonic()
        if self.is_first:
            self._open_folder()
        self.wait()
        if self.folder.finished:
            self.tell(f"{self.folder.path} holds a finished run: nothing to resume")
        else:
            self._build_and_train()
            self.tell(f"run folder: {self.folder.path}  ({time.monotonic() - began:.0f} s)")
        self._close()
        return Run(self.folder)

    def _build_and_train(self) -> None:
        """The trainers live no longer than this, see [`~lmctr.training.processes.leave_process_group`]."""
        processor = self._open_data()
        self._choose_precision(processor)
        trials = [self._trial(count) for count in range(1, (self.args.rolling_origin or 0) + 1)]
        if self.args.refit:
            view, trainer, found = self._refit(self._chosen(processor), trials)
        else:
            view, trainer = self.view, self._trainer(self.view, processor, self.args)
            found = self._fit(view, trainer)
        if trials:
            found["rolling_origin"] = self._best_epoch([*trials, found["evaluations"]])
        self._finish(view, trainer, found)

    @without_bars()
    def evaluations(self, *callbacks: TrainerCallback) -> list[dict[str, Any]]:
        """Train, and return the evaluations on validation, oldest first; nothing else is measured or kept, as a search wants it."""
        try:
            self._open_folder()
            processor = self._open_data()
            self._choose_precision(processor)
            trainer = self._trainer(self.view, processor, self.args)
            for callback in callbacks:
                trainer.add_callback(callback)
            return self._fit(self.view, trainer, ())["evaluations"]
        finally:
            self._close()

    # ---- before training ------------------------------------------------------------------------------------------

    def _open_folder(self) -> None:
        """Claim the folder, and prepare the data unless that was done."""
        self.was_started = self.folder.started and not self.overwrite
        claim(self.folder, self.recipe.resolved(), self.resume, self.overwrite)
        if not self.folder.finished and (not self.folder.prepared or self._several):
            with lost_columns_told(self.args.from_run):
                self._prepare()

    @property
    def _several(self) -> bool:
        return self.args.world_size > 1

    def _prepare(self) -> None:
        """Read the data once, fit the processor once, and write the recipe."""
        self.view.load(self.folder.cache)
        self._loaded = True
        if self.args.recency_half_life is not None and self.view.lacks_times:
            raise no_times(self.args.recency_half_life)
        lines = [*says_of_launch(self.args.world_size), *self.view.check()]
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

    def _open_data(self) -> Any:
        """Open the data in each process. Returns the processor."""
        view = self.view
        if self._several:
            try:
                view.load_shared(self.folder.cache)
            except FileNotFoundError as error:
                if self.is_first:
                    raise
                raise ValueError(
                    f"output_dir {self.folder.path}: process {self.args.process_index} (on {socket.gethostname()}, in {Path.cwd()}) does not find what the "
                    f"first one prepared there ({error}); give a folder that all machines of a launch share"
                ) from error
        elif not self._loaded:  # a resumed run of one process
            view.load(self.folder.cache)
        if self.is_first and self.folder.prepared:
            self.folder.verify(lambda name: not name.startswith("model"))  # it is trained again
            self.folder.unseal()  # what is opened below may be written again
        self.wait()
        # the run folder may hold the second training's processor already
        again = (self.folder.refit / CHOSEN).is_file()
        processor = view.load_processor(self.folder.refit / FIRST if again else self.folder.path)
        view.open(processor, run=RunContext(self.folder.path, self.is_first, self.wait, writes=True))
        if self.is_first:
            description = view.describe(self.say)
            if self.folder.prepared:
                before = read_json(self.folder.path / DATA)
                if unlike := unlike_data(before, description):
                    raise ValueError(
                        f"the data are not those that the run in {self.folder.path} was started with (checksum "
                        f"{before.get(unlike)} before, {description[unlike]} now); restore them, or use --overwrite"
                    )
            else:
                write_json(self.folder.path / DATA, description | {"data_fingerprint": view.data_fingerprint()})
            self.folder.seal()
        self.wait()
        return processor

    def _choose_precision(self, processor: Any) -> None:
        """With `bf16: auto`, the choice: that of the first process, at the first start."""
        if not self.args.chooses_bf16:
            return
        file = self.folder.precision
        if self.is_first and not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, self._try_bf16(processor))
        self.wait()
        chosen = read_json(file)
        self.say(f"bf16 auto: {'bfloat16' if chosen['bf16'] else 'float32'} ({chosen['reason']})")
        self.values |= {"bf16": chosen["bf16"], "use_cpu": self.args.device.type == "cpu"}
        self.args = CTRTrainingArguments(**self.values)

    def _try_bf16(self, processor: Any) -> dict[str, Any]:
        """Whether bfloat16 is faster here, for a model like the one to be trained and the first rows of its data."""
        device = self.args.device
        if self.args.fp16:
            return {"bf16": False, "reason": "fp16 is set"}
        if not has_bf16_units(device):
            return {"bf16": False, "reason": f"the {device.type} does not compute in bfloat16"}
        if self._several and self.args.shard_tables:  # this process alone would hold whole tables
            return {"bf16": False, "reason": "a trial does not share tables (shard_tables); say bf16: true to have it"}
        set_seed(self.args.seed)
        samples = self.view.training_dataset()
        rows = [samples[row] for row in range(min(self.args.per_device_train_batch_size, len(samples)))]
        batch = {key: value.to(device) for key, value in self.view.collator(True)(rows).items()}
        gain = bf16_gain(self.view.model(processor).to(device).train(), batch)
        reason = f"a trial's steps were {gain:.2f} times as fast in bfloat16; {LEAST_GAIN} are asked for"
        return {"bf16": gain >= LEAST_GAIN, "gain": gain, "reason": reason}

    def _trainer(self, view: InputKind, processor: Any, args: CTRTrainingArguments) -> CTRTrainer:
        """A trainer with a new model, the same for the same seed."""
        if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and args.device.type == "cpu":
            raise ValueError(
                "the launcher asks for FSDP, but the training is on the CPU, where accelerate shards nothing and each process would hold "
                "the whole model; launch with recipes/accelerate/cpu2.yaml, or train on GPUs"
            )
        if line := says_of_stages(args, len(view.training_dataset())):
            self.say(line)
        set_seed(args.seed)
        with new_tables(args):
            model = view.model(processor)
        start = view.carried(model, processor)
        self._start(view, model, args, start is not None)
        if args.lora is not None:
            from lmctr.training.lora import add_lora

            model = add_lora(model, args.lora)
        trainer = CTRTrainer(
            model=model,
            args=args,
            data_collator=view.collator(args.bf16 or args.fp16),
            train_dataset=view.training_dataset(),
            eval_dataset=None if args.eval_strategy == "no" else view.dataset("validation"),
            processing_class=processor,
        )
        if args.lora is not None and trainer.is_fsdp_enabled:
            raise ValueError(
                "training.lora is set, but the launcher shards the model (FSDP), so that no process could merge the adapters; "
                "launch with recipes/accelerate/ddp.yaml, which suits the little that LoRA trains"
            )
        if start is not None:
            if trainer.is_fsdp_enabled:
                raise ValueError(
                    "training.from_run is set, but the launcher shards the model (FSDP); launch with recipes/accelerate/ddp.yaml"
                )
            # told when it is chosen
            moved = "" if args.chooses_share else view.share_moved(plain_model(trainer.model))
            told = "; ".join(filter(None, (view.extended, moved)))
            self.say(f"going on from {args.from_run}{': ' if told else ''}{told}")
            if args.from_optimizer:
                trainer.start_optimizer = lambda optimizer: self.say(start(optimizer))
        trainer.remove_callback(PrinterCallback)
        for callback in trainer.callback_handler.callbacks:  # beside the checkpoints, which may be deleted
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(Path(args.output_dir).parent / "tensorboard")
        trainer.add_callback(_FirstStep(self.folder))
        total = count_parameters(model)
        trained = total - sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
        epochs = f"{args.stage1_epochs} + " * (args.stage1_epochs > 0) + str(args.stage2_epochs)
        many = f"{epochs} epoch{'s' * (epochs != '1')}"
        length = many if args.max_steps <= 0 else f"{args.max_steps:,} step{'s' * (args.max_steps > 1)}"
        unit = "samples" if view.training_dataset().rows.ndim == 1 else "rows of samples"
        self.say(
            f"{view.describe_model(model)}: {total:,} parameters, {trained:,} trained; "
            f"{args.total_train_batch_size} {unit} per step, {length}, "
            f"{args.world_size} process{'es' if self._several else ''} on {args.device.type}"
        )
        return trainer

    def _start(self, view: InputKind, model: Any, args: CTRTrainingArguments, goes_on: bool) -> None:
        """Let a new model start as the arguments say; one that goes on from a run keeps what that has, its trees with the share of these arguments."""
        if args.boosting_share and model.trees_beside() is None:
            raise self._nothing_for_trees(args)
        if args.linear_start == "logistic" and not goes_on and model.linear_path() is not None:
            start_linear(model, view.linear_samples(), args.recency_half_life)
        if model.config.boosted_trees:
            if args.boosting_share or self.args.chooses_share:  # 0 only where validation chose it
                set_share(model, args.boosting_share)
        elif args.boosting_share and not keep_trees(model, args.output_dir):
            add_trees(model, view.tree_samples(model), args.recency_half_life, args.seed, args.boosting_share)

    # ---- training and after ---------------------------------------------------------------------------------------

    def _fit(
        self,
        view: InputKind,
        trainer: CTRTrainer,
        parts: tuple[str, ...] = PARTS[1:],
        calibration: list[float] | None = None,
        last: int | None = None,
    ) -> dict[str, Any]:
        """Train, from the newest checkpoint on, to the end or the `last` step, calibrate, by the validation part or as told, and measure. Returns
        what `metrics.json` says of it."""
        checkpoint, skipped = newest_complete_checkpoint(trainer.args.output_dir)
        for message in skipped:
            self.tell(f"skipped: {message}")
        if checkpoint is not None or (self.resume and self.was_started):
            self.say(f"resuming from {checkpoint}" if checkpoint else "no complete checkpoint: starting from step 0")
        if last is not None:
            trainer.add_callback(StopAt(last))
        metrics, found = {}, {}
        with ProgressLines(lambda: trainer.stages.stage, self.say, last) as lines:
            trainer.add_callback(lines)
            # Processes of one training would not stop at the same step.
            alone = trainer.args.save_strategy != "no" and trainer.args.world_size == 1
            with HeldInterrupt(_HELD) if alone else nullcontext() as held:
                if held is not None:
                    trainer.add_callback(EndAtInterrupt(held))
                outcome = trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            if held is not None and held.came:  # behind the last checkpoint
                raise held.interrupt
            if self.is_first:
                self.folder.unseal()  # until the last file of the run is written
            if trainer.args.lora is not None and parts:
                self._merge(trainer)
            if trainer.args.chooses_share and parts and plain_model(trainer.model).config.boosted_trees:
                found["boosting_share"] = choose_share(trainer, view.dataset("validation"))
                moved = view.share_moved(plain_model(trainer.model))
                which = {0.0: " (the network alone)", 1.0: " (the trees alone)"}.get(found["boosting_share"], "")
                told = f"boosting_share auto: {found['boosting_share']:g}{which}, by the log loss on validation"
                self.say(told + (f"; {trainer.args.from_run} had another: {moved}" if moved else ""))
            if calibration is not None:
                plain_model(trainer.model).config.calibration = calibration
            elif trainer.args.calibration != "none" and parts:
                added = calibrate(trainer, view.dataset("validation"))
                found["calibration"] = plain_model(trainer.model).config.calibration
                self.say(
                    f"calibration: {', '.join(f'{own:+.3f}' for own in added)} on the logits, by the clicks of validation"
                )
            for name in parts:
                dataset, lines.part = view.dataset(name), name
                output = trainer.predict(dataset, metric_key_prefix=name)
                metrics[name] = plain_metrics(output.metrics, name, view.tasks)
                if lacking := words_on_undefined(metrics[name], view.tasks, dataset.groups is not None):
                    self.say(f"{name}: {lacking}")
                if self.is_first:
                    write_predictions(self._predictions(name), view, name, output)
        state = trainer.state
        kept = state.best_global_step if trainer.args.load_best_model_at_end else None  # else the last weights stay
        return {
            **found,
            "split metrics": metrics,
            "training_samples": {"model": view.num_samples("train")},
            "best_step": kept or state.global_step,
            "steps": state.global_step,
            "planned_steps": state.max_steps,
            "epochs": state.epoch,
            "samples_per_second": outcome.metrics.get("train_samples_per_second"),
            "train_seconds": outcome.metrics.get("train_runtime"),
            "evaluations": [
                {
                    "step": entry["step"],
                    "epoch": entry["epoch"],
                    **plain_metrics(entry, "eval"),
                    **self._chosen_by(entry),
                }
                for entry in state.log_history
                if "eval_auc" in entry or "eval_revenue_ratio" in entry
            ],
            "losses": _thinned([entry for entry in state.log_history if "loss" in entry]),
        }

    def _merge(self, trainer: CTRTrainer) -> None:
        """Keep the adapters in a folder of their own and add them to the weights, so that what is measured is the model that is saved: in
        half precision the sum of two products differs from the product with the sum."""
        from lmctr.training.lora import merge_lora, save_adapter

        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        if self.is_first:
            save_adapter(model, self.folder.path / "adapter", self.args.from_run)
        model = merge_lora(model)
        trainer.model = trainer.model_wrapped = trainer.accelerator.prepare_model(model, evaluation_mode=True)

    @property
    def _metric(self) -> str:
        return self.args.metric_for_best_model.removeprefix("eval_")

    def _chosen_by(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The metric of an evaluation that decides, which may be a further task's, or the loss."""
        found = entry.get(f"eval_{self._metric}") if self.args.metric_for_best_model else None
        return {} if found is None else {self._metric: found}

    def _chosen(self, processor: Any) -> dict[str, Any]:
        """What the training that is measured on validation found, from an earlier try where it was completed there."""
        file = self.folder.refit / CHOSEN
        if not file.is_file():
            found = self._fit(self.view, self._trainer(self.view, processor, self.args), PARTS[1:2])
            if self.is_first:
                processor.save_pretrained(self.folder.refit / FIRST)
                write_json(file, found)
        self.wait()
        return read_json(file)

    def _trial(self, count: int) -> list[dict[str, Any]]:
        """The evaluations of a training that ends `count` validation parts earlier, from an earlier try where it was completed there."""
        folder = self.folder.refit / f"trial-{count}"
        file = folder / CHOSEN
        if not file.is_file():
            view = self.view.earlier(count)
            if self.is_first:
                view.make_processor().save_pretrained(folder)
            self.wait()
            processor = view.load_processor(folder)
            view.open(processor, PARTS[:2], RunContext(folder, self.is_first, self.wait, writes=True))
            values = {"save_strategy": "no", "load_best_model_at_end": False, "early_stopping_patience": None}
            values |= {"effective_rank_samples": None, "output_dir": str(folder)}
            samples = [view.num_samples(part) for part in PARTS[:2]]
            self.say("trial {}: {:,} training samples, measured on the {:,} after them".format(count, *samples))
            trainer = self._trainer(view, processor, CTRTrainingArguments(**{**self.values, **values}))
            found = self._fit(view, trainer, ())
            if self.is_first:
                write_json(file, found)
        self.wait()
        return read_json(file)["evaluations"]

    def _best_epoch(self, trials: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """The epoch with the best mean of the validation metric over trainings, among those that all of them had."""
        name = self._metric
        sign = 1.0 if self.args.greater_is_better else -1.0
        counted = [[entry for entry in own if entry["epoch"] > self.args.stage1_epochs] for own in trials]
        values = [[float(entry[name]) for entry in own] for own in counted]
        means = [sum(column) / len(column) for column in zip(*values)]
        if not means:
            raise ValueError(f"training.rolling_origin: no epoch of stage 2 was measured by {name} in every training")
        best = [max(range(len(own)), key=lambda place: sign * own[place]) for own in (means, *values)]
        epochs = [place + self.args.stage1_epochs + 1 for place in best]
        shown = ", ".join(map(str, epochs[1:]))
        self.say(f"best epoch by mean {name} over {len(values)} cuts: {epochs[0]} (of each cut: {shown})")
        return {"metric": name, "values": values, "means": means, "best_epoch": epochs[0], "best_epochs": epochs[1:]}

    def _refit(
        self, chosen: dict[str, Any], trials: list[list[dict[str, Any]]]
    ) -> tuple[InputKind, CTRTrainer, dict[str, Any]]:
        """Train anew on training and validation: the same share of the schedule as up to the best step on validation, or up to the best
        epoch of all trials."""
        folder, shared = self.folder.refit, self.folder.cache / "refit"
        if not self.is_first:  # the first one prepares
            self.wait()
        view = self.view.with_validation(shared, self.is_first)
        if self.is_first:
            view.make_processor().save_pretrained(folder)
            self.wait()
        processor = view.load_processor(folder)
        view.open(processor, ("train", "test"), RunContext(folder, self.is_first, self.wait, writes=True))
        before, rows = len(self.view.training_dataset()), len(view.training_dataset())
        values = {**self.values, **_WITHOUT_EVALUATION, "output_dir": str(folder / "checkpoints")}
        if self.args.max_steps > 0:
            values["max_steps"] = round(self.args.max_steps * rows / before)
        if self.args.save_strategy == "best":
            values["save_strategy"] = "epoch"
        if self.args.chooses_share:
            values["boosting_share"] = chosen.get("boosting_share", self.args.boosting_share)
        args = CTRTrainingArguments(**values)
        trainer = self._trainer(view, processor, args)
        planned = args.max_steps
        if planned <= 0:
            planned = -(-rows // args.total_train_batch_size) * args.num_train_epochs
        share = chosen["best_step"] / chosen["planned_steps"]
        if trials:
            share = self._best_epoch([*trials, chosen["evaluations"]])["best_epoch"] / self.args.num_train_epochs
        last = max(round(planned * share), 1)
        samples = view.num_samples("train")
        self.say(f"training again on training and validation, {samples:,} samples: {last:,} of {planned:,} steps")
        found = self._fit(view, trainer, ("test",), chosen.get("calibration"), last)
        if self.is_first:
            processor.save_pretrained(self.folder.path)
            if trainer.holds_whole_model and self.args.save_strategy != "no":
                file = self.folder.refit_optimizer
                file.parent.mkdir(parents=True, exist_ok=True)
                torch.save(trainer.optimizer.state_dict(), file)
            if (folder / "retriever").is_dir():
                shutil.copytree(folder / "retriever", self.folder.retriever, dirs_exist_ok=True)
        split_metrics = {"validation": chosen["split metrics"]["validation"], **found["split metrics"]}
        about = {name: chosen[name] for name in ("best_step", "steps", "training_samples", "train_seconds")}
        found |= {"split metrics": split_metrics, "evaluations": chosen["evaluations"], "before_refit": about}
        found |= {name: chosen[name] for name in ("boosting_share", "calibration") if name in chosen}
        return view, trainer, found

    def _finish(self, view: InputKind, trainer: CTRTrainer, found: dict[str, Any]) -> None:
        """Write the run's files; metrics.json comes last."""
        self._save_model(trainer, view.dataset("test"))
        if not self.is_first:
            return
        baselines = {}
        if self.recipe.data["baselines"]:
            baselines, found["training_samples"]["baselines"] = self.view.baselines(self.args.seed, self.args.refit)
        result = {
            **found,
            "baselines": baselines,
            "best_auc": view.best_auc,
            "best_auc_reads": view.behaviors_read,
            "seed": self.args.seed,
            "num_processes": self.args.world_size,
            **({} if not trainer.holds_whole_model else view.cost(trainer.accelerator.unwrap_model(trainer.model))),
            "versions": versions(*family_of(self.recipe.model["family"]).packages),
            "machine": machine_line(self.args.device.type),
            "command": self.command,
            "commit": self.commit,
        }
        wants_trees = not self.args.boosting_share and plain_model(trainer.model).trees_beside() is not None
        result["verdict"] = verdict(result, self.recipe.data, view.log is not None, wants_trees, self._test_against)
        options = {"with_baseline": bool(baselines), "refit": self.args.refit}
        sliced = []
        for part in found["split metrics"]:
            scores = pq.read_table(for_arrow(self._predictions(part)))
            rows = self.view.slices(
                part, scores["event"].to_numpy(), scores["logit"].to_numpy(), self.args.seed, **options
            )
            sliced += [{"split": part} | row for row in rows]
        if sliced:
            write_csv(self.folder.path / SLICES, sliced)
        self.tell(results_table(result))
        text = json_text(result)
        self.folder.seal({METRICS: text})
        write_text(self.folder.path / METRICS, text)

    def _test_against(self, baseline: str) -> PairedTest | None:
        """Of the model's AUC on the test part; the baselines have been measured."""
        found = self.view.baseline_scores(baseline, "test")
        return None if found is None else difference_test(pq.read_table(for_arrow(self._predictions("test"))), *found)

    def _predictions(self, part: str) -> Path:
        """Where the model's predictions for a part are kept."""
        return self.folder.path / "predictions" / f"{part}.parquet"

    def _save_model(self, trainer: Any, samples: Any) -> None:
        """Write model and processor where `from_pretrained` reads them.

        A few rows of `samples` and the model's logits for them stay beside it, for `lmctr push` to compare with.
        """
        trainer.save_model(str(self.folder.path))
        if not self.is_first:
            return
        # without the wrapper of mixed precision: who loads the folder computes in the precision of its weights
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        self.view.save_beside(self.folder.path, trainer.processing_class)
        if trainer.holds_whole_model:
            model.save_beside(self.folder.path)
            rows = [samples[row] for row in range(min(_REFERENCE_ROWS, len(samples)))]
            batch = {key: value for key, value in trainer.data_collator(rows).items() if key != "labels"}
            write_reference(self.folder.path, model, batch)  # also of rows whose labels are not known

    def _close(self) -> None:
        self.wait()
        if self.is_first:
            for folder in (self.folder.cache, self.folder.refit):
                shutil.rmtree(folder, ignore_errors=True)
        leave_process_group()


def _thinned(entries: list[dict[str, Any]], most: int = 200) -> list[dict[str, float]]:
    """Step and training loss of log entries; of more than `most`, the last step and the mean loss of as many neighbours as it takes."""
    size = max(-(-len(entries) // most), 1)
    parts = (entries[some] for some in blocks(len(entries), size))
    return [{"step": part[-1]["step"], "loss": sum(entry["loss"] for entry in part) / len(part)} for part in parts]


def results_table(result: dict[str, Any]) -> str:
    """The model and the baselines in one table per part, the best reachable AUC where it is known, and the verdict."""
    lines = []
    for part, values in result["split metrics"].items():
        rows = rows_by_task("model", values)
        rows |= {name.replace("_", " "): parts[part] for name, parts in result["baselines"].items() if part in parts}
        lines += ["", part, format_metrics(rows)]
    fitted = result["training_samples"]
    if "baselines" in fitted:
        lines += ["", f"training samples: model {fitted['model']:,}, baselines {fitted['baselines']:,}"]
    if "before_refit" in result:
        lines += ["", "trained again on training and validation; the metrics of validation are those from before"]
    best = result.get("best_auc")
    if best is not None:
        reached, reads = result["split metrics"]["test"]["auc"], result.get("best_auc_reads")
        way = ", below the 0.5 of a constant" if reached < 0.5 else ""
        if reached >= 0.5 and best > 0.5:
            way = f", {(reached - 0.5) / (best - 0.5):.0%} of the way from 0.5"
        reader = "" if reads is None else f" for a reader of the last {reads} behaviours"
        lines += [
            "",
            f"best reachable test AUC{reader} {best:.4f}; the model reached {reached:.4f}{way}",
        ]
    if result.get("verdict"):
        lines += ["", result["verdict"]]
    return "\n".join(lines)
