"""`lmctr evaluate RUN --split test`: metrics of a trained run on one part of its data, or of other data.

Several runs, or `--compare`: their stored scores side by side (`lmctr.studies.compare`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lmctr.runs.folder import RECIPE, RunFolder, open_run, write_predictions
from lmctr.runs.inputs.base import COMMON_DATA_KEYS
from lmctr.utils.files import write_json

ACCEPTS_OVERRIDES = True
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


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "evaluate",
        help="measure a trained run",
        description="Measure a trained run on a part of its data: exact AUC, logloss, grouped AUC, NE and ECE. Several "
        "runs (seeds of one recipe): mean and standard deviation of what their stored scores give, without loading "
        "model or data; with --compare also paired tests against other runs of the same seeds.",
        epilog=f"Overrides, for one run: --data.KEY for {', '.join(COMMON_DATA_KEYS)} and what else only says where data lie; --training.KEY for {', '.join(_EVALUATION_KEYS)}. "
        "Seeds: for s in 0 1 2; do lmctr train RECIPE --training.seed $s --output_dir runs/a-$s; done; likewise runs/b-$s "
        "with another value; then lmctr evaluate runs/a-* --compare runs/b-* --output comparison.md.",
        allow_abbrev=False,
    )
    parser.add_argument("run", nargs="+", metavar="RUN", help="run folder of lmctr train")
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"), help="default: test")
    parser.add_argument(
        "--compare", nargs="+", default=[], metavar="RUN", help="runs of the same seeds to test against"
    )
    parser.add_argument("--resamples", type=int, metavar="N", help="draws of users per bootstrap (default: 1000)")
    parser.add_argument("--output", help="write the result to this file: .json; for several runs also .md")
    parser.add_argument("--predictions", help="write the scores to this Parquet file (one run)")


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    if len(args.run) > 1 or args.compare:
        return _stored(args)
    if args.resamples is not None:
        raise ValueError("--resamples belongs to --compare")
    folder = open_run(args.run[0])
    measured = evaluate_run(folder, args.split, args.overrides, args.predictions)
    if measured is None:
        return 0
    from lmctr.evaluation.evaluator import format_metrics

    print(format_metrics({f"{args.split}": measured}))
    if args.output:
        write_json(args.output, {"run": str(folder.path), "split": args.split, "metrics": measured})
    return 0


def _stored(args: argparse.Namespace) -> int:
    """Several runs: what their stored scores say."""
    from lmctr.studies.compare import compare_runs, write_comparison

    if args.overrides:
        raise ValueError(
            f"--{args.overrides[0][0]}: several runs are compared by their stored scores, nothing is run anew"
        )
    if args.predictions:
        raise ValueError("--predictions writes the scores of one run; several runs keep theirs in RUN/predictions")
    if args.resamples is not None and not args.compare:
        raise ValueError("--resamples belongs to --compare")
    if args.output and Path(args.output).suffix not in (".md", ".json"):
        raise ValueError(f"--output {args.output}: give a file that ends in .md or .json")
    comparison = compare_runs(args.run, args.compare, args.split, 1000 if args.resamples is None else args.resamples)
    print(comparison.text())
    if args.output:
        write_comparison(comparison, args.output, args.command)
    return 0


def evaluate_run(
    folder: RunFolder, split: str, overrides: list[tuple[str, str]], predictions: str | None = None
) -> dict[str, float] | None:
    """Metrics of one part; None in processes other than the first.

    Args:
        folder: a finished run.
        split: train, validation or test.
        overrides: (dotted key, value text) pairs over the run's own recipe.
        predictions: Parquet file for the scores.
    """
    import tempfile

    import transformers

    import lmctr.auto  # noqa: F401 (registers the model types)
    from lmctr.runs.inputs import view_of
    from lmctr.runs.loading import load_run
    from lmctr.runs.recipe import load_recipe
    from lmctr.runs.train import plain_metrics
    from lmctr.training.arguments import CTRTrainingArguments
    from lmctr.training.trainer import CTRTrainer

    transformers.utils.logging.disable_progress_bar()
    view = view_of(load_recipe(folder.path / RECIPE))
    check_overrides(overrides, view.free_data_keys)
    recipe = load_recipe(folder.path / RECIPE, overrides)
    view = view_of(recipe)
    with tempfile.TemporaryDirectory() as scratch:
        values = {key: recipe.training[key] for key in _EVALUATION_KEYS if key in recipe.training}
        arguments = CTRTrainingArguments(
            output_dir=scratch, eval_strategy="no", save_strategy="no", disable_tqdm=True, **values
        )
        view.load(Path(scratch))
        model, processor = load_run(folder.path)
        view.open(processor, parts=(split,), folder=folder.path)
        trainer = CTRTrainer(
            model=model,
            args=arguments,
            data_collator=view.collator(arguments.bf16 or arguments.fp16),
            processing_class=processor,
        )
        output = trainer.predict(view.dataset(split), metric_key_prefix=split)
        if arguments.process_index != 0:
            return None
        if predictions:
            write_predictions(
                Path(predictions), view.identify(split), output.label_ids, output.predictions, view.tasks
            )
        return plain_metrics(output.metrics, split, view.tasks)


def check_overrides(overrides: list[tuple[str, str]], free_data_keys: tuple[str, ...]) -> None:
    """Only what leaves the model and its inputs as they were trained may be overridden.

    Raises:
        ValueError: an override of another key.
    """
    for key, _ in overrides:
        group, name = key.split(".")[:2]
        if group == "model" or (group == "data" and name not in free_data_keys):
            free = ", data.".join(free_data_keys)
            raise ValueError(f"--{key}: the run was trained with its own value; free are data.{free}")
        if group == "training" and name not in _EVALUATION_KEYS:
            raise ValueError(
                f"--{key} has no effect on a measurement; free are training.{', '.join(_EVALUATION_KEYS)}"
            )
