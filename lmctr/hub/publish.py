"""Pushing a run to the Hugging Face Hub: check it, write its card, upload the model's files in one commit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from lmctr.hub.checks import validate_run
from lmctr.hub.licences import check_licence
from lmctr.hub.model_card import CARD_FILE, build_card, is_edited, with_repository, write_card
from lmctr.hub.options import PushOptions
from lmctr.hub.remote import REMOTE_FILE, remote_files
from lmctr.runs.folder import MANIFEST, is_shared
from lmctr.runs.raw_values import coarse_table, shared_vocabularies, told_events
from lmctr.runs.reference import write_reference
from lmctr.utils.hub_calls import HubError, ask_hub
from lmctr.utils.load_report import without_bars
from lmctr.utils.suggest import first_of

__all__ = ["HubError", "PushResult", "push_run", "write_reference"]


@dataclass(frozen=True)
class PushResult:
    """Result of `push_run`.

    Attributes:
        repo_id: "user/name".
        files: the files of the commit, relative to the run folder.
        checks: one line per check that the run passed.
        card_written: whether the card was written; False where a README.md edited by hand was kept.
        kept: what lies at the top of the run folder and was not uploaded.
        vocabularies: fields whose raw values are in these files, with how many there are, those with the most first.
        told_events: how many events these files tell one by one: their item, second and label.
        deleted: files of an earlier push that this model does not have (such as shards), deleted by the same commit.
        url: address of the commit; None for a dry run.
        commit: its hash; None for a dry run.
        is_new: whether that commit is this push's own; False where the repository held all as it is, and none was made.
    """

    repo_id: str
    files: tuple[str, ...]
    checks: tuple[str, ...]
    card_written: bool
    kept: tuple[str, ...] = ()
    vocabularies: Mapping[str, int] = field(default_factory=dict)
    told_events: int = 0
    deleted: tuple[str, ...] = ()
    url: str | None = None
    commit: str | None = None
    is_new: bool = True


@without_bars()  # loading takes moments; the upload has bars of its own
def run_push(options: PushOptions) -> int:
    """`lmctr push RUN USER/NAME`: push, and say what was done. Returns the exit code."""
    result = push_run(
        options.run,
        options.repo_id,
        private=True if options.private else None,
        revision=options.revision,
        commit_message=options.commit_message,
        licence=options.licence,
        seed_runs=options.seeds,
        overwrite_card=options.force,
        coarse_statistics=options.coarse_statistics,
        dry_run=options.dry_run,
    )
    for line in result.checks:
        print(f"ok: {line}")
    if not result.card_written:
        print("kept: README.md, which was edited by hand (--force replaces it)")
    if result.is_new:
        verb = "would upload" if options.dry_run else "uploaded"
        print(f"{verb} {len(result.files)} files to {result.repo_id}: {', '.join(result.files)}")
    else:
        print(
            f"nothing to upload: {result.repo_id} holds the {len(result.files)} files as they are: {', '.join(result.files)}"
        )
    if result.vocabularies:
        most = [f"{name} ({count:,})" for name, count in result.vocabularies.items()]
        print(f"with them the values of these fields as they stand in the data: {first_of(most)}")
    if result.told_events:
        print(
            f"with them the second and the label of {result.told_events:,} events by item, of no users, in item_statistics.parquet "
            "(--coarse-statistics N leaves steps of N)"
        )
    if result.kept:
        print(f"not uploaded: {', '.join(result.kept)}")
    if result.deleted:
        print(f"deleted there, left by an earlier push: {', '.join(result.deleted)}")
    if result.url:
        print(result.url)
    return 0


def push_run(
    run_dir: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    licence: str | None = None,
    seed_runs: Sequence[str | Path] = (),
    overwrite_card: bool = False,
    coarse_statistics: int | None = None,
    dry_run: bool = False,
    token: str | bool | None = None,
) -> PushResult:
    """Check a run folder (`lmctr.hub.checks.validate_run`), write its card, and upload weights, configurations, tokenizer and
    card in one commit, with a small file for who loads it by `trust_remote_code=True` (see `lmctr.hub.remote`). Checkpoints, predictions, recipe, logs and reference rows stay where they are; the card quotes the recipe.

    Args:
        run_dir: the run folder.
        repo_id: "user/name"; the repository is made where it does not exist.
        private: whether a new repository is private; None takes the account's default. An existing one is left as it is; a public one is
            refused with True.
        revision: branch to commit to, made where it does not exist, or a pull request that is open, "refs/pr/1"; default "main".
        commit_message: default "Add <model type> model".
        licence: licence identifier for the card's header, see `build_card`.
        seed_runs: further seeds for the card, see `build_card`.
        overwrite_card: replace a README.md that was edited by hand, which else goes as it is, but for the example's folder: it names `repo_id`.
        coarse_statistics: share every n-th step of the courses of items' statistics only, see `ItemStatistics.coarse`.
        dry_run: make every check and report what would be uploaded; write and send nothing.
        token: access token; default: the one of `hf auth login` or `HF_TOKEN`.

    Raises:
        FileNotFoundError, ValueError: the run is not fit to be shared, or `repo_id` is no valid name; a public repository with
            `private=True`, before anything is uploaded.
        HubError: the Hub refused (no or wrong token, no right to write, no such branch), failed, or was not reached.
    """
    _check_repo_id(repo_id)
    check_licence(licence)
    report = validate_run(run_dir)
    folder = report.folder
    card = {"repo_id": repo_id, "licence": licence, "seed_runs": seed_runs}
    changed = remote_files(folder)
    if coarse_statistics is None:
        told = told_events(folder)
    else:
        changed, told = changed | coarse_table(folder, coarse_statistics), 0
    kept = tuple(name for name in folder.kept_files() if name != CARD_FILE)
    files = [*folder.upload_files(), *map(Path, changed.keys() & {REMOTE_FILE}), Path(CARD_FILE)]
    names = tuple(path.as_posix() for path in files)
    result = PushResult(repo_id, names, report.lines, True, kept, shared_vocabularies(folder), told)
    if dry_run:
        build_card(run_dir, **card)  # a card that cannot be built fails here too
        path = folder.path / CARD_FILE
        edited = path.is_file() and not overwrite_card and is_edited(path)
        return replace(result, card_written=not edited)
    _, card_written = write_card(run_dir, overwrite=overwrite_card, **card)

    api = HfApi(token=token)
    what = f"push to {repo_id!r}"
    ask_hub(what, lambda: api.create_repo(repo_id, private=private, exist_ok=True))
    if private and not ask_hub(what, lambda: api.model_info(repo_id)).private:
        raise ValueError(
            f"repository {repo_id!r} is there and public, nothing was uploaded: make it private in its settings, give another name, or "
            "leave out --private (private=True)"
        )
    # a pull request is opened there
    if revision is not None and revision != "main" and not revision.startswith("refs/"):
        ask_hub(what, lambda: api.create_branch(repo_id, branch=revision, exist_ok=True))
    # A model.safetensors left beside new shards would be loaded in their place.
    before = ask_hub(what, lambda: api.model_info(repo_id, revision=revision))
    there = [file.rfilename for file in before.siblings]
    stale = tuple(sorted(name for name in there if (is_shared(name) or name == REMOTE_FILE) and name not in names))
    contents: dict[str, bytes | Path] = {path.as_posix(): folder.path / path for path in files} | changed
    if not card_written:
        card_text = (folder.path / CARD_FILE).read_text(encoding="utf-8")
        contents[CARD_FILE] = with_repository(card_text, folder.path, repo_id).encode()
    if MANIFEST in contents:
        contents[MANIFEST] = folder.shared_manifest(changed)
    operations: list = [CommitOperationAdd(name, content) for name, content in contents.items()]
    operations += [CommitOperationDelete(name) for name in stale]
    with warnings.catch_warnings():  # tables of vocabularies and statistics belong to a model
        warnings.filterwarnings("ignore", "It seems that you are about to commit a data file")
        commit = ask_hub(
            what,
            lambda: api.create_commit(
                repo_id,
                operations,
                commit_message=commit_message or f"Add {folder.model_type} model",
                revision=revision,
            ),
        )
    made = {"url": commit.commit_url, "commit": commit.oid, "is_new": commit.oid != before.sha}
    return replace(result, card_written=card_written, deleted=stale, **made)


def _check_repo_id(repo_id: str) -> None:
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"repository {repo_id!r} is no valid name: {error}") from error
    if "/" not in repo_id:
        raise ValueError(f"repository must be given as user/name, got {repo_id!r}")
