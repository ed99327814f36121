"""Statistics that a caller computes: columns of any meaning, standardised as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class GivenStatistics:
    """What a processor knows of statistics that no [`~lmctr.statistics.StatisticsReader`] gives: columns of one's own.

    Args:
        names: of the columns.
        mean, std: what each is standardised by, NaN (not known) becoming 0; None leaves them as they are.
        prior: positive rate that rates among them are smoothed towards; None if there are no rates. It is kept for those who compute them.

    Raises:
        ValueError: numbers that do not fit the names, a `std` not above 0, a `prior` that is no rate.
    """

    names: tuple[str, ...] = ()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    prior: float | None = None

    def __post_init__(self) -> None:
        if self.prior is not None and not (isinstance(self.prior, (int, float)) and 0 <= self.prior <= 1):
            raise ValueError(f"statistics_prior: got {self.prior!r}, accepted: a rate from 0 to 1, or None.")
        if self.mean is None and self.std is None:
            return
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is None or len(values) != len(self.names) or not np.isfinite(values).all():
                raise ValueError(
                    f"statistics_{name}: got {values}, accepted: a number for each of the statistics {list(self.names)}, or None for "
                    "both."
                )
        if min(self.std, default=1.0) <= 0:
            raise ValueError(f"statistics_std: got {list(self.std)}, accepted: numbers above 0.")

    @classmethod
    def fit(
        cls, names: Sequence[str], values: np.ndarray | None, events: np.ndarray, num_events: int, prior: float | None
    ) -> GivenStatistics:
        """Mean and standard deviation of the known values (E, Fs) of some events; a column that does not vary has 1.

        Raises:
            ValueError: `values` of another shape.
        """
        if values is None:
            return cls(tuple(names), prior=prior)
        if values.shape != (num_events, len(names)):
            raise ValueError(f"statistics_of_events: shape {values.shape}, expected {(num_events, len(names))}.")
        known = np.ma.masked_invalid(np.asarray(values, dtype=np.float64)[events])
        mean, std = known.mean(axis=0).filled(0.0), known.std(axis=0).filled(0.0)
        return cls(tuple(names), tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist()), prior)

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """(..., Fs) float32 statistics as models take them."""
        values = np.asarray(values, dtype=np.float32)
        if self.mean is None:
            return values
        scaled = (values - np.float32(self.mean)) / np.float32(self.std)
        return np.where(np.isnan(scaled), np.float32(0), scaled)

    def settings(self) -> dict[str, Any]:
        """As a processor's file holds them, without what does not apply."""
        values: dict[str, Any] = {"statistics": list(self.names)}
        if self.mean is not None:
            values |= {"statistics_mean": list(self.mean), "statistics_std": list(self.std)}
        return values if self.prior is None else values | {"statistics_prior": self.prior}
