"""A model as a scikit-learn classifier, on tables in memory."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from lmctr.data.in_memory import arrow_table
from lmctr.runs.training import train

_SETTINGS = {"data.fractions": [0.85, 0.1, 0.05], "data.baselines": False, "training.refit": True}


class CTRClassifier(ClassifierMixin, BaseEstimator):
    """`fit(X, y)` and `predict_proba(X)` for any family that [`lmctr.runs.train`] trains on a table; goes into scikit-learn's cross-validation,
    searches and pipelines.

    Of the rows of `fit`, 85 % train and 10 % choose (when to stop, the share of the trees); then both train the model that stays. 5 % measure it:
    `run_.metrics`. Rows are parted by time where a column tells it, else at random.

    Args:
        model: the family: "deepfm", "dcnv2", ...; "din" or "ctr_sink" on rows of users, items and times, whose histories are those of the rows
            of `fit`.
        output_dir: the run folder, for `lmctr.runs.load` and the command line; a run that is there is replaced. None: a folder that goes with this
            object, which can then not be pickled.
        overrides: values over those of the recipe made for the rows, by dotted key: `{"training.epochs": 3, "data.baselines": True}`.
        user, item, time, items, users, kind: as of [`lmctr.runs.train`].
        quiet: print nothing.

    Attributes:
        run_: the [`~lmctr.runs.Run`]. classes_: (2,) the values of `y`, the click second.

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

    def fit(self, X: Any, y: Any) -> CTRClassifier:
        """Train on rows.

        Args:
            X: (N rows) a DataFrame, another table that `lmctr.runs.train` takes, or a (N, F) array.
            y: (N,) two different values, of which the greater is the click: 0 and 1, False and True, "no" and "yes".

        Raises:
            ValueError: other than two values, other numbers of rows; what `lmctr.runs.train` refuses.
        """
        table, y = self._table(X), np.asarray(y)
        if y.shape != (table.num_rows,):
            raise ValueError(
                f"y: got values of shape {y.shape}, accepted: one for each of the {table.num_rows:,} rows of X"
            )
        self.classes_, clicks = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise ValueError(
                f"y: {len(self.classes_)} different values, accepted: two, of which the greater is the click"
            )
        label = "label"
        while label in table.column_names:
            label += "_"
        if self.output_dir is None:
            self._scratch = tempfile.mkdtemp(prefix="lmctr-")
            weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        roles = ("user", "item", "time", "items", "users", "kind")
        self.run_ = train(
            table.append_column(label, [clicks]),
            model=self.model,
            label=label,
            output_dir=self.output_dir or Path(self._scratch, "run"),
            overrides={**_SETTINGS, **(self.overrides or {})},
            overwrite=True,
            quiet=self.quiet,
            **{role: getattr(self, role) for role in roles},
        )
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """(N,) logits of the click."""
        check_is_fitted(self, "run_")
        return self.run_.predict(self._table(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """(N, 2) probabilities of `classes_`."""
        click = expit(self.decision_function(X).astype(np.float64))
        return np.stack([1 - click, click], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """(N,) the more probable of `classes_`."""
        is_click = self.decision_function(X) > 0
        return self.classes_[is_click.astype(int)]

    def _table(self, X: Any) -> Any:
        if isinstance(X, np.ndarray) and X.ndim == 2:
            X = {f"x{place}": column for place, column in enumerate(X.T)}
        return arrow_table(X, "X")

    def __getstate__(self) -> dict[str, Any]:
        if "_scratch" in vars(self):
            raise ValueError(
                "CTRClassifier: fitted in a folder that goes with it; give output_dir to keep it, and lmctr.runs.load to read it"
            )
        return super().__getstate__()
