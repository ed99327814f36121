"""What a pushed model says to programs that do not know lmctr: an `auto_map`, and a file that imports the package or says how to get it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmctr.models.families import Family, families
from lmctr.runs.folder import PROCESSOR_FILES, RunFolder
from lmctr.utils.files import json_text
from lmctr.utils.hub_uploads import REMOTE_FILE

_FILE = '''"""The classes of this model, which are those of the package lmctr. Written by `lmctr push`."""

try:
    from lmctr import {names}
except ImportError as error:
    raise ImportError(f"this model needs the package lmctr: pip install lmctr ({{error}})") from error
'''


def remote_files(folder: RunFolder) -> dict[str, bytes]:
    """Files by name that differ from those of the folder when it is pushed: configurations with an `auto_map`, and the file that this names.

    With `trust_remote_code=True`, AutoConfig, AutoModel, AutoModelForSequenceClassification and AutoProcessor then load the classes of the package,
    or end with "pip install lmctr". A family of another package has no such file; its configuration is as it is, but for local paths.
    """
    row = next((row for row in families() if row.model_type == folder.model_type), None)
    if row is None or not _is_ours(row):
        return changed_config(folder)
    processor = next(name for name in PROCESSOR_FILES if (folder.path / name).is_file())
    changed = {"config.json": folder.shared_config, processor: folder.processor}
    maps = _auto_maps(row)
    files = {name: json_text({**values, "auto_map": maps[name]}).encode() for name, values in changed.items()}
    return {**files, REMOTE_FILE: _source(row)}


def changed_config(folder: RunFolder) -> dict[str, bytes]:
    """The configuration by its name, where it is shared in other words than those of the folder."""
    return {} if folder.shared_config == folder.config else {"config.json": json_text(folder.shared_config).encode()}


def is_own_auto_map(name: str, values: Mapping[str, Any], model_type: str | None) -> bool:
    """Whether the `auto_map` of a file is the one that `lmctr push` writes there for a family."""
    row = next((row for row in families() if row.model_type == model_type), None)
    return row is not None and _is_ours(row) and values.get("auto_map") == _auto_maps(row).get(name)


def is_own_file(content: bytes, model_type: str | None) -> bool:
    """Whether a file of code is the one that `lmctr push` writes for a family."""
    row = next((row for row in families() if row.model_type == model_type), None)
    return row is not None and _is_ours(row) and content == _source(row)


def _is_ours(row: Family) -> bool:
    return row.load("Config").__module__.startswith("lmctr.")


def _auto_maps(row: Family) -> dict[str, dict[str, str]]:
    """The `auto_map` of each file that gets one."""
    processor = f"{REMOTE_FILE.removesuffix('.py')}.{row.processor.rpartition(':')[2]}"
    classes = {"AutoConfig": "Config", "AutoModel": "Model", "AutoModelForSequenceClassification": "ForCTR"}
    own = {auto: f"{REMOTE_FILE.removesuffix('.py')}.{row.stem}{end}" for auto, end in classes.items()}
    ours = {"AutoProcessor": processor}
    return {
        "config.json": own,
        PROCESSOR_FILES[0]: ours,
        PROCESSOR_FILES[1]: {**ours, "AutoFeatureExtractor": processor},
    }


def _source(row: Family) -> bytes:
    names = [*(f"{row.stem}{end}" for end in ("Config", "ForCTR", "Model")), row.processor.rpartition(":")[2]]
    return _FILE.format(names=", ".join(names)).encode()
