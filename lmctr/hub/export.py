"""A text model as one graph without Python: ONNX or torch.export, with batch and length dynamic."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR
from lmctr.utils.files import write_json

__all__ = ["EXPORT_FILES", "export_model"]

EXPORT_FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
_TOLERANCE = 1e-4


def export_model(model: CTRSinkForCTR, processor: Any, path: str | Path, format: str = "onnx") -> Path:
    """Write a model's forward pass as a graph, with the processor beside it.

    The graph takes `input_ids`, `attention_mask` (B, N) and, unless `sink_kind="none"`, `sink_buckets` (B, N) or (B, N, S), all
    int64, and `statistics` (B, Fs) float32 of a model that reads them, as the processor makes them (`return_tensors="np"` for ONNX),
    any B from 1 and N up to the backbone's positions, and gives `logits` (B,) float32 of evaluation (all tokens pooled). It holds the weights in float32, and the sinks and their bias as
    the model has them; it checks no values: ids or buckets outside their tables are not noticed.

    Args:
        model: stays as it is. `layout="single"`, without adapters (`lmctr.training.lora.merge_lora`) and not quantised.
        processor: the processor saved with the model.
        path: folder; gets `model.onnx` or `model.pt2`, `export.json` (names of inputs, largest length) and the processor's files.
        format: "onnx" (needs the packages onnx and onnxscript) or "torch" (`torch.export.load` reads it).

    Returns:
        Path of the graph.

    Raises:
        ValueError: another format or kind of model.
        ImportError: onnx or onnxscript is not installed.
        RuntimeError: the graph gives other logits than the model for a batch of another shape (more than 1e-4 apart).

    Example:

    ```python
    >>> file = export_model(model, processor, "exported")
    >>> session = onnxruntime.InferenceSession(file)
    >>> batch = processor(histories=..., targets=..., times=..., return_tensors="np")
    >>> logits = session.run(["logits"], {entry.name: batch[entry.name] for entry in session.get_inputs()})[0]
    ```
    """
    if format not in EXPORT_FILES:
        raise ValueError(f"format={format!r} is not accepted; use one of {', '.join(EXPORT_FILES)}")
    if not isinstance(model, CTRSinkForCTR):
        raise ValueError(
            f"model: CTRSinkForCTR can be exported, got {type(model).__name__}; merge adapters with merge_lora first"
        )
    if model.config.layout != "single":
        raise ValueError(f'model: only layout="single" can be exported, got {model.config.layout!r}')
    if getattr(model, "is_quantized", False):
        raise ValueError("model: its backbone is quantised; load it without quantization_config to export it")
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if format == "onnx" and missing:
        raise ImportError(
            f'format="onnx" needs {" and ".join(missing)}: pip install onnx onnxscript, or use format="torch"'
        )

    plain = copy.deepcopy(model).to(device="cpu", dtype=torch.float32).eval().requires_grad_(False)
    names = ["input_ids", "attention_mask"]
    names += ["sink_buckets"] if model.config.sink_kind != "none" else []
    names += ["statistics"] if model.config.num_statistics else []
    program = _trace(_Logits(plain), names)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / EXPORT_FILES[format]
    if format == "torch":
        torch.export.save(program, file)
    else:
        graph = torch.onnx.export(program, output_names=["logits"], dynamo=True, verbose=False)
        batch, length = graph.model.graph.inputs[0].shape
        graph.rename_axes({batch: "batch", length: "length"})
        graph.save(str(file))
    processor.save_pretrained(folder)
    write_json(folder / "export.json", {"inputs": names, "output": "logits", "max_length": plain.model.max_positions})
    return file


class _Logits(nn.Module):
    """The forward pass from tensors to a tensor."""

    def __init__(self, model: CTRSinkForCTR):
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        sink_buckets: torch.Tensor | None = None,
        statistics: torch.Tensor | None = None,
    ) -> torch.Tensor:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "statistics": statistics}
        return self.model(**inputs, sink_buckets=sink_buckets).logits


def _trace(module: _Logits, names: list[str]) -> ExportedProgram:
    limit = module.model.model.max_positions
    batch, length = Dim("batch", min=1), Dim("length", min=2, max=limit)
    inputs = _inputs(module.model, 3, 13 if limit is None else min(13, limit - 1), names)
    shapes = {name: {0: batch} if name == "statistics" else {0: batch, 1: length} for name in names}
    program = torch.export.export(module, (), inputs, dynamic_shapes=shapes, strict=False)
    other = _inputs(module.model, 2, 7 if limit is None else min(7, limit - 1), names)
    difference = float((program.module()(**other) - module(**other)).abs().max())
    if not difference <= _TOLERANCE:
        raise RuntimeError(f"the exported graph gives other logits than the model: largest difference {difference:g}")
    return program


def _inputs(model: CTRSinkForCTR, rows: int, length: int, names: list[str]) -> dict[str, torch.Tensor]:
    """A batch with padding and, where the model has them, sinks; only its shapes matter."""
    generator = torch.Generator().manual_seed(rows)
    config = model.config
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1:, length - 2 :] = 0
    shape = (rows, length) if len(config.signals) == 1 else (rows, length, len(config.signals))
    buckets = torch.full(shape, -1, dtype=torch.long)
    buckets[:, 1 : length - 2 : 2] = 0
    ids = torch.randint(0, config.text_config.vocab_size, (rows, length), generator=generator)
    statistics = torch.randn(rows, config.num_statistics, generator=generator)
    values = {"input_ids": ids, "attention_mask": mask, "sink_buckets": buckets, "statistics": statistics}
    return {name: values[name] for name in names}
