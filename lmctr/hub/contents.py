"""What a folder with a model holds, told without loading it: for folders that others made."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from lmctr.data.logs.text_encoders import check_encoder
from lmctr.hub.remote import is_own_auto_map, is_own_file
from lmctr.models.families import families
from lmctr.runs.folder import PICKLE_SUFFIXES, RunFolder, is_shared
from lmctr.runs.trust import check_classes, check_links, inner_files
from lmctr.utils.files import read_json

__all__ = ["folder_contents"]


def folder_contents(path: str | Path) -> tuple[list[str], list[str]]:
    """Lines about a folder, and its problems: each reason for which `lmctr` would not load it, or should not be asked to.

    Reads names, links, configurations and the headers of weights; no weight, no tokenizer, and no code.

    Raises:
        FileNotFoundError: no such folder.
    """
    folder, lines, problems = RunFolder(Path(path)), [f"{path}:"], []
    if not folder.path.is_dir():
        raise FileNotFoundError(f"folder {str(path)!r} does not exist")

    def tried(check: Any, *arguments: Any) -> Any:
        try:
            return check(*arguments)
        except (ValueError, OSError) as error:
            problems.append(str(error))
            return None

    tried(check_links, folder.path)
    config = tried(lambda: folder.config)
    if config is not None:
        row = next((row for row in families() if row.model_type == config["model_type"]), None)
        inner = {
            key: value["model_type"]
            for key, value in config.items()
            if isinstance(value, dict) and "model_type" in value
        }
        words = "".join(f", {key} {kind!r}" for key, kind in inner.items())
        lines.append(f"model: {config['model_type']!r}{f' ({row.title}, reads {row.input})' if row else ''}{words}")
        if row is None:
            problems.append(
                f"{folder.path / 'config.json'}: model_type {config['model_type']!r} is no family of lmctr"
            )
        tried(check_classes, folder.path, config["model_type"])
    counts = tried(lambda: folder.num_parameters)
    if counts is not None:
        lines.append(
            f"weights: {sum(counts.values()):,} values in {len(counts)} tensors of {', '.join(folder.weight_files)}"
        )
    processor = tried(lambda: folder.processor)
    if processor is not None:
        lines.append(f"processor: {processor.get('processor_class') or processor.get('feature_extractor_type')}")
    if folder.has_retriever:
        retriever = tried(read_json, folder.retriever / "retriever.json") or {}
        lines.append(f"retriever: {retriever.get('kind')} {retriever.get('encoder') or ''}".rstrip())
        if (folder.retriever / "encoder").is_dir():
            tried(check_encoder, folder.retriever / "encoder")
    for name in ("recipe.yaml", "data.json", "metrics.json"):
        values = tried({"recipe.yaml": folder.recipe, "data.json": folder.data, "metrics.json": folder.metrics}[name])
        if values:
            lines.append(f"{name}: {', '.join(map(str, values))}")
    files = [entry for entry in inner_files(folder.path) if entry.is_file() and not entry.is_symlink()]
    for entry in files:
        name = entry.relative_to(folder.path).as_posix()
        kind = None if config is None else config["model_type"]
        if entry.suffix == ".py" and is_own_file(entry.read_bytes(), kind):
            continue
        if entry.suffix.lower() in (*PICKLE_SUFFIXES, ".py"):
            problems.append(f"{name} can run code when it is loaded; lmctr never does, another program may: delete it")
        elif entry.suffix == ".json" and name.count("/") == 0:
            values = tried(read_json, entry) or {}
            if "auto_map" not in values or is_own_auto_map(name, values, kind):
                continue
            problems.append(f"{name} has an auto_map, which asks for code from the folder; lmctr loads none")
    kinds = Counter(
        "shared by push" if is_shared(entry.relative_to(folder.path).as_posix()) else "kept here" for entry in files
    )
    size = sum(entry.stat().st_size for entry in files)
    lines.append(f"files: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}, {size:,} bytes")
    return lines, list(dict.fromkeys(problems))
