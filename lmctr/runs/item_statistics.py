"""The table of items that serving reads statistics from, written anew when the log has grown."""

from __future__ import annotations

from pathlib import Path

from lmctr.data.inspection import inspect
from lmctr.data.logs.log import InteractionLog
from lmctr.runs.evaluation import recipe_of
from lmctr.runs.folder import RunFolder, rewriting
from lmctr.runs.inputs import input_of
from lmctr.runs.loading import load_run
from lmctr.runs.options import StatisticsOptions
from lmctr.statistics import ItemStatistics, StatisticsReader


def write_item_statistics(options: StatisticsOptions) -> int:
    """`lmctr data statistics`: the items of a run's data, with the run's priors, or those of a log. Returns the exit code.

    Raises:
        ValueError: a run whose model reads no statistics, data that are no log, a flag that does not go with what was named.
    """
    if not options.output.endswith(".parquet"):
        raise ValueError(f"--output {options.output}: give a file that ends in .parquet")
    folder = RunFolder(Path(options.name))
    table = _of_run(folder, options) if folder.path.joinpath("config.json").is_file() else _of_log(options)
    with rewriting(options.output):
        table.save(options.output)
    print(f"{len(table):,} items, statistics up to second {table.time}: {options.output}")
    return 0


def _of_run(folder: RunFolder, options: StatisticsOptions) -> ItemStatistics:
    for name in ("kind", "path", "split", "fractions", "seed", "num_behaviors", "option", "statistics"):
        if getattr(options, name):
            raise ValueError(
                f"--{name.replace('_', '-')}: {options.name!r} is a run, which says that itself; --data.KEY VALUE names newer data, such as "
                "--data.path"
            )
    _, processor = load_run(folder.path)
    reader = getattr(processor, "statistics_reader", None)
    if reader is None:
        raise ValueError(
            f"{options.name}: the model of this run reads no statistics; train with data.statistics, or name the log instead"
        )
    view = input_of(recipe_of(folder, options.overrides))
    view.load()
    return ItemStatistics.from_log(view.log, reader, options.time, label=view.first_label())


def _of_log(options: StatisticsOptions) -> ItemStatistics:
    if options.overrides:
        raise ValueError(
            f"--{options.overrides[0][0]}: {options.name!r} is no run; name its data by --path and --option"
        )
    found = inspect(options)
    if not isinstance(found.data, InteractionLog) or found.splits is None:
        raise ValueError(
            f"{options.name}: statistics are counted over an interaction log that can be split, which this is not"
        )
    reader = StatisticsReader.fit(found.data, found.splits.train, options.statistics or ["full"])
    return ItemStatistics.from_log(found.data, reader, options.time)
