"""The error that metrics raise where they have no value."""

__all__ = ["UndefinedMetricError"]


class UndefinedMetricError(ValueError):
    """The metric has no value on these samples: all are of one class, or no impression has a value."""
