"""A model as one graph without Python: ONNX or torch.export, with rows, lengths and candidates dynamic."""

from __future__ import annotations

import copy
import io
import logging
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, ExportedProgram

from lmctr.hub.export_inputs import graph_axes, names_of, random_inputs
from lmctr.hub.options import EMBEDDINGS, EXPORT_FILES, ExportOptions
from lmctr.models.common.base import CTRPreTrainedModel
from lmctr.models.common.boosted_trees import BoostedTrees, ValueRates
from lmctr.runs.answers.predict import item_statistics_file, load_retriever
from lmctr.runs.download import open_model, place_beside
from lmctr.runs.examples import example_batch
from lmctr.runs.loading import load_folder
from lmctr.runs.vectors import vectors, write_vectors
from lmctr.utils.files import write_json
from lmctr.utils.load_report import without_bars
from lmctr.utils.lock import owned
from lmctr.utils.progress import Work
from lmctr.utils.suggest import errors_of

__all__ = ["EXPORT_FILES", "export_model", "run_export"]

_TOLERANCE = 1e-4  # relative to 1 or the largest logit
_SIZES = ((3, 13, 4), (1, 7, 1), (2, 2, 3), (5, 24, 2), (8, 16, 6))
"""Rows, length and candidates of the random requests; the first are those that are traced."""


@without_bars()
def run_export(options: ExportOptions) -> int:
    """`lmctr export RUN`: write the graph, or the vectors, and say what was written. Returns the exit code."""
    folder = open_model(options.run)
    target = Path(options.output or place_beside(options.run, folder.path, f"export-{options.format}"))
    if target.exists() and not target.is_dir():
        raise ValueError(f"--output {target} is a file; give a folder")
    if target.resolve() == folder.path.resolve():
        raise ValueError(f"--output {target} is the folder of the model itself; give another one")
    model, processor = load_folder(folder)
    if options.format == EMBEDDINGS:
        with errors_of(options.run):
            found = vectors(model, processor, options.users, options.ads)
        what = "rows" if options.users or options.ads else "values"
        for name, table, file in zip(found, found.values(), write_vectors(found, target)):
            print(f"wrote {file}: {len(table):,} {what} of {name}, vectors of {len(table['vector'][0])}")
        return 0
    file = export_model(model, processor, target, options.format, example=example_batch(folder, processor))
    if (items := item_statistics_file(folder.path, processor)) is not None:
        shutil.copyfile(items, target / items.name)
    if (retriever := load_retriever(folder.path, processor)) is not None:
        retriever.save_pretrained(target / "retriever")
    print(f"wrote {file}; the processor, export.json and parity.json stand beside it")
    return 0


def export_model(
    model: CTRPreTrainedModel,
    processor: Any,
    path: str | Path,
    format: str = "onnx",
    example: dict[str, torch.Tensor] | None = None,
) -> Path:
    """Write a model's forward pass as a graph, with the processor beside it.

    The graph takes what the processor makes (`return_tensors="np"` for ONNX), under the same names and of the same types, except what
    evaluation does not read; `export.json` lists its inputs. Rows (B), lengths of histories and texts, and candidates (C) are as in
    the request: any number from 1 (texts: from 2, up to the backbone's positions). It gives `logits` float32 in evaluation mode, of the shape
    that the model gives for batches with a candidate axis: (B,), or (B, C) of the sequence and retrieval families, with a task axis
    behind for several tasks. Text models give the logits of all tokens pooled, encoded from the start: no kept states. The graph holds
    the weights in float32; FAT's matrices stand in it ready made (`model.bake()`). It checks no values: ids outside their tables are
    not noticed.

    Args:
        model: stays as it is. Without adapters (`lmctr.training.lora.merge_lora`), not quantised. Text: any layout, but `"split"` with sliding windows.
        processor: the processor saved with the model.
        path: folder; gets `model.onnx` or `model.pt2`, the processor's files, `export.json` (inputs with types, axes and the names of their columns, output) and
            `parity.json` (the largest difference to the model's logits over random requests, and who ran the graph).
        format: "onnx" (needs the packages onnx and onnxscript) or "torch" (`torch.export.load` reads it).
        example: a batch of the processor to compare on as well.

    Returns:
        Path of the graph.

    Raises:
        ValueError: another format or kind of model.
        ImportError: onnx or onnxscript is not installed.
        RuntimeError: the graph gives other logits than the model: more than 1e-4 apart, of the largest logit where that is above 1.

    Example:

    ```python
    >>> file = export_model(model, processor, "exported")
    >>> session = onnxruntime.InferenceSession(file)
    >>> batch = processor(histories=..., targets=..., times=..., return_tensors="np")
    >>> logits = session.run(["logits"], {entry.name: batch[entry.name] for entry in session.get_inputs()})[0]
    ```
    """
    _check(model, format)
    plain = copy.deepcopy(model).to(device="cpu", dtype=torch.float32).eval().requires_grad_(False).bake()
    for module in plain.modules():
        if isinstance(module, (BoostedTrees, ValueRates)):
            module.bake()
    is_one_text = getattr(plain.config, "layout", "single") == "single"
    limit = getattr(plain.base_model, "max_positions", None) if is_one_text else None  # others: of each text field
    limit = getattr(plain.config, "num_positions", limit)
    axes = graph_axes(plain.config, processor)
    batches = [
        random_inputs(plain.config, rows, min(length, limit or length), candidates, seed=seed, axes=axes)
        for seed, (rows, length, candidates) in enumerate(_SIZES)
    ]
    names = list(batches[0])
    if example is not None:
        batches.append({name: _as_traced(name, example[name], batches[0][name]) for name in names})
    folder = Path(path)
    # a place that may not be written is told before the minutes of tracing
    with owned(folder, "`lmctr export`", ".export.lock"):
        with Work("tracing the model"):
            program = _trace(_Logits(plain, names), batches[0], axes, limit)
        try:
            return _write(folder, format, program, names, axes, batches, plain, processor, limit)
        except BaseException:
            for file in folder.glob(f"{EXPORT_FILES[format]}*"):  # large weights stand in one beside the graph
                file.unlink()
            raise


