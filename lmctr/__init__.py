"""lmctr: click-through-rate prediction for Hugging Face Transformers.

Importing the package registers its model families with transformers' Auto classes.
"""

__version__ = "0.1.0"

from .auto import AutoModelForCTR, list_models
from .modeling_outputs import CTROutput
from .models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
from .models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR, CTRSinkModel, CTRSinkPreTrainedModel
from .models.ctr_sink.processing_ctr_sink import CTRSinkProcessor

__all__ = [
    "AutoModelForCTR",
    "CTROutput",
    "CTRSinkConfig",
    "CTRSinkForCTR",
    "CTRSinkModel",
    "CTRSinkPreTrainedModel",
    "CTRSinkProcessor",
    "__version__",
    "list_models",
]
