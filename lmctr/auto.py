"""The Auto classes of the library: the only place that registers anything, from one literal table."""

from collections import OrderedDict

from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor, FeatureExtractionMixin
from transformers.models.auto.auto_factory import _BaseAutoModelClass, _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.processors.impressions import ImpressionProcessor
from lmctr.data.processors.sequence import SequenceProcessor

from .models.astro.configuration_astro import ASTROConfig
from .models.astro.modeling_astro import ASTROForCTR, ASTROModel
from .models.autoint.configuration_autoint import AutoIntConfig
from .models.autoint.modeling_autoint import AutoIntForCTR, AutoIntModel
from .models.behavior_transformer.configuration_behavior_transformer import BehaviorTransformerConfig
from .models.behavior_transformer.modeling_behavior_transformer import (
    BehaviorTransformerForCTR,
    BehaviorTransformerModel,
)
from .models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
from .models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR, CTRSinkModel
from .models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from .models.dcnv2.configuration_dcnv2 import DCNv2Config
from .models.dcnv2.modeling_dcnv2 import DCNv2ForCTR, DCNv2Model
from .models.deepfm.configuration_deepfm import DeepFMConfig
from .models.deepfm.modeling_deepfm import DeepFMForCTR, DeepFMModel
from .models.din.configuration_din import DINConfig
from .models.din.modeling_din import DINForCTR, DINModel
from .models.dlrm_twin.configuration_dlrm_twin import DLRMTwinConfig
from .models.dlrm_twin.modeling_dlrm_twin import DLRMTwinForCTR, DLRMTwinModel
from .models.dnn.configuration_dnn import DNNConfig
from .models.dnn.modeling_dnn import DNNForCTR, DNNModel
from .models.fat.configuration_fat import FATConfig
from .models.fat.modeling_fat import FATForCTR, FATModel
from .models.ffm.configuration_ffm import FFMConfig
from .models.ffm.modeling_ffm import FFMForCTR, FFMModel
from .models.hiformer.configuration_hiformer import HiFormerConfig
from .models.hiformer.modeling_hiformer import HiFormerForCTR, HiFormerModel
from .models.hstu.configuration_hstu import HSTUConfig
from .models.hstu.modeling_hstu import HSTUForCTR, HSTUModel
from .models.rank_elastor.configuration_rank_elastor import RankElastorConfig
from .models.rank_elastor.modeling_rank_elastor import RankElastorForCTR, RankElastorModel
from .models.rank_mixer.configuration_rank_mixer import RankMixerConfig
from .models.rank_mixer.modeling_rank_mixer import RankMixerForCTR, RankMixerModel
from .models.retrieval_mlp.configuration_retrieval_mlp import RetrievalMLPConfig
from .models.retrieval_mlp.modeling_retrieval_mlp import RetrievalMLPForCTR, RetrievalMLPModel
from .models.twin.configuration_twin import TWINConfig
from .models.twin.modeling_twin import TWINForCTR, TWINModel
from .models.two_tower.configuration_two_tower import TwoTowerConfig
from .models.two_tower.modeling_two_tower import TwoTowerForCTR, TwoTowerModel
from .models.wukong.configuration_wukong import WukongConfig
from .models.wukong.modeling_wukong import WukongForCTR, WukongModel
from .models.xdeepfm.configuration_xdeepfm import XDeepFMConfig
from .models.xdeepfm.modeling_xdeepfm import XDeepFMForCTR, XDeepFMModel

__all__ = ["AutoModelForCTR", "list_models"]


class AutoModelForCTR(_BaseAutoModelClass):
    """Loads any CTR model of the library.

    Example:

    ```python
    >>> model = lmctr.AutoModelForCTR.from_pretrained("user/name")
    ```
    """

    _model_mapping = _LazyAutoMapping(CONFIG_MAPPING_NAMES, OrderedDict())


# One row per family: configuration, base model, model with the CTR head, processor.
_FAMILIES = (
    (ASTROConfig, ASTROModel, ASTROForCTR, SequenceProcessor),
    (AutoIntConfig, AutoIntModel, AutoIntForCTR, TabularFeatureProcessor),
    (BehaviorTransformerConfig, BehaviorTransformerModel, BehaviorTransformerForCTR, SequenceProcessor),
    (CTRSinkConfig, CTRSinkModel, CTRSinkForCTR, CTRSinkProcessor),
    (DCNv2Config, DCNv2Model, DCNv2ForCTR, TabularFeatureProcessor),
    (DINConfig, DINModel, DINForCTR, SequenceProcessor),
    (DLRMTwinConfig, DLRMTwinModel, DLRMTwinForCTR, SequenceProcessor),
    (DNNConfig, DNNModel, DNNForCTR, TabularFeatureProcessor),
    (DeepFMConfig, DeepFMModel, DeepFMForCTR, TabularFeatureProcessor),
    (FATConfig, FATModel, FATForCTR, TabularFeatureProcessor),
    (FFMConfig, FFMModel, FFMForCTR, TabularFeatureProcessor),
    (HSTUConfig, HSTUModel, HSTUForCTR, SequenceProcessor),
    (HiFormerConfig, HiFormerModel, HiFormerForCTR, TabularFeatureProcessor),
    (RankElastorConfig, RankElastorModel, RankElastorForCTR, TabularFeatureProcessor),
    (RankMixerConfig, RankMixerModel, RankMixerForCTR, TabularFeatureProcessor),
    (RetrievalMLPConfig, RetrievalMLPModel, RetrievalMLPForCTR, ImpressionProcessor),
    (TWINConfig, TWINModel, TWINForCTR, SequenceProcessor),
    (TwoTowerConfig, TwoTowerModel, TwoTowerForCTR, ImpressionProcessor),
    (WukongConfig, WukongModel, WukongForCTR, TabularFeatureProcessor),
    (XDeepFMConfig, XDeepFMModel, XDeepFMForCTR, TabularFeatureProcessor),
)


def list_models() -> list[str]:
    """The `model_type` of every family of the library, sorted."""
    return sorted(config.model_type for config, *_ in _FAMILIES)


def _register() -> None:
    for config, base, ctr, processor in _FAMILIES:
        AutoConfig.register(config.model_type, config)
        AutoModel.register(config, base)
        AutoModelForCTR.register(config, ctr)
        if processor is not None:
            AutoProcessor.register(config, processor)
        if processor is not None and issubclass(processor, FeatureExtractionMixin):
            AutoFeatureExtractor.register(config, processor)


_register()
