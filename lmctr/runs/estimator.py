"""A model as a scikit-learn classifier, on tables in memory."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from lmctr.data.in_memory import arrow_table
from lmctr.data.logs.columns import to_weights
from lmctr.data.tables.source import SplitRule
from lmctr.runs.folder import RECIPE, rewriting
from lmctr.runs.recipe import load_recipe
from lmctr.runs.run import Run, load
from lmctr.runs.training import train
from lmctr.utils.integrity import MANIFEST, read_sealed

if TYPE_CHECKING:
    from sklearn.utils import Tags  # of 1.6 on

_SETTINGS = {"data.fractions": [0.85, 0.1, 0.05], "data.baselines": False, "training.refit": True}
_SEEDS = 1000  # that are tried
_FILES, _PLACE = "_run_files", "_run_place"  # of a pickle: the run's files and rows, and where it lay


class CTRClassifier(ClassifierMixin, BaseEstimator):
    """`fit(X, y)` and `predict_proba(X)` for any family that [`lmctr.runs.train`] trains on a table; goes into scikit-learn's cross-validation,
    searches and pipelines.

    Of the rows of `fit`, 85 % train and 10 % choose (when to stop, the share of the trees); then both train the model that stays. 5 % measure it:
    `run_.metrics`. Rows are parted by time where a column tells it, else at random, by the first seed by which each part has rows of both classes.

    Args:
        model: the family: "deepfm", "dcnv2", ...; "din" or "ctr_sink" on rows of users, items and times, whose histories are those of the rows
            of `fit`.
        output_dir: the run folder, for `lmctr.runs.load` and the command line; a run that is there is replaced. None: a folder that goes with this
            object, as cross-validation needs, which fits several.
        overrides: values over those of the recipe made for the rows, by dotted key: `{"training.epochs": 3, "data.baselines": True}`.
        user, item, time, items, users, kind: as of [`lmctr.runs.train`].
        quiet: print nothing.

    Attributes:
        run_: the [`~lmctr.runs.Run`]. classes_: (2,) the values of `y`, the click second.
        n_features_in_: the columns of `X`. feature_names_in_: their names, where it has some.

    A pickle (`joblib.dump`, processes of a search) holds the run's files and rows; what it is loaded as has a folder of its own.

    Example:

    ```python
    >>> scores = cross_val_score(lmctr.CTRClassifier("deepfm"), frame.drop(columns="clicked"), frame["clicked"], scoring="roc_auc")
    ```
    """

    def __init__(
        self,
        model: str = "deepfm",
        *,
        output_dir: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        items: Any = None,
        users: Any = None,
        kind: str | None = None,
        quiet: bool = True,
    ):
        self.model, self.output_dir, self.overrides, self.quiet = model, output_dir, overrides, quiet
        self.user, self.item, self.time, self.items, self.users, self.kind = user, item, time, items, users, kind

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CTRClassifier:
        """Train on rows.

        Args:
            X: (N rows) a DataFrame, another table that `lmctr.runs.train` takes, or a (N, F) array or list of lists.
            y: (N,) two different values, of which the greater is the click: 0 and 1, False and True, "no" and "yes".
            sample_weight: (N,) what each row counts for in the loss, the trees and the metrics, at least 0.

        Raises:
            ValueError: other than two values, missing ones, other numbers of rows; what `lmctr.runs.train` refuses.
        """
        table, y = self._table(X), np.asarray(y)
        if y.ndim == 2:
            y = column_or_1d(y, warn=True)
        given = {"y": y} | ({} if sample_weight is None else {"sample_weight": np.asarray(sample_weight)})
        for name, values in given.items():
            if values.shape != (table.num_rows,):
                raise ValueError(
                    f"{name}: got values of shape {values.shape}, accepted: one for each of the {table.num_rows:,} rows of X"
                )
        if missing := pa.array(y, from_pandas=True).null_count:
            raise ValueError(f"y: {missing:,} of {len(y):,} values are missing; accepted: a value for each row of X")
        self.classes_, clicks = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise ValueError(
                f"y: {len(self.classes_)} different values, accepted: two, of which the greater is the click"
            )
        if "sample_weight" in given:
            weight = given["sample_weight"]
            given["sample_weight"] = to_weights(weight + 0 if weight.dtype == bool else weight, "sample_weight")
            if len(np.unique(clicks[given["sample_weight"] > 0])) != 2:
                raise ValueError("sample_weight: rows of both values of y need a weight above 0")
        self.n_features_in_ = table.num_columns
        vars(self).pop("feature_names_in_", None)
        if not isinstance(X, (np.ndarray, list)):
            self.feature_names_in_ = np.array(table.column_names, dtype=object)
        added = {}
        for name, values in {"label": clicks, "weight": given.get("sample_weight")}.items():
            if values is not None:
                added[name] = name
                while added[name] in table.column_names:
                    added[name] += "_"
                table = table.append_column(added[name], [values])
        roles = ("user", "item", "time", "items", "users", "kind")
        into = partial(
            train,
            table,
            model=self.model,
            overrides=_seeded({**_SETTINGS, **(self.overrides or {})}, clicks, given.get("sample_weight")),
            overwrite=True,
            quiet=self.quiet,
            **added,
            **{role: getattr(self, role) for role in roles},
        )
        self.run_ = (
            into(output_dir=self.output_dir) if self.output_dir else _in_scratch(lambda run: into(output_dir=run))
        )
        self._weights = _weights(self.run_)
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def decision_function(self, X: Any) -> np.ndarray:
        """(N,) logits of the click."""
        check_is_fitted(self, "run_")
        self._check_own()
        table = self._table(X)
        if not hasattr(self, "feature_names_in_") and table.num_columns != self.n_features_in_:
            raise ValueError(f"X: got {table.num_columns} columns, accepted: the {self.n_features_in_} of fit")
        return self.run_.predict(table, allow_unknown=True)  # groups of another fold

    def predict_proba(self, X: Any) -> np.ndarray:
        """(N, 2) probabilities of `classes_`."""
        click = expit(self.decision_function(X).astype(np.float64))
        return np.stack([1 - click, click], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """(N,) the more probable of `classes_`."""
        is_click = self.decision_function(X) > 0
        return self.classes_[is_click.astype(int)]

    def _table(self, X: Any) -> pa.Table:
        if hasattr(X, "toarray"):
            raise ValueError(
                f"X: got a sparse {type(X).__name__}; accepted: a table of columns, or an array. Codes need no one-hot encoding: give the columns "
                "themselves"
            )
        if isinstance(X, list):
            X = np.array(X, dtype=object)
        if isinstance(X, np.ndarray):
            if X.ndim != 2:
                raise ValueError(f"X: got values of shape {X.shape}, accepted: (rows, columns)")
            X = {f"x{place}": column for place, column in enumerate(X.T)}
        return arrow_table(X, "X")

    def _check_own(self) -> None:
        """Raise where another fit has written into the run's folder since."""
        if _weights(self.run_) != self._weights:
            raise ValueError(
                f"output_dir: {self.run_.path} was deleted, or written anew, since this classifier was fitted there; leave output_dir out where several "
                "are fitted, as in cross-validation"
            )

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__()}
        if "run_" not in state:
            return state
        self._check_own()
        run, files = state.pop("run_"), {}
        for end in ("", ".data"):
            root = run.path.with_name(f"{run.path.name}{end}")
            for path in root.rglob("*"):
                if path.is_file() and run.folder.checkpoints not in path.parents:
                    files[f"run{end}/{path.relative_to(root).as_posix()}"] = path.read_bytes()
        return {**state, _FILES: files, _PLACE: str(run.path)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files, before = (state.pop(key, None) for key in (_FILES, _PLACE))
        super().__setstate__(state)
        if files is not None:
            self.run_ = _in_scratch(lambda run: _unpacked(run, files, before))
            self._weights = _weights(self.run_)


def _seeded(overrides: dict[str, Any], clicks: np.ndarray, weight: np.ndarray | None) -> dict[str, Any]:
    """The settings with the first seed by which rows that are parted at random, and count, are of both classes in each part."""
    counted = np.ones(len(clicks), dtype=bool) if weight is None else weight > 0
    for seed in () if "data.seed" in overrides else range(_SEEDS):
        rule = SplitRule(fractions=overrides["data.fractions"], seed=seed)
        parts = rule.at_random(np.arange(len(clicks)))[counted]
        found = np.bincount(2 * parts + clicks[counted], minlength=6).reshape(3, 2)
        if found[np.array(rule.fractions) > 0].all():
            return {**overrides, "data.seed": seed}
    return overrides


def _weights(run: Run) -> dict[str, Any] | None:
    """The checksums of a run's weights; None of no run."""
    manifest = run.path / MANIFEST
    if not manifest.is_file():
        return None
    return {name: own for name, own in read_sealed(manifest)["files"].items() if name.endswith(".safetensors")}


def _in_scratch(make: Callable[[Path], Run]) -> Run:
    """The run that `make` leaves in a new folder, which goes with it."""
    folder = tempfile.mkdtemp(prefix="lmctr-")
    try:
        run = make(Path(folder, "run"))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(run, _remove, folder, os.getpid())
    return run


def _remove(folder: str, owner: int) -> None:
    """Delete a folder in the process that made it; one that was forked, such as a server's worker, may end before."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _unpacked(path: Path, files: Mapping[str, bytes], before: str) -> Run:
    """The run of a pickle; its recipe names its rows where they lie now."""
    for name, content in files.items():
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).write_bytes(content)
    recipe = load_recipe(path / RECIPE)
    with rewriting(path / RECIPE):
        replace(recipe, data=_moved(recipe.data, f"{before}.data", f"{path}.data")).save(path / RECIPE)
    return load(path)


def _moved(value: Any, before: str, now: str) -> Any:
    """A value with paths that begin with a folder's beginning with another's."""
    if isinstance(value, Mapping):
        return {key: _moved(own, before, now) for key, own in value.items()}
    return now + value.removeprefix(before) if isinstance(value, str) and value.startswith(before) else value
