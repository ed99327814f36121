"""`push_to_hub` of a model, a processor or a configuration into a repository of `lmctr push`, which stays whole by it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import RevisionNotFoundError
from transformers.utils import PushToHubMixin

from lmctr.utils.files import json_text, read_json, write_json
from lmctr.utils.integrity import MANIFEST, checksums, read_sealed, sealed
from lmctr.utils.lock import LOCK

REMOTE_FILE = "lmctr_remote.py"
"""The file of a pushed model that the `auto_map` of its configurations names."""

_KINDS = ("model_type", "processor_class")  # what the values of an `auto_map` follow from


def upload_modified_files(
    self: PushToHubMixin,
    working_dir: str | os.PathLike,
    repo_id: str,
    files_timestamps: Mapping[str, float],
    revision: str | None = None,
    token: bool | str | None = None,
    **options: Any,
) -> Any:
    """In place of `PushToHubMixin._upload_modified_files`: the same commit renews what else the repository says of the files.

    Its checksums are those of the new files, and a configuration keeps the `auto_map` that it has there. A repository that has neither
    is as transformers leaves it.

    Raises:
        ValueError: the repository's checksums are damaged.
    """
    there = _Repository(repo_id, revision, token)

    def upload(folder: str | os.PathLike, timestamps: Mapping[str, float]) -> Any:
        return PushToHubMixin._upload_modified_files(
            self, folder, repo_id, timestamps, revision=revision, token=token, **options
        )

    if not there.names & {MANIFEST, REMOTE_FILE}:
        return upload(working_dir, files_timestamps)
    with TemporaryDirectory() as place:  # a folder that is saved into keeps checksums and configurations of its own
        for path in Path(working_dir).absolute().iterdir():
            if path.name != LOCK and path.stat().st_mtime > files_timestamps.get(path.name, -1.0):
                (Path(place) / path.name).symlink_to(path)
        there.complete(Path(place))
        return upload(place, {})


class _Repository:
    """What lies in a repository of models before an upload; a branch that is still to be made starts as the main one."""

    def __init__(self, repo_id: str, revision: str | None, token: bool | str | None):
        self.api, self.repo_id, self.revision = HfApi(token=token), repo_id, revision
        try:
            self.names = self._listed()
        except RevisionNotFoundError:
            self.revision = None
            self.names = self._listed()

    def _listed(self) -> set[str]:
        return set(self.api.list_repo_files(self.repo_id, revision=self.revision))

    def _file(self, name: str) -> Path:
        return Path(self.api.hf_hub_download(self.repo_id, name, revision=self.revision))

    def complete(self, folder: Path) -> None:
        """Change and add what goes up with the files of a folder of links."""
        files = [path for path in folder.iterdir() if path.is_file()]
        if REMOTE_FILE in self.names:
            for path in files:
                if path.suffix == ".json" and path.name in self.names:
                    self._keep_auto_map(path)
        if MANIFEST in self.names:
            content = read_sealed(self._file(MANIFEST))
            new = checksums(folder, (path.name for path in files if path.suffix not in (".md", ".py")))
            write_json(folder / MANIFEST, sealed({**content, "files": content["files"] | new}))

    def _keep_auto_map(self, path: Path) -> None:
        before, now = read_json(self._file(path.name)), read_json(path)
        if "auto_map" in before and all(before.get(kind) == now.get(kind) for kind in _KINDS):
            path.unlink()  # the link
            path.write_text(json_text({**now, "auto_map": before["auto_map"]}), "utf-8")
