"""The verb `recommend`."""

from lmctr.cli.options import Action

RECOMMEND = Action(
    "recommend",
    "write the best items for users of a log",
    "lmctr.runs.answers.options:RecommendOptions",
    "lmctr.runs.answers.recommend:recommend",
)
add_parser, run = RECOMMEND.add_parser, RECOMMEND.run
