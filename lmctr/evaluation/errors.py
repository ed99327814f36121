"""The error that metrics raise where they have no value."""


class UndefinedMetricError(ValueError):
    """The metric has no value on these samples: all are of one class, or no impression has a value."""
