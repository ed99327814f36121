"""`lmctr grid run|report GRID`: many training runs from one file, resumable run by run, and their comparison."""

from __future__ import annotations

from lmctr.cli.options import Action, Actions

_EPILOG = (
    "Overrides such as --data.path FOLDER or --training.use_cpu true apply to every point, last. Give `grid report` the same ones as "
    "`grid run` (--data.path alone may be left out)."
)
VERB = Actions(
    "grid",
    "train a grid of recipes over seeds, and compare its points",
    (
        Action(
            "run",
            "train what is missing",
            "lmctr.studies.grids.options:GridRunOptions",
            "lmctr.studies.grids.run:run_grid",
            _EPILOG,
            takes_overrides=True,
        ),
        Action(
            "report",
            "mean, spread and paired significance of what is done",
            "lmctr.studies.grids.options:GridReportOptions",
            "lmctr.studies.grids.report:report_grid",
            _EPILOG,
            takes_overrides=True,
        ),
    ),
)
add_parser, run = VERB.add_parser, VERB.run
