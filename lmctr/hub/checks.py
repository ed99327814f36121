"""Is a run folder fit to be shared? It is loaded anew and compared with what the run wrote down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoProcessor

from lmctr.configuration_utils import CTRConfig
from lmctr.evaluation.evaluator import METRIC_NAMES, evaluate_predictions
from lmctr.hub.examples import example_batch
from lmctr.hub.reference import REFERENCE_FILE, compare_with_reference
from lmctr.hub.run_folder import RunFolder, open_run

__all__ = ["RunReport", "split_metrics", "validate_run"]

_SPLIT_METRICS = "split metrics"
_METRIC_TOLERANCE = 1e-6
_SHARED_KEYS = ("sink_kind", "sink_signal", "sink_order", "num_sink_buckets", "feedback")


@dataclass(frozen=True)
class RunReport:
    """What `validate_run` found: `folder`, and one line per check that was made in `lines`."""

    folder: RunFolder
    lines: tuple[str, ...]


def validate_run(run_dir: str | Path) -> RunReport:
    """Check that a run folder is complete, that it loads, and that it gives the logits and metrics of the run.

    - the files are there, none is cut off, weights are safetensors and finite, no pickle file lies beside them;
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
    folder = open_run(run_dir)
    _check_model_type(folder)
    _check_agreement(folder)
    model, processor = _load_model(folder), _load_processor(folder)
    total = sum(folder.num_parameters.values())
    lines = [
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


def _check_model_type(folder: RunFolder) -> None:
    import lmctr  # registers the families with the Auto classes

    families = sorted(_model_types(CTRConfig))
    if folder.model_type not in families:
        raise ValueError(
            f"{folder.path / 'config.json'}: model_type is {folder.model_type!r}, which is no CTR model of lmctr "
            f"{lmctr.__version__}; its models are {', '.join(families)}"
        )
    try:
        AutoConfig.from_pretrained(folder.path)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder.path / 'config.json'} is no valid configuration: {error}") from error


def _model_types(base: type[CTRConfig]) -> set[str]:
    """Model types of all configurations below `base`, those of other packages included."""
    found = {base.model_type} - {""}
    return found.union(*(_model_types(kind) for kind in base.__subclasses__()))


def _check_agreement(folder: RunFolder) -> None:
    """What the configuration and the processor both state must be the same: the model would read other buckets or texts."""
    for key in _SHARED_KEYS:
        if key in folder.config and key in folder.processor and folder.config[key] != folder.processor[key]:
            raise ValueError(
                f"{folder.path}: {key} is {folder.config[key]!r} in config.json and {folder.processor[key]!r} in the "
                "processor's file; they come from different runs"
            )


def _load_model(folder: RunFolder) -> torch.nn.Module:
    import lmctr

    try:
        model, info = lmctr.AutoModelForCTR.from_pretrained(folder.path, output_loading_info=True)
    except Exception as error:  # whatever a damaged file leads to, the user needs the folder's name
        raise ValueError(f"{folder.path}: AutoModelForCTR cannot load the model: {error}") from error
    for key, what in (
        ("missing_keys", "lacks weights of the model"),
        ("unexpected_keys", "holds weights that the model does not have"),
        ("mismatched_keys", "holds weights of another shape"),
    ):
        names = sorted(str(name) for name in info.get(key) or ())
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise ValueError(
                f"{folder.path}: {', '.join(folder.weight_files)} {what}: {', '.join(names[:5])}{more}; "
                "config.json and the weights do not belong together"
            )
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"{folder.path}: the weight {name} holds NaN or infinite values; the training diverged")
    return model.eval()


def _load_processor(folder: RunFolder) -> Any:
    try:
        return AutoProcessor.from_pretrained(folder.path)
    except Exception as error:
        raise ValueError(
            f"{folder.path}: AutoProcessor cannot load the processor: {error}; save it with processor.save_pretrained"
        ) from error


def _compare_two_loads(folder: RunFolder, model: torch.nn.Module, processor: Any) -> str:
    logits = []
    for loaded_model, loaded_processor in ((model, processor), (_load_model(folder), _load_processor(folder))):
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
    import pyarrow.parquet as pq

    metrics = folder.metrics()
    lines = []
    for split, written in split_metrics(metrics).items() if metrics else ():
        path = folder.path / "predictions" / f"{split}.parquet"
        if not path.is_file():
            continue
        try:
            table = pq.read_table(path)
            columns = {name: table[name].to_numpy() for name in ("label", "logit", "user")}
        except (OSError, KeyError, ValueError) as error:  # pyarrow's own errors derive from these
            raise ValueError(f"{path} cannot be read ({error}); evaluate the run again") from error
        weight = table["weight"].to_numpy() if "weight" in table.column_names else None
        again = evaluate_predictions(columns["label"], columns["logit"], columns["user"], weight)
        for name in ("num_samples", *METRIC_NAMES):
            if name not in written or (name == "grouped_auc" and name not in again):
                continue
            if abs(again[name] - written[name]) > _METRIC_TOLERANCE * max(1.0, abs(again[name])):
                raise ValueError(
                    f"{folder.path / 'metrics.json'}: {split} {name} is {written[name]}, but {path} gives {again[name]}; "
                    "they come from different evaluations: run `lmctr evaluate` again"
                )
        lines.append(f"{split} metrics are those of predictions/{split}.parquet")
    return lines


def split_metrics(metrics: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The metrics dicts of a `metrics.json` by split.

    Raises:
        ValueError: the file has no such part.
    """
    splits = metrics.get(_SPLIT_METRICS)
    if not isinstance(splits, dict) or not all(isinstance(values, dict) for values in splits.values()):
        raise ValueError(
            f"metrics.json has no {_SPLIT_METRICS!r} with a dict of metrics per split; it holds {', '.join(metrics)}"
        )
    return splits
