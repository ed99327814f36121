"""Behaviour retrieval, done once before training: the K behaviours of each sample's history most similar to its target."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.lib.format import open_memmap

from lmctr.utils.arrow import is_text
from lmctr.utils.files import replacing, write_json
from lmctr.utils.lock import owned
from lmctr.utils.progress import Work
from lmctr.utils.ragged import offsets_from_lengths
from lmctr.utils.rows import is_whole
from lmctr.utils.suggest import LISTED, first_of

from .log import InteractionLog
from .text_encoders import TextRetriever, Vectors, cached_vectors

SELECTIONS = ("similar", "recent")
_FORMAT_VERSION = 1
_ARRAYS = ("events", "history", "similarity")
_META, _PROGRESS = "retrieval.json", "progress.json"
_SCALE = 1_000_000  # similarities are kept to six places, so that equal items are equally similar in every block
_BLOCK = 1_000_000  # similarities held at once
_SAVE_EVERY = 20.0  # seconds between savings of the progress


@dataclass(eq=False)
class Retrieval:
    """Behaviours with their similarity to the target, for a set of samples.

    Args:
        events: (S,) int64 positions of the samples in the log, ascending.
        history: (S, C) positions of behaviours in the log, -1 where a row has fewer. C is k, or k for each feedback code.
        similarity: (S, C) float32 cosine with the target, 0 where padded. Within a row (and feedback code): most similar first,
            or latest first for the selection "recent".
        k: behaviours per sample (and feedback code).
        selection: "similar" or "recent". per_feedback: whether each feedback code has its own k behaviours.
        log_fingerprint: tells logs apart.
        encoder: name of the encoder. retriever: the fitted retriever, None after loading.
    """

    events: np.ndarray
    history: np.ndarray
    similarity: np.ndarray
    k: int
    selection: str
    per_feedback: bool
    log_fingerprint: str
    encoder: str
    retriever: TextRetriever | None = None

    def __len__(self) -> int:
        return len(self.events)

    def rows(self, events: Sequence[int] | np.ndarray) -> np.ndarray:
        """(B,) row of each sample.

        Raises:
            ValueError: a sample that this retrieval was not built for.
        """
        events = np.asarray(events, dtype=np.int64)
        rows = np.searchsorted(self.events, events)
        found = rows < len(self.events)
        found[found] = self.events[rows[found]] == events[found]
        if not found.all():
            raise ValueError(
                f"{int((~found).sum())} of {len(events)} events have no retrieval result (first: event "
                f"{int(events[np.argmin(found)])}); build_retrieval must be given all samples, those of evaluation too"
            )
        return rows

    def __getitem__(self, events: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """History events (B, C) int64, padded with -1, and their similarities (B, C) float32."""
        rows = self.rows(events)
        return self.history[rows].astype(np.int64), np.asarray(self.similarity[rows])

    def candidates(self, events: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same without padding: offsets (B + 1,), history events and similarities, as text processors take them."""
        history, similarity = self[events]
        real = history >= 0
        return offsets_from_lengths(real.sum(axis=1)), history[real], similarity[real]

    def check(self, log: InteractionLog, processor: Any) -> None:
        """Check that this retrieval serves a text processor on a log.

        Raises:
            ValueError: another log, fewer behaviours than the processor shows, another selection or grouping.
        """
        if self.log_fingerprint != log_fingerprint(log):
            raise ValueError("the retrieval was built for another log (users, items or times differ); build it again")
        wanted = _wanted_by(processor)
        have = {"selection": self.selection, "per_feedback": self.per_feedback}
        for key in have:
            if have[key] != wanted[key]:
                raise ValueError(
                    f"the retrieval was built with {key}={have[key]!r}, but order={processor.sink_order!r} and "
                    f"feedback={processor.feedback!r} need {key}={wanted[key]!r}; build it with processor=processor"
                )
        if self.k < processor.num_behaviors:
            raise ValueError(
                f"the retrieval holds k={self.k} behaviours per sample, the processor shows {processor.num_behaviors}; "
                f"build it with k={processor.num_behaviors} or more"
            )

    def save(self, directory: str | Path) -> None:
        """Write npy and JSON files, the latter last, so that a folder that was cut off does not load; also over the folder it was loaded from."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _META).unlink(missing_ok=True)
        for name in _ARRAYS:
            with replacing(folder / f"{name}.npy") as part, open(part, "wb") as file:
                np.save(file, getattr(self, name), allow_pickle=False)
        self._write_meta(folder)

    def _write_meta(self, folder: Path) -> None:
        keys = ("k", "selection", "per_feedback", "log_fingerprint", "encoder")
        write_json(folder / _META, {"format_version": _FORMAT_VERSION} | {key: getattr(self, key) for key in keys})

    @classmethod
    def load(cls, directory: str | Path) -> Retrieval:
        """Memory-map what `save` wrote.

        Raises:
            FileNotFoundError: a file is missing. ValueError: a file is damaged or of another format.
        """
        folder = Path(directory)
        for name in (_META, *(f"{name}.npy" for name in _ARRAYS)):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{folder} holds no {name}; it is no finished retrieval")
        try:
            meta = json.loads((folder / _META).read_text(encoding="utf-8"))
            if meta.pop("format_version") != _FORMAT_VERSION:
                raise ValueError("it has the format of another version of lmctr")
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS}
            result = cls(**arrays, **meta)
        except (ValueError, TypeError, KeyError, EOFError) as error:
            raise ValueError(f"the retrieval in {folder} cannot be read: {error}; build it again") from error
        if not len(result.events) == len(result.history) == len(result.similarity):
            raise ValueError(f"the retrieval in {folder} is damaged: its files differ in length; build it again")
        return result


def build_retrieval(
    log: InteractionLog,
    events: Sequence[int] | np.ndarray,
    encoder: str | Path | Callable[[list[str]], np.ndarray] | TextRetriever = "tfidf",
    k: int | None = None,
    cache_dir: str | Path | None = None,
    *,
    train_events: Sequence[int] | np.ndarray | None = None,
    processor: Any = None,
    item_texts: Sequence[str | None] | None = None,
    selection: str | None = None,
    per_feedback: bool | None = None,
    progress: bool = True,
) -> Retrieval:
    """Find, for each sample, the k behaviours of its own history that are most similar to its target.

    The search is exact. Item vectors are computed once; a user's similarities are matrix products over that user's own items.
    Of equally similar behaviours the later one counts as more similar. Histories follow the log's rule (strictly earlier).

    Args:
        log: the log.
        events: (S,) samples, normally those of all parts of a split.
        encoder: see [`TextRetriever`]; or a retriever.
        k: behaviours per sample; default: the processor's number, or 50.
        cache_dir: folder for item vectors and results. With it the result is memory-mapped, a second call with the same input
            reads it back, and a call that was interrupted goes on where it stopped.
        train_events: samples of the training part. TF-IDF is fitted on the texts of the items in them and in their histories.
        processor: the text processor that will use the result; it sets the defaults of `k`, `item_texts`, `selection` and
            `per_feedback`.
        item_texts: one text per catalogue row; default: the processor's texts, or all text columns joined.
        selection: "similar", or "recent": the last k behaviours with their similarities (for the sink signal "similarity" with
            the order "recent").
        per_feedback: k behaviours of each known feedback code (for `feedback="groups"`).
        progress: show a progress bar.

    Raises:
        ValueError: TF-IDF without `train_events`, no events or events outside the log, wrong values, another process that builds the same one
            in `cache_dir`.
        MissingExtraError: see [`TextRetriever`].
    """
    wanted = _wanted_by(processor) if processor is not None else {"selection": "similar", "per_feedback": False}
    selection = wanted["selection"] if selection is None else selection
    per_feedback = wanted["per_feedback"] if per_feedback is None else per_feedback
    k = k if k is not None else processor.num_behaviors if processor is not None else 50
    if selection not in SELECTIONS:
        raise ValueError(f"selection must be one of {', '.join(SELECTIONS)}, got {selection!r}")
    if not is_whole(k):
        raise ValueError(f"k must be a whole number of at least 1, got {k!r}")
    events = np.unique(np.asarray(events, dtype=np.int64))
    if len(events) == 0:
        raise ValueError("events is empty; give the samples whose behaviours are to be retrieved")
    log.history_bounds(events)  # checks them
    if item_texts is None:
        item_texts = processor.item_texts(log.catalogue) if processor is not None else _catalogue_texts(log.catalogue)
    if len(item_texts) != log.num_items:
        raise ValueError(f"item_texts must hold one text per catalogue row, {log.num_items}, got {len(item_texts)}")
    retriever = encoder if isinstance(encoder, TextRetriever) else TextRetriever(encoder)
    if not retriever.is_fitted:
        if train_events is None:
            raise ValueError(
                "TF-IDF is fitted on the training part only: give train_events=splits.train (or a fitted TextRetriever)"
            )
        retriever.fit([item_texts[item] for item in np.unique(log.item[log.seen_events(train_events)])])
    vectors = cached_vectors(retriever, item_texts, cache_dir, progress)
    name = retriever.encoder if isinstance(retriever.encoder, str) else "callable"
    fingerprint = log_fingerprint(log)
    plan = _Plan(log, events, vectors, int(k), selection, per_feedback)
    meta = (int(k), selection, per_feedback, fingerprint, name, retriever)
    if cache_dir is None:
        history, similarity = np.full(plan.shape, -1, plan.dtype), np.zeros(plan.shape, np.float32)
        plan.run(history, similarity, 0, progress, None)
        return Retrieval(events, history, similarity, *meta)

    folder = Path(cache_dir) / f"retrieval-{plan.fingerprint(fingerprint)}"
    if not (folder / _META).is_file():
        with owned(folder, "`build_retrieval`"):
            if not (folder / _META).is_file():  # else another process has just finished it
                history, similarity, done = plan.open(folder)
                plan.run(history, similarity, done, progress, folder)
                Retrieval(events, history, similarity, *meta)._write_meta(folder)
                (folder / _PROGRESS).unlink(missing_ok=True)
    result = Retrieval.load(folder)
    result.retriever = retriever
    return result


def log_fingerprint(log: InteractionLog) -> str:
    """Hash of the events' users, items and times, and of which are hidden."""
    digest = hashlib.sha256()
    for values in (log.offsets, log.item, log.time, *([] if log.hidden is None else [log.hidden])):
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class _Plan:
    """The search over all samples, in the order of the log."""

    log: InteractionLog
    events: np.ndarray
    vectors: Vectors
    k: int
    selection: str
    per_feedback: bool

    @property
    def codes(self) -> list[int | None]:
        return list(range(1, len(self.log.feedback_names))) if self.per_feedback else [None]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.events), self.k * len(self.codes)

    @property
    def dtype(self) -> type:
        return np.int32 if self.log.num_events < 2**31 else np.int64

    def fingerprint(self, log: str) -> str:
        """Hash of everything that the result depends on."""
        settings = f"{_FORMAT_VERSION} {log} {self.k} {self.selection} {self.per_feedback}"
        digest = hashlib.sha256(settings.encode())
        digest.update(self.events.data)
        if self.per_feedback:
            digest.update(np.ascontiguousarray(self.log.feedback).data)
        parts = (self.vectors,)
        if sp.issparse(self.vectors):
            parts = (self.vectors.data, self.vectors.indices, self.vectors.indptr)
        for part in parts:
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()[:16]

    def open(self, folder: Path) -> tuple[np.ndarray, np.ndarray, int]:
        """The result's files and the number of samples that an earlier call has finished."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.npy" for name in _ARRAYS]
        try:
            done = int(json.loads((folder / _PROGRESS).read_text())["done"])
            history, similarity = (np.load(path, mmap_mode="r+", allow_pickle=False) for path in paths[1:])
            if history.shape == similarity.shape == self.shape and 0 <= done <= len(self.events):
                return history, similarity, done
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing usable there: start anew
        np.save(paths[0], self.events, allow_pickle=False)
        history = open_memmap(paths[1], "w+", self.dtype, self.shape)
        similarity = open_memmap(paths[2], "w+", np.float32, self.shape)
        return history, similarity, 0

    def run(self, history: np.ndarray, similarity: np.ndarray, done: int, progress: bool, folder: Path | None) -> None:
        """Fill the rows from `done` on; with a folder the progress is saved, also on an interruption."""
        user = self.log.user[self.events]
        bounds = np.flatnonzero(np.diff(user, prepend=-1, append=-1)) if len(user) else np.zeros(1, dtype=np.int64)
        saved = time.monotonic()
        try:
            with Work("retrieval", len(self.events), "samples", done, show=progress) as work:
                for begin, stop in itertools.pairwise(bounds):
                    for first, last in self._blocks(max(int(begin), done), int(stop)):
                        history[first:last], similarity[first:last] = self._search(first, last)
                        work.update(last - first)
                        done = last
                    if folder is not None and time.monotonic() - saved > _SAVE_EVERY:
                        self._save_progress(folder, history, similarity, done)
                        saved = time.monotonic()
        finally:
            if folder is not None:
                self._save_progress(folder, history, similarity, done)

    @staticmethod
    def _save_progress(folder: Path, history: np.ndarray, similarity: np.ndarray, done: int) -> None:
        history.flush()
        similarity.flush()
        write_json(folder / _PROGRESS, {"done": done})

    def _blocks(self, begin: int, stop: int) -> list[tuple[int, int]]:
        """Ranges of one user's samples whose similarities fit into a block."""
        if begin >= stop:
            return []
        _, end = self.log.history_bounds(self.events[stop - 1 : stop])
        longest = max(int(end[0] - self.log.offsets[self.log.user[self.events[begin]]]), 1)
        step = max(_BLOCK // longest, 1)
        return [(first, min(first + step, stop)) for first in range(begin, stop, step)]

    def _search(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """History events and similarities of samples [first, last), which belong to one user."""
        events = self.events[first:last]
        start, end = self.log.history_bounds(events)
        base, width = int(start[0]), int(end.max() - start[0])
        history = np.full((len(events), self.shape[1]), -1, dtype=np.int64)
        similarity = np.zeros((len(events), self.shape[1]), dtype=np.float32)
        if width == 0:
            return history, similarity
        items, place = np.unique(self.log.item[base : base + width], return_inverse=True)
        targets, row = np.unique(self.log.item[events], return_inverse=True)
        product = self.vectors[targets] @ self.vectors[items].T
        cosine = product.toarray() if sp.issparse(product) else np.asarray(product)
        cosine = np.rint(cosine.astype(np.float64) * _SCALE).astype(np.int64)[row[:, None], place[None, :]]
        position = np.arange(width)
        earlier = position < (end - base)[:, None]
        for number, code in enumerate(self.codes):
            usable = earlier if code is None else earlier & (self.log.feedback[base : base + width] == code)
            # One whole number per behaviour: its rank by similarity, then by position; -1 where it may not be used.
            rank = position if self.selection == "recent" else (cosine + 2 * _SCALE) * width + position
            rank = np.where(usable, rank, -1)
            count = min(self.k, width)
            best = np.partition(rank, width - count, axis=1)[:, width - count :]
            best = -np.sort(-best, axis=1)
            found = best >= 0
            place_found = np.where(found, best % width, 0)
            columns = slice(number * self.k, number * self.k + count)
            history[:, columns] = np.where(found, base + place_found, -1)
            picked = np.take_along_axis(cosine, place_found, axis=1) / _SCALE
            similarity[:, columns] = np.where(found, picked, 0)
        return history, similarity


def _wanted_by(processor: Any) -> dict[str, Any]:
    return {
        "selection": "recent" if processor.sink_order == "recent" else "similar",
        "per_feedback": processor.feedback == "groups",
    }


def _catalogue_texts(catalogue: pa.Table) -> list[str]:
    """All text columns of each item but its id, joined with blanks."""
    columns = []
    for column in catalogue.schema:
        kind = column.type.value_type if pa.types.is_list(column.type) else column.type
        if column.name != "item_id" and is_text(kind):
            columns.append(catalogue.column(column.name).to_pylist())
    if not columns:
        raise ValueError(
            f"the catalogue has no text column (its columns: {first_of(catalogue.column_names, LISTED)}); give item_texts"
        )
    joined = []
    for row in zip(*columns):
        words = [" ".join(filter(None, value)) if isinstance(value, list) else value for value in row]
        joined.append(" ".join(filter(None, words)))
    return joined
