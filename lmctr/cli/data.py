"""`lmctr data prepare`, `inspect` and `statistics`: read a data set once, check it, see what is in it, count by item."""

from __future__ import annotations

from lmctr.cli.options import Action, Actions

VERB = Actions(
    "data",
    "prepare a data set, or inspect one",
    (
        Action(
            "prepare",
            "read raw files once and write what loads at once (memory-mapped)",
            "lmctr.data.options:PrepareOptions",
            "lmctr.data.inspection:prepare_data",
        ),
        Action(
            "statistics",
            "write the table of items that serving reads statistics from",
            "lmctr.runs.options:StatisticsOptions",
            "lmctr.runs.item_statistics:write_item_statistics",
            takes_overrides=True,
        ),
        Action(
            "inspect",
            "counts, split dates, label rates, leakage report, history lengths, fields",
            "lmctr.data.options:InspectOptions",
            "lmctr.runs.inspection:inspect_data",
        ),
        Action(
            "sample",
            "a smaller file of the same log: the rows of some users",
            "lmctr.data.options:UserSampleOptions",
            "lmctr.data.sampling:sample_data",
        ),
        Action(
            "convert",
            "a data file in another format, such as CSV as Parquet",
            "lmctr.data.options:ConvertOptions",
            "lmctr.data.sampling:convert_data",
        ),
    ),
    "Read a data set, check it for leakage, and write or describe it.",
    metavar="ACTION",
)
add_parser, run = VERB.add_parser, VERB.run