def _write(
    folder: Path,
    format: str,
    program: Any,
    names: list[str],
    axes: Mapping[str, Any],
    batches: list[dict[str, torch.Tensor]],
    plain: torch.nn.Module,
    processor: Any,
    limit: int | None,
) -> Path:
    """Write and compare the graph. `export.json`, which says what it takes, is written when all else is there and right."""
    file = folder / EXPORT_FILES[format]
    (folder / "export.json").unlink(missing_ok=True)
    with Work(f"writing {file.name}"):
        if format == "torch":
            archive = io.BytesIO()  # torch ends the process where a file of its own cannot be written to its end
            torch.export.save(program, archive)
            file.write_bytes(archive.getbuffer())
        else:
            with _quiet_exporter():
                graph = torch.onnx.export(
                    _without_idle_nodes(program),
                    input_names=names,
                    output_names=["logits"],
                    dynamo=True,
                    verbose=False,
                )
            _name_axes(graph, axes)
            for weight in graph.model.graph.initializers.values():  # said again, which stops tools that transpose them
                weight.shape = weight.type = None
                weight.metadata_props.clear()
            graph.save(str(file))
    with Work("comparing the graph with the model"):
        parity = _parity(plain, file, format, program, batches)
    processor.save_pretrained(folder)
    types = {name: str(batches[0][name].dtype).removeprefix("torch.") for name in names}
    # The inputs' names stay a plain list: programs that serve graphs of earlier versions read it.
    details = {name: {"dtype": types[name], "axes": list(axes[name])} for name in names}
    for name, detail in details.items():
        if columns := names_of(processor, name):
            detail["columns"] = columns
    write_json(folder / "parity.json", parity)
    write_json(
        folder / "export.json", {"inputs": names, "output": "logits", "max_length": limit, "input_details": details}
    )
    return file


def _check(model: Any, format: str) -> None:
    if format not in EXPORT_FILES:
        raise ValueError(f"format={format!r} is not accepted; use one of {', '.join(EXPORT_FILES)}")
    if not isinstance(model, CTRPreTrainedModel) or model.base_model is model:
        raise ValueError(
            f"model: a family's XForCTR can be exported, got {type(model).__name__}; merge adapters with merge_lora first"
        )
    text = getattr(model.config, "text_config", None)
    if getattr(model.config, "layout", "single") == "split" and "sliding_attention" in getattr(
        text, "layer_types", ()
    ):
        raise ValueError(
            f'model: a graph of layout="split" has no sliding windows, which this {text.model_type} has; use layout="single", or a '
            "backbone without them"
        )
    if getattr(model, "is_quantized", False):
        raise ValueError("model: its backbone is quantised; load it without quantization_config to export it")
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if format == "onnx" and missing:
        raise ImportError(
            f'format="onnx" needs {" and ".join(missing)}: pip install onnx onnxscript, or use format="torch"'
        )


