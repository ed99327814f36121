"""Is a run folder fit to be shared? It is loaded anew and compared with what the run wrote down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lmctr.evaluation.comparison import read_predictions
from lmctr.evaluation.evaluator import METRIC_NAMES, RANKING_METRIC_NAMES
from lmctr.runs.examples import example_batch
from lmctr.runs.folder import MANIFEST, METRICS, RunFolder, open_run
from lmctr.runs.loading import load_folder
from lmctr.runs.reference import REFERENCE_FILE, compare_with_reference
from lmctr.utils.progress import step

_METRIC_TOLERANCE = 1e-6


@dataclass(frozen=True)
class RunReport:
    """What `validate_run` found: `folder`, and one line per check that was made in `lines`."""

    folder: RunFolder
    lines: tuple[str, ...]


@step("checking the run")
def validate_run(run_dir: str | Path) -> RunReport:
    """Check that a run folder is complete, that it loads, and that it gives the logits and metrics of the run.

    - the files are there, none is cut off or another than the run wrote (where it kept checksums), weights are safetensors and finite, no pickle file lies beside them;
    - `AutoModelForCTR` and `AutoProcessor` load the folder, without a missing, surplus or misshapen tensor;
    - `config.json` and the processor agree on what both state;
    - the loaded model gives the run's own logits on its reference rows (`write_reference`); in a run without them,
      two independent loads agree on example inputs that the loaded processor makes;
    - metrics computed again from `predictions/<split>.parquet` are those of `metrics.json`, where both are there.

    Returns:
        The folder, and a line for each check.

    Raises:
        FileNotFoundError, ValueError: what is wrong, in which file, and what to do about it.
    """
    folder = open_run(run_dir, "model", refuse_pickles=True)
    sealed = folder.verify()
    model, processor = load_folder(folder)
    total = sum(folder.num_parameters.values())
    lines = [
        f"no {MANIFEST}: no file was compared with a checksum"
        if sealed is None
        else f"{sealed} files have the checksums of {MANIFEST}",
        f"{', '.join(folder.weight_files)}: {total:,} parameters in safetensors, all finite",
        f"AutoModelForCTR loads {type(model).__name__}, AutoProcessor loads {type(processor).__name__}",
    ]
    if (folder.path / REFERENCE_FILE).is_file():
        rows, difference = compare_with_reference(folder.path, model)
        lines.append(f"logits of {rows} reference rows are the run's own (largest difference {difference:.2g})")
    else:
        lines.append(_compare_two_loads(folder, model, processor))
    lines += _check_metrics(folder)
    return RunReport(folder=folder, lines=tuple(lines))


def _compare_two_loads(folder: RunFolder, model: torch.nn.Module, processor: Any) -> str:
    logits = []
    for loaded_model, loaded_processor in ((model, processor), load_folder(folder)):
        with torch.no_grad():
            logits.append(loaded_model(**example_batch(folder, loaded_processor)).logits.float())
    if not torch.isfinite(logits[0]).all():
        raise ValueError(f"{folder.path}: the model gives NaN or infinite logits on example inputs")
    if not torch.equal(*logits):
        raise ValueError(
            f"{folder.path}: two loads of the same folder give different logits (largest difference "
            f"{float((logits[0] - logits[1]).abs().max()):.3g}); some weights are not in the files"
        )
    return f"two independent loads give equal logits (the run keeps no {REFERENCE_FILE} to compare with)"


def _check_metrics(folder: RunFolder) -> list[str]:
    metrics = folder.metrics()
    lines = []
    for split, written in split_metrics(folder, metrics).items() if metrics else ():
        place = f"predictions/{split}.parquet"
        if not (folder.path / place).is_file():
            continue
        try:
            again = read_predictions(folder.path, split).metrics
        except ValueError as error:
            raise ValueError(f"{place} cannot be read: {error}; evaluate the run again") from error
        for name in ("num_samples", *METRIC_NAMES, *RANKING_METRIC_NAMES):
            if name not in written or name not in again:
                continue
            if abs(again[name] - written[name]) > _METRIC_TOLERANCE * max(1.0, abs(again[name])):
                raise ValueError(
                    f"{folder.path / METRICS}: {split} {name} is {written[name]}, but {place} gives {again[name]}; "
                    "they come from different evaluations: run `lmctr evaluate` again"
                )
        lines.append(f"{split} metrics are those of {place}")
    return lines


def split_metrics(folder: RunFolder, metrics: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The metrics dicts of a folder's `metrics.json` by split.

    Raises:
        ValueError: the file has no such part.
    """
    splits = metrics.get("split metrics")
    if not isinstance(splits, dict) or not all(isinstance(values, dict) for values in splits.values()):
        raise ValueError(
            f"{folder.path / METRICS} has no 'split metrics' with a dict of metrics per split; it holds {', '.join(metrics)}"
        )
    return splits
