"""`lmctr train RECIPE`: data, model, training, metrics beside the baselines, and the run folder."""

from lmctr.cli.options import Action

TRAIN = Action(
    "train",
    "train a model by a recipe",
    "lmctr.runs.options:TrainOptions",
    "lmctr.runs.training:run_train",
    epilog="Any value of the recipe can be overridden: --data.path FOLDER, --training.learning_rate=1e-3, "
    "--model.sink_signal '[recency, feedback]'. Several processes: accelerate launch -m lmctr train RECIPE.",
    takes_overrides=True,
)
add_parser, run = TRAIN.add_parser, TRAIN.run
