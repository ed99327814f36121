"""A model by its folder or by its id on the Hugging Face Hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, ModelInfo, hf_hub_download, snapshot_download, try_to_load_from_cache, utils
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from lmctr.runs.folder import (
    ITEM_STATISTICS,
    MANIFEST,
    PROCESSOR_FILES,
    WEIGHTS,
    WEIGHTS_INDEX,
    RunFolder,
    is_shared,
    of_adapters,
    open_run,
)
from lmctr.utils.hub_calls import HubError, ask_hub
from lmctr.utils.integrity import read_sealed
from lmctr.utils.progress import Work, without_bars_of
from lmctr.utils.suggest import retold

_PREFIX = "hf://"


@dataclass(frozen=True)
class HubName:
    """A repository of the Hub ("user/name"), and the branch, tag or commit that a name asks for (None: "main")."""

    repo_id: str
    revision: str | None = None


def hub_name(name: str | Path, revision: str | None = None) -> HubName | None:
    """What a name means on the Hub, or None where it is read as a folder.

    Args:
        name: "user/name", "user/name@revision", or either behind "hf://". What is there as a file or folder, or would stand in a folder
            that is there, is never looked for on the Hub, unless "hf://" says so.
        revision: asked for beside the name.

    Raises:
        ValueError: the address of a page; a revision of a folder, an empty one, or two that differ; no name behind "hf://".
    """
    text = str(name)
    _refuse_address(text)
    is_meant = text.startswith(_PREFIX)
    repo_id, at, asked = text.removeprefix(_PREFIX).partition("@")
    # unlike Path's methods, os.path takes a name that is too long for one that is not there
    is_here = not isinstance(name, str) or os.path.exists(text) or not _is_repo_id(repo_id)
    if not is_meant and (is_here or (Path(text).parent.is_dir() and not Path(repo_id).exists())):
        found = None
    elif not _is_repo_id(repo_id):
        raise ValueError(f"{text!r}: expected hf://user/name or hf://user/name@revision")
    elif at and not asked:
        raise ValueError(f"{text!r} has no revision behind the @; name a branch, tag or commit, or leave the @ out")
    elif at and not is_meant and Path(repo_id).exists():
        raise ValueError(
            f"{text!r} asks for a revision, which goes with a Hub id, but {repo_id} is a folder here; {_PREFIX}{text} means the Hub"
        )
    else:
        found = HubName(repo_id, asked or None)
    if revision is None or found == HubName(repo_id, revision):
        return found
    if found is None:
        raise ValueError(f"revision={revision!r} goes with a Hub id (user/name), but {name} is read as a folder")
    if found.revision is not None:
        raise ValueError(f"{text!r} and revision={revision!r} name two revisions; give one")
    return HubName(repo_id, revision)


def _refuse_address(text: str) -> None:
    """Pages of the Hub are at HOST/user/name[/tree/REVISION/...]."""
    if not text.startswith(("https://", "http://")):
        return
    host, *words = text.split("//", 1)[1].rstrip("/").split("/")
    if host.removeprefix("www.") not in ("huggingface.co", "hf.co") or len(words) < 2:
        raise ValueError(f"{text!r} is an address; accepted: a folder, or user/name of the Hub")
    revision = f"@{words[3]}" if len(words) > 3 and words[2] in ("tree", "blob", "resolve", "commit") else ""
    raise ValueError(f"{text!r} is the address of a page; write {words[0]}/{words[1]}{revision}")


def _is_repo_id(text: str) -> bool:
    if text.count("/") != 1 or text.startswith((".", "~")):
        return False
    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


def is_hub_id(name: str | Path) -> bool:
    """Whether a name is read as a repository on the Hub, see [`hub_name`]."""
    return hub_name(name) is not None


def place_beside(name: str | Path, folder: Path, what: str) -> Path:
    """Where results go by default: into the model's folder; of a model of the Hub, whose folder is a cache, to NAME-what beside us."""
    found = hub_name(name)
    return folder / what if found is None else Path(f"{found.repo_id.split('/')[-1]}-{what}")


