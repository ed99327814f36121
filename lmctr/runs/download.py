"""A model by its folder or by its id on the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache, utils
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from lmctr.runs.folder import is_shared
from lmctr.utils.hub_calls import HubError, ask_hub
from lmctr.utils.progress import Work, without_bars_of

__all__ = ["is_hub_id", "local_folder", "repository_files"]


def is_hub_id(name: str | Path) -> bool:
    """Whether a name is read as user/name on the Hub: it has that form, and there is no such file or folder here."""
    if not isinstance(name, str) or name.count("/") != 1 or Path(name).exists():
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return not name.startswith((".", "~"))


def local_folder(
    name: str | Path,
    revision: str | None = None,
    token: str | bool | None = None,
    files: Callable[[str], bool] | None = None,
) -> Path:
    """A folder as it is, or that of a model on the Hub, where only what `lmctr push` shares is downloaded.

    Args:
        name: a folder, or "user/name"; what is there as a file or folder is never looked for on the Hub.
        revision: branch, tag or commit on the Hub; default "main".
        token: access token; default: the one of `hf auth login` or `HF_TOKEN`. False: none.
        files: which files to download, by their names; default: those that `lmctr push` shares.

    Returns:
        The folder; one that is not there is returned too, unless its name has the form of a Hub id.

    Raises:
        FileNotFoundError: neither a folder nor a repository.
        HubError: the Hub refused (token, revision) or was not reached, and the files were not downloaded before.
        ValueError: a revision of a folder; a repository without a model.
    """
    if not is_hub_id(name):
        if revision is not None:
            raise ValueError(f"revision={revision!r} goes with a Hub id (user/name), but {name} is read as a folder")
        return Path(name)
    what = _what(name)
    try:
        info = ask_hub(what, lambda: HfApi(token=token).model_info(name, revision=revision))
    except HubError as error:
        if isinstance(error.__cause__, RepositoryNotFoundError):
            raise FileNotFoundError(
                f"{name} is neither a folder here nor a model repository of the Hub that may be read: {error}"
            ) from error
        if isinstance(error.__cause__, HfHubHTTPError):
            raise
        downloaded = try_to_load_from_cache(name, "config.json", revision=revision)  # before there was no connection
        if not isinstance(downloaded, str):
            raise
        return Path(downloaded).parent
    wanted = is_shared if files is None else files
    chosen = [entry.rfilename for entry in info.siblings or () if wanted(entry.rfilename)]
    if "config.json" not in chosen:
        raise ValueError(
            f"{name} on the Hub has no config.json: it holds no model (there is no folder of this name here)"
        )
    with Work(f"downloading {name}"), without_bars_of(utils):
        return Path(
            ask_hub(what, lambda: snapshot_download(name, revision=revision, allow_patterns=chosen, token=token))
        )


def repository_files(name: str) -> dict[str, int | None]:
    """All files of a repository of the Hub, downloaded or not, with their sizes where it tells them.

    Raises:
        HubError: the Hub refused or was not reached.
    """
    info = ask_hub(_what(name), lambda: HfApi().model_info(name, files_metadata=True))
    return {entry.rfilename: entry.size for entry in info.siblings or ()}


def _what(name: str) -> str:
    return f"load {name!r} from the Hub (there is no folder of this name here)"
