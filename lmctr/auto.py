"""The Auto classes of the library: the only place that registers anything, a row of the family table after the other."""

from collections import OrderedDict

from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor, FeatureExtractionMixin
from transformers.models.auto.auto_factory import _BaseAutoModelClass, _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from lmctr.models.families import Family, add_family, families
from lmctr.utils.lazy import load_target

__all__ = ["AutoModelForCTR", "list_models", "register_family"]


class AutoModelForCTR(_BaseAutoModelClass):
    """Loads any CTR model of the library.

    Example:

    ```python
    >>> model = lmctr.AutoModelForCTR.from_pretrained("user/name")
    ```
    """

    _model_mapping = _LazyAutoMapping(CONFIG_MAPPING_NAMES, OrderedDict())


def list_models() -> list[str]:
    """The `model_type` of every family of the library, sorted."""
    return sorted(family.model_type for family in families())


def register_family(family: Family) -> None:
    """Add a family: then recipes, predictions, serving, model cards and `list_models` know it, and the Auto classes load it.

    Args:
        family: its row. `module=__name__` says that its classes stand in the module that calls.

    Raises:
        ValueError: its name or its class names are taken.

    Example:

    ```python
    >>> lmctr.register_family(lmctr.Family("fnn", "FNN", "tabular", "an MLP on factors", "Zhang et al.: ... https://...", module=__name__))
    ```
    """
    add_family(family)
    _register(family)


def _register(family: Family) -> None:
    config, processor = family.load("Config"), load_target(family.processor)
    AutoConfig.register(family.model_type, config)
    AutoModel.register(config, family.load("Model"))
    AutoModelForCTR.register(config, family.load("ForCTR"))
    AutoProcessor.register(config, processor)
    if issubclass(processor, FeatureExtractionMixin):
        AutoFeatureExtractor.register(config, processor)


for _family in families():
    _register(_family)
