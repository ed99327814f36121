"""`lmctr search RECIPE --space SPACE`: the best values of a recipe, chosen on validation."""

from lmctr.cli.options import Action

SEARCH = Action(
    "search",
    "search the best values of a recipe",
    "lmctr.studies.options:SearchOptions",
    "lmctr.studies.search:run_search",
    epilog="""SPACE, for example:

    training.learning_rate: {low: 1e-4, high: 1e-2, log: true}
    model.embedding_dim: [8, 16, 32]

Overrides such as --data.path FOLDER apply to every trial. Needs pip install 'lmctr[search]'.""",
    takes_overrides=True,
)
add_parser, run = SEARCH.add_parser, SEARCH.run
