"""What a folder with a model holds, told without loading it: for folders that others made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lmctr.data.logs.text_encoders import check_encoder
from lmctr.hub.remote import REMOTE_FILE, is_own_auto_map, is_own_file
from lmctr.models.families import families
from lmctr.runs.download import is_hub_id, local_folder, repository_files
from lmctr.runs.folder import MANIFEST, PICKLE_SUFFIXES, RunFolder, is_shared
from lmctr.runs.trust import check_classes, check_links, inner_files, leaves
from lmctr.utils.files import read_json


def run_contents(name: str) -> tuple[list[str], list[str]]:
    """`folder_contents` of a folder, or of all files of a repository of the Hub, of which only what is looked into is downloaded."""
    if not is_hub_id(name):
        return folder_contents(name)
    listed = repository_files(name)
    return folder_contents(local_folder(name, files=_is_looked_into), name, listed)


def _is_looked_into(name: str) -> bool:
    """Configurations say what code they ask for; of code itself only a file with the name of the own one is compared."""
    return is_shared(name) or name == REMOTE_FILE or ("/" not in name and name.endswith(".json"))


def folder_contents(
    path: str | Path, name: str | None = None, listed: Mapping[str, int | None] | None = None
) -> tuple[list[str], list[str]]:
    """Lines about a folder, and its problems: each reason for which `lmctr` would not load it that is seen without loading it, or for which
    it, or another program, should not be asked to.

    Reads names, links, configurations, the headers of weights, and all that a manifest lists, to compare the checksums; it makes no
    model and no tokenizer, and runs no code.

    Args:
        path: the folder.
        name: what the lines call it; default: the path.
        listed: names and sizes of the files of the repository that the folder is a partial download of; default: the folder's own.

    Raises:
        FileNotFoundError: no such folder.
    """
    folder, lines, problems = RunFolder(Path(path)), [f"{name or path}:"], []
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
    compared = tried(folder.verify)
    if compared is not None:
        lines.append(f"checksums: {compared} files are those of {MANIFEST}")
    kind = None if config is None else config["model_type"]
    if listed is None:
        listed = dict(_own_files(folder.path))
    problems += _asks_for_code(folder.path, listed, kind)
    there = "kept here" if name is None else "others"
    kinds = Counter("shared by push" if is_shared(file) else there for file in listed)
    size = sum(filter(None, listed.values()))
    lines.append(
        f"files: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}{f', {size:,} bytes' if size else ''}"
    )
    return lines, list(dict.fromkeys(problems))


def _own_files(folder: Path) -> Iterator[tuple[str, int]]:
    """Names and sizes; files of a download are links to those that the Hub's cache keeps."""
    for path in inner_files(folder):
        if path.is_file() and not leaves(folder, path):
            yield path.relative_to(folder).as_posix(), path.stat().st_size


def _asks_for_code(folder: Path, names: Iterable[str], model_type: str | None) -> Iterator[str]:
    """A problem for each file that is code, may hold some, or asks for some."""
    for name in names:
        path = folder / name
        if name == REMOTE_FILE and path.is_file() and is_own_file(path.read_bytes(), model_type):
            continue
        if path.suffix.lower() in (*PICKLE_SUFFIXES, ".py"):
            yield f"{name} can run code when it is loaded; lmctr never does, another program may: delete it"
        elif path.suffix == ".json" and "/" not in name:
            try:
                values = read_json(path)
            except (ValueError, OSError) as error:
                yield str(error)
                continue
            if "auto_map" in values and not is_own_auto_map(name, values, model_type):
                yield f"{name} has an auto_map, which asks for code from the folder; lmctr loads none"
