"""`lmctr report RUN ...`: one HTML page about finished runs."""

from lmctr.cli.options import Action

REPORT = Action(
    "report",
    "write one HTML page about finished runs",
    "lmctr.studies.options:ReportOptions",
    "lmctr.studies.report:run_report",
)
add_parser, run = REPORT.add_parser, REPORT.run
