"""What a sample's user and item did before it, as numbers: one definition for baselines, every family and serving."""

from lmctr.utils.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("STATISTIC_SETS", "Statistic", "resolve_statistics", "statistic"), "lmctr.statistics.table"),
        "ItemStatistics": "lmctr.statistics.items",
        "StatisticsReader": "lmctr.statistics.reader",
        "UserStatistics": "lmctr.statistics.users",
    },
)
