"""`lmctr card RUN`: write the model card of a run."""

from lmctr.cli.options import Action

CARD = Action(
    "card", "write the model card of a run", "lmctr.hub.options:CardOptions", "lmctr.hub.model_card:run_card"
)
add_parser, run = CARD.add_parser, CARD.run
