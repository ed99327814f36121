from lmctr.runs.evaluation import evaluate as evaluate
from lmctr.runs.recipe import Recipe as Recipe
from lmctr.runs.run import Run as Run
from lmctr.runs.run import load as load
from lmctr.runs.training import train as train