class _Logits(nn.Module):
    """The forward pass from tensors of these names to a tensor."""

    def __init__(self, model: CTRPreTrainedModel, names: list[str]):
        super().__init__()
        self.model = model

        # Places of padding behind a history: slices are then never empty, and two-stage attention always has enough to choose from.
        more = _padding(model)

        def forward(**inputs: torch.Tensor) -> torch.Tensor:
            for name, values in inputs.items():
                if name.startswith("history"):
                    inputs[name] = F.pad(values, (0, more) if values.dim() == 2 else (0, 0, 0, more))
            return model(**inputs).logits

        # torch.export names inputs, and lays out their axes, by the parameters of `forward`.
        forward.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])
        self.forward = forward


def _padding(model: CTRPreTrainedModel) -> int:
    return max(2, getattr(model.config, "num_selected", 2))


def _trace(
    module: nn.Module, inputs: dict[str, torch.Tensor], axes: dict[str, tuple], limit: int | None
) -> ExportedProgram:
    dims = {
        "batch": Dim("batch", min=1),
        "length": Dim.STATIC if limit == 1 else Dim("length", min=2 if "attention_mask" in inputs else 1, max=limit),
        "candidates": Dim("candidates", min=1),
    }
    shapes = {
        name: {place: dims[axis] for place, axis in enumerate(axes[name]) if isinstance(axis, str)} for name in inputs
    }
    # With gradients on, families score all candidates in one piece, whatever their number. Symbolic shapes seldom meet a second time: to keep
    # the results of operators costs a sixth of the whole export.
    with torch.enable_grad(), torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        return torch.export.export(module, (), inputs, dynamic_shapes=shapes, strict=False)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Inside, torch's exporter says errors only: of packages that no model here needs, and of itself, no user can act on its warnings."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)


def _without_idle_nodes(program: ExportedProgram) -> ExportedProgram:
    """The program, where nothing gives back what it was given: up to a third of the nodes, each of which ONNX's exporter goes through five times."""
    aten, found = torch.ops.aten, program.graph
    for node in list(found.nodes):
        given, options = node.args[:1], node.args[1:]
        idle = (
            (node.target == aten.to.dtype and options == (given[0].meta["val"].dtype,) and not node.kwargs)
            or (node.target == aten.slice.Tensor and options[1:] in ((0, sys.maxsize), (None, sys.maxsize)))
            or (node.target == aten.dropout.default and not (options[0] and options[1]))
        )
        idle = idle and not any(user.op == "output" for user in node.users)  # whose names the signature keeps
        if idle:
            node.replace_all_uses_with(given[0])
        if idle or node.target == aten._assert_tensor_metadata.default:
            found.erase_node(node)
    found.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def _name_axes(graph: Any, axes: dict[str, tuple]) -> None:
    names = {}
    for entry in graph.model.graph.inputs:
        shape = zip(entry.shape, axes[entry.name])
        names |= {found: axis for found, axis in shape if isinstance(axis, str) and not isinstance(found, int)}
    graph.rename_axes(names)


def _as_traced(name: str, given: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if given.dim() != like.dim() or given.dtype != like.dtype:
        raise RuntimeError(
            f"the processor's {name} has {given.dim()} axes of {given.dtype}, the graph takes {like.dim()} of {like.dtype}"
        )
    return given


def _parity(model: nn.Module, file: Path, format: str, program: ExportedProgram, batches: list) -> dict[str, Any]:
    """What `parity.json` holds; ONNX is run by onnxruntime where there is one, else the program that it was written from is."""
    if format == "onnx" and find_spec("onnxruntime") is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        taken, ran = [entry.name for entry in session.get_inputs()], f"onnxruntime {onnxruntime.__version__}"

        def run(batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.from_numpy(session.run(["logits"], {name: batch[name].numpy() for name in taken})[0])
    else:
        loaded = torch.export.load(file).module() if format == "torch" else program.module()
        ran = f"torch {torch.__version__}"

        def run(batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return loaded(**batch)

    worst, largest, count = 0.0, 0.0, 0
    for batch in batches:
        with torch.inference_mode():
            expected = model(**batch).logits
        found = run(batch)
        if found.shape != expected.shape:
            raise RuntimeError(
                f"the exported graph gives logits {tuple(found.shape)}, the model {tuple(expected.shape)}"
            )
        worst = max(worst, float((found - expected).abs().max()))
        largest, count = max(largest, float(expected.abs().max())), count + expected.numel()
    if not worst <= _TOLERANCE * max(1.0, largest):
        raise RuntimeError(f"the exported graph gives other logits than the model: largest difference {worst:g}")
    return {"largest_difference": worst, "largest_logit": largest, "logits": count, "run_by": ran}
