"""Calls of the Hugging Face Hub whose errors say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lmctr.utils.files import NOT_ALLOWED

T = TypeVar("T")


class HubError(OSError):
    """The Hub refused or could not be reached. The message says what to do; nothing, or a whole commit, was uploaded."""


def ask_hub(what: str, call: Callable[[], T]) -> T:
    """Make a call to the Hub; its errors become a `HubError` that says what to do. `what` starts with the verb, push or load."""
    try:
        return _made(call)
    except LocalTokenNotFoundError as error:
        raise HubError(f"{what}: no access token; run `hf auth login` or set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise HubError(
            f"{what}: no such branch on the Hub; leave the revision out or name an existing branch"
        ) from error
    except HfHubHTTPError as error:
        raise HubError(f"{what}: {_advice(error, what.split()[0])}") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NOT_ALLOWED and error.filename and what.startswith("load"):
            raise HubError(
                f"{what}: {error.filename}, where downloads are kept, may not be written ({error.strerror}); set HF_HOME to a folder that may"
            ) from error
        if not _is_transport_error(error):
            raise
        raise HubError(
            f"{what}: the Hub at {HfApi().endpoint} was not reached ({error}); check the connection and HF_ENDPOINT"
        ) from error


def _made(call: Callable[[], T]) -> T:
    """A download that was refused says that the file is not here, and why only as its cause."""
    try:
        return call()
    except LocalEntryNotFoundError as error:
        refused = error.__cause__ or error
    raise refused


def _advice(error: HfHubHTTPError, verb: str) -> str:
    status = getattr(error.response, "status_code", None)
    said = f"the Hub answered {status}"
    detail = (error.server_message or "").strip()
    said += f" ({detail})" if detail else ""
    if status == 401:
        return f"{said}: the access token is missing, wrong or expired; run `hf auth login` or set HF_TOKEN"
    if status == 403 and verb == "push":
        return (
            f"{said}: the access token may not write there; use a token with write access to this user or organisation"
        )
    if status == 403:
        return (
            f"{said}: the access token may not read it; ask for access on the repository's page, or use another token"
        )
    if status == 404 or isinstance(error, RepositoryNotFoundError):
        return f"{said}: no such repository, or the token may not see it; check the name and the token"
    if status in (409, 412):
        return f"{said}: the repository changed meanwhile; {verb} again"
    if status == 429:
        return f"{said}: too many requests; wait a few minutes and {verb} again"
    if status is not None and status >= 500:
        return f"{said}: the server failed; {verb} again later"
    return f"{said}: {error}" if not detail else said


def _is_transport_error(error: Any) -> bool:
    """Errors of the HTTP client, whichever of its two major versions huggingface_hub uses, and of the socket."""
    return isinstance(error, ConnectionError | TimeoutError) or any(
        kind.__module__.partition(".")[0] in ("httpx", "httpx2", "requests") for kind in type(error).__mro__
    )
