"""The Auto classes of the library: the only place that registers anything, a row of the family table after the other."""

import warnings
from collections import OrderedDict

from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor, FeatureExtractionMixin
from transformers.models.auto.auto_factory import _BaseAutoModelClass, _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from lmctr.models.families import Family, add_family, drop_family, families
from lmctr.utils.lazy import load_target

_REGISTERED: set[str] = set()


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
        ValueError: no `Family`, or one whose name or class names are taken.
        ImportError, AttributeError: its module, or a class of it, is not there.

    Example:

    ```python
    >>> lmctr.register_family(lmctr.Family("fnn", "FNN", "tabular", "an MLP on factors", "Zhang et al.: ... https://...", module=__name__))
    ```
    """
    if not isinstance(family, Family):
        raise ValueError(f"family: got {type(family).__name__} {family!r:.80}; accepted: a lmctr.Family")
    add_family(family)
    try:
        _register(family)
    except (ImportError, AttributeError):  # of a mistyped module; the row may come again
        drop_family(family)
        raise


def _register(family: Family) -> None:
    config, model, for_ctr = map(family.load, ("Config", "Model", "ForCTR"))
    processor = load_target(family.processor)
    AutoConfig.register(family.model_type, config)
    AutoModel.register(config, model)
    AutoModelForCTR.register(config, for_ctr)
    AutoProcessor.register(config, processor)
    if issubclass(processor, FeatureExtractionMixin):
        AutoFeatureExtractor.register(config, processor)
    _REGISTERED.add(family.model_type)


def register_all() -> None:
    """Register the families of the table that are not yet; one of another package that cannot be is left out with a warning."""
    for family in families():
        try:
            if family.model_type not in _REGISTERED:
                _register(family)
        except Exception as error:
            if family.module is None:
                raise
            drop_family(family)
            warnings.warn(
                f"the model family {family.model_type!r} ({family.module}) is left out: {error}", stacklevel=2
            )


register_all()