def local_folder(
    name: str | Path,
    revision: str | None = None,
    token: str | bool | None = None,
    files: Callable[[str], bool] | None = None,
) -> Path:
    """A folder as it is, or that of a model on the Hub, where only what `lmctr push` shares is downloaded.

    Args:
        name: a folder, or a name as [`hub_name`] reads it: "user/name", "user/name@revision".
        revision: branch, tag or commit on the Hub; default: that of the name, or "main".
        token: access token; default: the one of `hf auth login` or `HF_TOKEN`. False: none.
        files: which files to download, by their names; default: those that `lmctr push` shares.

    Returns:
        The folder; one that is not there is returned too, unless its name has the form of a Hub id.

    Raises:
        FileNotFoundError: neither a folder nor a repository.
        HubError: the Hub refused (token, revision) or was not reached, and the files were not downloaded before.
        ValueError: a revision of a folder, or two of them; a repository without a model.
    """
    if not isinstance(name, (str, Path)) or not str(name):
        raise ValueError(
            f"got {type(name).__name__} {name!r} for a run, accepted: a folder, or a Hub id such as 'user/name'"
        )
    found = hub_name(name, revision)
    if found is None:
        return Path(name)
    repo_id, revision, what = found.repo_id, found.revision, _what(name)
    try:
        info = _model_info(name, found, token)
    except HubError as error:
        if isinstance(error.__cause__, HfHubHTTPError):
            raise
        downloaded = try_to_load_from_cache(repo_id, "config.json", revision=revision)  # when there was a connection
        if not isinstance(downloaded, str):
            raise
        folder = Path(downloaded).parent
        if missing := _missing(folder):
            raise HubError(
                f"{error}; of an earlier download only a part is here, {folder} lacks {', '.join(missing)}: load it once with a connection "
                "(and without HF_HUB_OFFLINE); if the repository itself lacks them, give this folder in place of its name"
            ) from error
        return folder
    wanted = is_shared if files is None else files
    names = [entry.rfilename for entry in info.siblings or ()]
    chosen = [one for one in names if wanted(one)]
    if "config.json" not in chosen:
        hint = of_adapters(names) or ": it holds no model (there is no folder of this name here)"
        raise ValueError(f"{name} on the Hub has no config.json{hint}")
    with Work(f"downloading {name}"), without_bars_of(utils):
        return Path(
            ask_hub(what, lambda: snapshot_download(repo_id, revision=revision, allow_patterns=chosen, token=token))
        )


@contextmanager
def told_by_name(name: str | Path, folder: Path) -> Iterator[None]:
    """Errors name a model of the Hub by its id, not by the cache that holds it."""
    with nullcontext() if folder == Path(name) else retold(folder, name):
        yield


def open_model(
    name: str | Path, revision: str | None = None, token: str | bool | None = None, refuse_pickles: bool = False
) -> RunFolder:
    """[`~lmctr.runs.folder.open_run`] of the model in a folder or on the Hub, see [`local_folder`] for the arguments and errors."""
    folder = local_folder(name, revision, token)
    with told_by_name(name, folder):
        return open_run(folder, "model", refuse_pickles)


def _missing(folder: Path) -> list[str]:
    """What a part of a model, such as the Auto classes download, lacks of what a run reads; told by the manifest where that is there."""
    if (folder / MANIFEST).is_file():
        names = read_sealed(folder / MANIFEST)["files"]
        return [name for name in names if is_shared(name) and not (folder / name).is_file()]
    run = RunFolder(folder)
    either = {WEIGHTS: (WEIGHTS, WEIGHTS_INDEX), run.processor_file: PROCESSOR_FILES}
    found = [name for name, names in either.items() if not any((folder / one).is_file() for one in names)]
    reads = not found and run.processor.get("statistics_reader")
    return [*found, *([ITEM_STATISTICS] if reads and not (folder / ITEM_STATISTICS).is_file() else [])]


def repository_files(name: str) -> dict[str, int | None]:
    """All files of a repository of the Hub, downloaded or not, with their sizes where it tells them.

    Raises:
        FileNotFoundError: no such repository. HubError: the Hub refused or was not reached.
    """
    info = _model_info(name, _known(name), sizes=True)
    return {entry.rfilename: entry.size for entry in info.siblings or ()}


def repository_file(name: str, file: str) -> Path | None:
    """A file of a repository of the Hub, downloaded now or, without a connection, before; None where it has no such file.

    Raises:
        FileNotFoundError: no such repository. HubError: the Hub refused or was not reached.
    """
    found = _known(name)
    try:
        if all(entry.rfilename != file for entry in _model_info(name, found).siblings or ()):
            return None
        return Path(ask_hub(_what(name), lambda: hf_hub_download(found.repo_id, file, revision=found.revision)))
    except HubError as error:
        if isinstance(error.__cause__, HfHubHTTPError):
            raise
        downloaded = try_to_load_from_cache(found.repo_id, file, revision=found.revision)
        if not isinstance(downloaded, str):
            raise
        return Path(downloaded)


def _known(name: str) -> HubName:
    found = hub_name(name)
    if found is None:
        raise ValueError(f"{name} is no name of a repository of the Hub")
    return found


def _model_info(name: str | Path, found: HubName, token: str | bool | None = None, sizes: bool = False) -> ModelInfo:
    """What the Hub says of a repository. Raises `FileNotFoundError`: there is none; `HubError`."""
    api = HfApi(token=token)
    try:
        return ask_hub(
            _what(name), lambda: api.model_info(found.repo_id, revision=found.revision, files_metadata=sizes)
        )
    except HubError as error:
        if not isinstance(error.__cause__, RepositoryNotFoundError):
            raise
        raise FileNotFoundError(
            f"{name} is neither a folder here nor a model repository of the Hub that may be read: {error}"
        ) from error


def _what(name: str) -> str:
    return f"load {name!r} from the Hub" + (
        "" if name.startswith(_PREFIX) else " (there is no folder of this name here)"
    )
