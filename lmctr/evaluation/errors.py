"""The error that metrics raise where they have no value, and how they take values."""

from __future__ import annotations

from typing import Any

import numpy as np


class UndefinedMetricError(ValueError):
    """The metric has no value on these samples: all are of one class or weigh nothing, or no impression has a value."""


def plain(values: Any, name: str) -> Any:
    """A tensor as numpy has it, exactly (bfloat16, which numpy has not, as float32); other values as they are.

    Raises:
        ValueError: a masked array with masked values: numpy's functions would read what stands below the mask.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return (values.float() if values.is_floating_point() and values.element_size() < 4 else values).numpy()
    if np.ma.is_masked(values):
        place = ", ".join(str(i) for i in np.argwhere(np.ma.getmaskarray(values))[0])
        raise ValueError(
            f"{name} is masked at {place} ({np.ma.count_masked(values)} values): leave these out of all arrays"
        )
    return values
