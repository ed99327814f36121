"""lmctr: click-through-rate prediction for Hugging Face Transformers.

Importing the package registers its model families with transformers' Auto classes, which takes as long as importing torch and
transformers. Only the command line (`lmctr VERB`, `python -m lmctr VERB`) puts that off, so that its help and its usage errors come at
once: there the families are registered as soon as a public name is used or `lmctr.auto` is imported, and every part of the package that
needs the Auto classes imports `lmctr.auto` itself. The public names are imported when they are first used.
"""

import sys
from typing import Any

from lmctr import _early, _moved
from lmctr.models.families import add_installed, public_classes
from lmctr.utils.lazy import imported, load_target

__version__ = "0.1.0"

_moved.install()

# Names besides the families' classes.
_NAMES = {
    "AutoModelForCTR": "lmctr.auto:AutoModelForCTR",
    "ClickPredictionPipeline": "lmctr.runs.pipeline:ClickPredictionPipeline",
    "CTRClassifier": "lmctr.runs.estimator:CTRClassifier",
    "CTRTrainer": "lmctr.training.trainer:CTRTrainer",
    "CTRTrainingArguments": "lmctr.training.arguments:CTRTrainingArguments",
    "CTROutput": "lmctr.models.common.outputs:CTROutput",
    "CTRSinkProcessor": "lmctr.models.ctr_sink.processing_ctr_sink:CTRSinkProcessor",
    "Family": "lmctr.models.families:Family",
    "ImpressionProcessor": "lmctr.data.processors.impressions:ImpressionProcessor",
    "SequenceProcessor": "lmctr.data.processors.sequence:SequenceProcessor",
    "TabularFeatureProcessor": "lmctr.data.features.processor:TabularFeatureProcessor",
    "list_models": "lmctr.auto:list_models",
    "register_family": "lmctr.auto:register_family",
}
_ROOMS = (
    "analysis",
    "auto",
    "benchmarks",
    "data",
    "evaluation",
    "hub",
    "models",
    "runs",
    "scaling",
    "serving",
    "studies",
    "training",
)

__all__ = sorted((*public_classes(), *_NAMES, "__version__"))


def __getattr__(name: str) -> Any:
    places = _NAMES | public_classes()
    if name not in places and name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    imported("lmctr.auto")
    value = load_target(places[name]) if name in places else imported(f"{__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})


add_installed()
if "lmctr.auto" in sys.modules:  # imported by one of them
    load_target("lmctr.auto:register_all")()
if not _early.is_command_line():
    imported("lmctr.runs.pipeline")  # and by it lmctr.auto
