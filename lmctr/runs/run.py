"""A run as an object: model, processor, recipe, metrics, and scores."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lmctr.runs.answers import load_item_statistics, load_retriever, predict_rows
from lmctr.runs.answers.base import refuse_without_score
from lmctr.runs.answers.joined import JoinedRows, joined_files_of, reads_log
from lmctr.runs.answers.tables import completed
from lmctr.runs.download import open_model, told_by_name
from lmctr.runs.evaluation import evaluate
from lmctr.runs.folder import RECIPE, RunFolder
from lmctr.runs.loading import load_run
from lmctr.runs.recipe import Recipe, load_recipe
from lmctr.serving import score
from lmctr.utils.arrow import held
from lmctr.utils.outside import entries

if TYPE_CHECKING:
    from lmctr.runs.answers.next_items import NextItems
    from lmctr.runs.answers.recommend import BestItems

logger = logging.getLogger(__name__)


class Run:
    """A folder with a model: a finished run, or any folder that `from_pretrained` loads. Nothing is read before it is asked for.

    Attributes:
        path: the folder.
        model: in evaluation mode, on the CPU.
        processor: makes inputs for it.
        recipe: the recipe that it was trained by, every value filled in; None for a bare model folder.
        metrics: the metrics of each part by its name (`run.metrics["test"]["auc"]`), and the entries of `metrics.json`: baselines, seed,
            versions, command; None for a bare model folder.
    """

    def __init__(self, folder: RunFolder, name: str | None = None):
        if not isinstance(folder, RunFolder):
            raise ValueError(
                f"Run: got {folder!r:.80}; lmctr.runs.load opens a run by its folder or the name of a model of the Hub"
            )
        self.folder, self.path, self._name = folder, folder.path, name

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        with told_by_name(self._name or self.path, self.path):
            return load_run(self.path)

    @property
    def model(self) -> Any:
        return self._loaded[0]

    @property
    def processor(self) -> Any:
        return self._loaded[1]

    @cached_property
    def recipe(self) -> Recipe | None:
        return load_recipe(self.path / RECIPE) if self.folder.started else None

    @cached_property
    def metrics(self) -> dict[str, Any] | None:
        found = self.folder.metrics()
        return None if found is None else {**found["split metrics"], **found}

    def evaluate(
        self, split: str = "test", overrides: Mapping[str, Any] | None = None, frozen_histories: bool = False
    ) -> dict[str, float]:
        """Metrics of a part of the run's data, or of other data, see [`~lmctr.runs.evaluate`]."""
        return evaluate(self.path, split, overrides=overrides or {}, frozen_histories=frozen_histories)

    @cached_property
    def _retriever(self) -> Any:
        return load_retriever(self.path, self.processor)

    @cached_property
    def _items(self) -> Any:
        return load_item_statistics(self.path, self.processor)

    def predict(self, rows: Any, log: str | Path | None = None, allow_unknown: bool = False) -> np.ndarray:
        """Logits as `lmctr predict` gives them: one for each row, target or candidate, in order.

        Args:
            rows: a list or table of requests, or rows of a table, see [`~lmctr.runs.answers.predict_rows`]. For a run of a log also a table of users,
                items and times (a path, a pyarrow Table, a pandas DataFrame, a `datasets` Dataset, a dict of columns, a list or generator of rows,
                frames or Arrow batches): each row's history, description and statistics are those of the log, read anew, before the row's time.
            log: where they come from, as in `lmctr predict --log`; default: the run's log.
            allow_unknown: score a table also where next to no value of a field is known.

        Returns:
            (R,) float32, or (R, T) of several tasks.

        Raises:
            FileNotFoundError: a table to be joined, of a folder without a recipe or whose log is not there.
            ValueError: a row that is not valid; names it.
        """
        if log is not None and not isinstance(log, (str, Path)):
            raise ValueError(f"log: expected the path of a schema, a folder or a file, got {type(log).__name__}")
        processor, log, rows = self.processor, None if log is None else str(log), held(rows)
        if hasattr(rows, "__len__") and not isinstance(rows, (str, Mapping)) and not len(rows):
            tasks = getattr(processor, "tasks", ("label",))
            return np.zeros((0, len(tasks))[: 1 + (len(tasks) > 1)], dtype=np.float32)
        kind = processor.request_kind
        columns = processor.input_columns() if kind == "table" else None
        if not reads_log(self.folder, log, rows, kind, columns):
            if kind == "table":
                rows = completed(rows, processor, partial(joined_files_of, self.folder))
            return predict_rows(self.model, processor, rows, self._retriever, self._items, allow_unknown)
        joined = JoinedRows(self.folder, self.model, processor, log, allow_unknown=allow_unknown, name=self._name)
        found = np.concatenate([logits for _, logits, _ in joined.blocks(rows)])
        for warning in joined.warnings:
            logger.warning(warning)
        return found[:, 0] if len(joined.tasks) == 1 else found

    def recommend(
        self,
        users: Any = None,
        top: int = 10,
        *,
        items: Any = None,
        seen: bool = False,
        time: Any = None,
        log: str | Path | None = None,
        allow_unknown: bool = False,
    ) -> pa.Table:
        """The best items for users of the log that the run was trained on, or of a newer one, as `lmctr recommend` gives them.

        Args:
            users: a list of ids; or a table (as for `predict`) with the log's column of users and, where they differ by row, of times, scenarios and
                context, of new users also what the log says of others; None: all users of the log.
            top: items for each.
            items: the candidates: a list of ids, or a table with the log's column of items, of new ones likewise; None: all that somebody met before.
            seen: whether items that a user has met before are candidates too.
            time: the moment to rank at, for rows without a time, as the log writes times, or unix seconds or an ISO text; None: a second after the log's last event.
            log, allow_unknown: see `predict`.

        Returns:
            A row for each user and item, the best first: the user and the item in the log's columns, their `row` and `rank` (from 1), `logit` and
            `probability`, (R, T) of several tasks, which are ranked by the first.

        Raises:
            FileNotFoundError: a folder without a recipe; a log that is not there.
            ValueError: a run of no log; a row that is not valid.
        """
        from lmctr.runs.answers.recommend import best_table

        ranked = self._ranked(log, items, seen, time, allow_unknown=allow_unknown)
        found = best_table(ranked, held(users), top)
        for warning in ranked.warnings:
            logger.warning(warning)
        return found

    def next_items(
        self,
        part: str = "test",
        top: int = 10,
        *,
        seen: bool = False,
        num_users: int | None = None,
        seed: int = 0,
        items: Any = None,
        time: Any = None,
        log: str | Path | None = None,
    ) -> NextItems:
        """How much of what users of a part of the run's log took next `recommend` would have shown them, see [`~lmctr.runs.answers.next_items`].

        Args:
            part, top, num_users, seed: see there. seen, items, log: as of `recommend`.
            time: a moment to rank at for all users; None: for each one the second of the first sample in the part.
        """
        from lmctr.runs.answers.next_items import next_items

        return next_items(self._ranked(log, items, seen, time), part, top, num_users, seed)

    def _ranked(self, log: str | Path | None, items: Any, *values: Any, **options: Any) -> BestItems:
        from lmctr.runs.answers.recommend import BestItems

        given = (None if log is None else str(log), held(items), *values)
        return BestItems(self.folder, self.model, self.processor, *given, **options, name=self._name)

    def embeddings(self, users: Any = None, ads: Any = None) -> dict[str, pa.Table]:
        """What the model holds for each value of its fields, see [`~lmctr.runs.vectors.value_vectors`]; or, of two towers, the vectors of the
        users and ads that are given, see [`~lmctr.runs.vectors.tower_vectors`].

        Args:
            users, ads: of two towers: tables (as for `predict`) with the columns that the fields of that side read; they come back with `vector`.

        Returns:
            By field (of events `item`), a table with a row for each known value: `value`, and `vector`, a list of numbers. Of tables that
            are given: by "users" and "ads", their rows, and `vector`.

        Raises:
            ValueError: a model of texts; one of impressions, but for two towers with users or ads; a row that is not valid.
        """
        from lmctr.runs.vectors import vectors

        return vectors(self.model, self.processor, users, ads)

    def score(self, history: Sequence[Any], candidates: Sequence[Any], time: float) -> np.ndarray:
        """(C,) logits of one user's candidates, by the fastest exact path that the model has, see [`~lmctr.serving.score`]; of a model of
        tables `history` is `[user]`, the columns that all candidates share, and `time` is not read."""
        reads_requests = self.processor.request_kind != "table"
        # which fill in what requests lack
        if reads_requests and (self._retriever is not None or self._items is not None):
            history, candidates = entries(history, "history"), entries(candidates, "candidates")
            if not candidates:
                return np.zeros(0, dtype=np.float32)
            try:
                return self.predict([{"history": history, "candidates": candidates, "time": time}])
            except ValueError as error:  # there is one request
                raise ValueError(str(error).removeprefix("rows[0]: ")) from error
        logits = score(self.model, self.processor, history, candidates, time).numpy()
        return refuse_without_score(logits, lambda place: f"candidates[{place}]")


def load(path_or_hub_id: str | Path, *, revision: str | None = None, token: str | bool | None = None) -> Run:
    """A run folder, any folder that `from_pretrained` loads, or a model on the Hugging Face Hub.

    Args:
        path_or_hub_id: a folder, or "user/name" or "user/name@revision"; what is there as a folder, or would stand in one, is never looked
            for on the Hub, unless the name begins with "hf://".
        revision: branch, tag or commit on the Hub; default: that of the name, or "main".
        token: access token; default: the one of `hf auth login` or `HF_TOKEN`.

    Raises:
        FileNotFoundError: neither a folder nor a repository; a file of the model is missing.
        HubError: the Hub refused or was not reached.
        ValueError: a broken file; two revisions, or one of a folder.

    Example:

    ```python
    >>> run = lmctr.runs.load("user/name")
    >>> run.score([{"text": "Heat (1995)", "time": 1700000000}], [{"text": "Casino (1995)"}], 1700100000)
    ```
    """
    return Run(open_model(path_or_hub_id, revision, token), str(path_or_hub_id))
