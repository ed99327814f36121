"""The verb `init`: from a file of clicks to a schema and recipes."""

from lmctr.cli.options import Action

INIT = Action(
    "init",
    "look at a file of clicks, and write a schema and three recipes for it",
    "lmctr.runs.options:InitOptions",
    "lmctr.runs.starting:init",
    epilog="lmctr init clicks.csv --items items.csv writes clicks/schema.yaml, clicks/ctr_sink.yaml, clicks/din.yaml and "
    "clicks/deepfm.yaml, and prints the next commands. Rows without users, items and times are a table: a schema of its fields and "
    "clicks/deepfm.yaml.",
)
add_parser, run = INIT.add_parser, INIT.run
