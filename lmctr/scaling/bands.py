"""Percentiles of a bootstrap, widened for few points."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri, stdtrit


def widened_residuals(residuals: np.ndarray, num_parameters: int, num_samples: int) -> np.ndarray:
    """The residuals that a bootstrap draws from: around 0, and as wide as the points' noise, of which the fit has taken a part.

    Raises:
        ValueError: fewer than 2 samples, or no more points than parameters (their residuals say nothing about the noise).
    """
    points, free = len(residuals), len(residuals) - num_parameters
    if num_samples < 2:
        raise ValueError(f"num_samples must be at least 2, got {num_samples}")
    if free < 1:
        raise ValueError(
            f"a bootstrap needs more points than parameters: {points} points, {num_parameters} parameters"
        )
    return (residuals - residuals.mean()) * np.sqrt(points / free)


def widened_band(drawn: np.ndarray, center: np.ndarray | float, free: int, level: float) -> np.ndarray:
    """Lower and upper ends (2, ...) of the percentile band at `level`, moved away from the fitted values.

    They are moved by the ratio of Student's quantile, of the points left over, to the normal one (the expanded percentiles of
    Hesterberg, https://arxiv.org/abs/1411.5279): a few points' residuals tell little of their own spread.

    Args:
        drawn: (samples, ...) of the refitted laws. center: (...) of the fitted one. free: points less parameters. level: between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    ends = np.array([1 - level, 1 + level]) / 2
    wider = stdtrit(free, ends[1]) / ndtri(ends[1])
    return center + (np.quantile(drawn, ends, axis=0) - center) * wider
