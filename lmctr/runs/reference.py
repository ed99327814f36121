"""Reference rows: a few inputs and the logits that the trained model gave for them, kept in the run folder.

After a reload the same inputs must give the same logits; `lmctr push` compares before it shares anything. The rows are token
ids of real samples, so the file stays in the run folder and is not shared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from lmctr.models.common.base import IGNORED_LABEL, evaluation_mode
from lmctr.utils.tensors import save_tensors

REFERENCE_FILE = "reference.safetensors"
_NOT_INPUTS = ("labels", "sample_weight")
_TOLERANCE = {"float32": 1e-4, "float64": 1e-6, "bfloat16": 5e-2, "float16": 1e-2}
_OTHER_DEVICE = 1e-3  # reductions in another order, TF32


def write_reference(
    run_dir: str | Path, model: torch.nn.Module, batch: Mapping[str, torch.Tensor], num_rows: int = 8
) -> Path:
    """Keep inputs and logits of a batch's first rows as `RUN/reference.safetensors`.

    Args:
        run_dir: the run folder; it must exist.
        model: the model that was saved there, still in memory; it is run in eval mode, without autocast, and put back in the
            mode it was in.
        batch: inputs as the collator gives them; labels, weights and filler rows (no label but -100) are left out.
        num_rows: number of rows to keep.

    Raises:
        ValueError: a batch without rows, a model that gives NaN or infinite logits.
    """
    inputs = {key: value for key, value in batch.items() if key not in _NOT_INPUTS and torch.is_tensor(value)}
    if not inputs:
        raise ValueError(f"batch holds no input tensors, only {', '.join(batch) or 'nothing'}")
    rows = torch.arange(len(next(iter(inputs.values()))))
    if batch.get("labels") is not None:
        rows = rows[(batch["labels"] != IGNORED_LABEL).cpu().reshape(len(rows), -1).any(dim=1)]
    rows = rows[:num_rows]
    if not len(rows):
        raise ValueError("batch has no rows to keep: every row is a filler (label -100)")
    inputs = {key: value.cpu()[rows] for key, value in inputs.items()}
    logits = _logits(model, inputs)
    if not torch.isfinite(logits).all():
        raise ValueError("the model gives NaN or infinite logits; it is not fit to be kept as a reference")
    tensors = {f"input.{key}": value.contiguous() for key, value in inputs.items()} | {"logits": logits}
    parameter = next(model.parameters())
    made_with = {"dtype": str(parameter.dtype).removeprefix("torch."), "device": parameter.device.type}
    # One entry: several are written in an order that changes from run to run.
    metadata = {"made_with": json.dumps(made_with)}
    path = Path(run_dir) / REFERENCE_FILE
    save_tensors(tensors, path, metadata=metadata)
    return path


def compare_with_reference(run_dir: str | Path, model: torch.nn.Module, allow_any: bool = False) -> tuple[int, float]:
    """Run a freshly loaded model on the reference rows.

    Args:
        run_dir: the run folder. model: what was loaded from it. allow_any: measure only: a model that was changed on purpose.

    Returns:
        The number of rows and the largest absolute difference of a logit.

    Raises:
        FileNotFoundError: the run has no reference rows.
        ValueError: the file is damaged, or a logit differs by more than the tolerance: 1e-4 in float32 (1e-3 where the device is
            another one than the reference's), more in half precision, each scaled with logits above 1.
    """
    path = Path(run_dir) / REFERENCE_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{run_dir} has no {REFERENCE_FILE}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, Any] = json.loads((file.metadata() or {}).get("made_with", "{}"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it, or evaluate the run again") from error
    if "logits" not in tensors:
        raise ValueError(f"{path} holds no logits; delete it, or evaluate the run again")
    expected = tensors.pop("logits")
    logits = _logits(model, {key.removeprefix("input."): value for key, value in tensors.items()})
    parameter = next(model.parameters())
    tolerance = max(
        _TOLERANCE.get(metadata.get("dtype", "float32"), 5e-2),
        _TOLERANCE.get(str(parameter.dtype).removeprefix("torch."), 5e-2),
        _OTHER_DEVICE if metadata.get("device", "cpu") != parameter.device.type else 0.0,
    )
    difference = (logits - expected).abs()
    allowed = tolerance * expected.abs().clamp(min=1.0)
    if not torch.isfinite(logits).all() or ((difference > allowed).any() and not allow_any):
        raise ValueError(
            f"{run_dir}: the model loaded from this folder gives other logits than the run did: largest difference "
            f"{float(difference.max()):.3g} on {len(expected)} rows, allowed {tolerance:g}; the weights or the "
            f"configuration were changed after training (if on purpose, delete {REFERENCE_FILE})"
        )
    return len(expected), float(difference.max())


def _logits(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    device = next(model.parameters()).device
    with evaluation_mode(model), torch.no_grad(), torch.autocast(device.type, enabled=False):
        output = model(**{key: value.to(device) for key, value in inputs.items()})
    return output.logits.float().cpu().contiguous()
