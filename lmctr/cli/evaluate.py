"""`lmctr evaluate RUN --split test`: metrics of a trained run on one part of its data, or of other data.

Several runs, or `--compare`: their stored scores side by side (`lmctr.studies.compare`).
"""

from __future__ import annotations

from pathlib import Path

from lmctr.cli.options import Action
from lmctr.runs.options import EvaluateOptions

EVALUATE = Action(
    "evaluate",
    "measure a trained run",
    "lmctr.runs.options:EvaluateOptions",
    "lmctr.cli.evaluate:evaluate",
    epilog="Overrides, for one run: --data.KEY for name, path, options, split, fractions, seed, max_train_samples, "
    "max_eval_samples and what else only says where data lie; --training.KEY for batch size of evaluation, device, precision, "
    "loader and seed. Seeds: for s in 0 1 2; do lmctr train RECIPE --training.seed $s --output-dir runs/a-$s; done; likewise "
    "runs/b-$s with another value; then lmctr evaluate runs/a-* --compare runs/b-* --output comparison.md.",
    takes_overrides=True,
)
add_parser, run = EVALUATE.add_parser, EVALUATE.run


def evaluate(options: EvaluateOptions) -> int:
    """One run is measured, several are compared by their stored scores."""
    if options.resamples is not None and not options.compare:
        raise ValueError("--resamples belongs to --compare")
    if len(options.run) > 1 or options.compare:
        return _compare(options)
    if options.label is not None:
        raise ValueError("--label belongs to several runs, or --compare; one run is measured on all of its labels")
    from lmctr.runs.evaluation import run_evaluate

    return run_evaluate(options)


def _compare(options: EvaluateOptions) -> int:
    from lmctr.studies.compare import compare_runs, write_comparison

    if options.overrides:
        raise ValueError(
            f"--{options.overrides[0][0]}: several runs are compared by their stored scores, nothing is run anew"
        )
    if options.slices:
        raise ValueError("--slices measures one run; give one, without --compare")
    if options.frozen_histories:
        raise ValueError("--frozen-histories measures one run anew; give one, without --compare")
    if options.predictions:
        raise ValueError("--predictions writes the scores of one run; several runs keep theirs in RUN/predictions")
    if options.output and Path(options.output).suffix not in (".md", ".json"):
        raise ValueError(f"--output {options.output}: give a file that ends in .md or .json")
    comparison = compare_runs(options.run, options.compare, options.split, options.resamples or 1000, options.label)
    print(comparison.text())
    if options.output:
        write_comparison(comparison, options.output, options.command)
    return 0
