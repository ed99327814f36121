"""lmctr: click-through-rate prediction for Hugging Face Transformers.

Importing the package registers its model families with transformers' Auto classes.
"""

__version__ = "0.1.0"

from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.processors.impressions import ImpressionProcessor
from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.models.common.outputs import CTROutput

from .auto import AutoModelForCTR, list_models
from .models.astro.configuration_astro import ASTROConfig
from .models.astro.modeling_astro import ASTROForCTR, ASTROModel, ASTROPreTrainedModel
from .models.autoint.configuration_autoint import AutoIntConfig
from .models.autoint.modeling_autoint import AutoIntForCTR, AutoIntModel, AutoIntPreTrainedModel
from .models.behavior_transformer.configuration_behavior_transformer import BehaviorTransformerConfig
from .models.behavior_transformer.modeling_behavior_transformer import (
    BehaviorTransformerForCTR,
    BehaviorTransformerModel,
    BehaviorTransformerPreTrainedModel,
)
from .models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
from .models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR, CTRSinkModel, CTRSinkPreTrainedModel
from .models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from .models.dcnv2.configuration_dcnv2 import DCNv2Config
from .models.dcnv2.modeling_dcnv2 import DCNv2ForCTR, DCNv2Model, DCNv2PreTrainedModel
from .models.deepfm.configuration_deepfm import DeepFMConfig
from .models.deepfm.modeling_deepfm import DeepFMForCTR, DeepFMModel, DeepFMPreTrainedModel
from .models.din.configuration_din import DINConfig
from .models.din.modeling_din import DINForCTR, DINModel, DINPreTrainedModel
from .models.dlrm_twin.configuration_dlrm_twin import DLRMTwinConfig
from .models.dlrm_twin.modeling_dlrm_twin import DLRMTwinForCTR, DLRMTwinModel, DLRMTwinPreTrainedModel
from .models.dnn.configuration_dnn import DNNConfig
from .models.dnn.modeling_dnn import DNNForCTR, DNNModel, DNNPreTrainedModel
from .models.fat.configuration_fat import FATConfig
from .models.fat.modeling_fat import FATForCTR, FATModel, FATPreTrainedModel
from .models.ffm.configuration_ffm import FFMConfig
from .models.ffm.modeling_ffm import FFMForCTR, FFMModel, FFMPreTrainedModel
from .models.hiformer.configuration_hiformer import HiFormerConfig
from .models.hiformer.modeling_hiformer import HiFormerForCTR, HiFormerModel, HiFormerPreTrainedModel
from .models.hstu.configuration_hstu import HSTUConfig
from .models.hstu.modeling_hstu import HSTUForCTR, HSTUModel, HSTUPreTrainedModel
from .models.rank_elastor.configuration_rank_elastor import RankElastorConfig
from .models.rank_elastor.modeling_rank_elastor import (
    RankElastorForCTR,
    RankElastorModel,
    RankElastorPreTrainedModel,
)
from .models.rank_mixer.configuration_rank_mixer import RankMixerConfig
from .models.rank_mixer.modeling_rank_mixer import RankMixerForCTR, RankMixerModel, RankMixerPreTrainedModel
from .models.retrieval_mlp.configuration_retrieval_mlp import RetrievalMLPConfig
from .models.retrieval_mlp.modeling_retrieval_mlp import (
    RetrievalMLPForCTR,
    RetrievalMLPModel,
    RetrievalMLPPreTrainedModel,
)
from .models.twin.configuration_twin import TWINConfig
from .models.twin.modeling_twin import TWINForCTR, TWINModel, TWINPreTrainedModel
from .models.two_tower.configuration_two_tower import TwoTowerConfig
from .models.two_tower.modeling_two_tower import TwoTowerForCTR, TwoTowerModel, TwoTowerPreTrainedModel
from .models.wukong.configuration_wukong import WukongConfig
from .models.wukong.modeling_wukong import WukongForCTR, WukongModel, WukongPreTrainedModel
from .models.xdeepfm.configuration_xdeepfm import XDeepFMConfig
from .models.xdeepfm.modeling_xdeepfm import XDeepFMForCTR, XDeepFMModel, XDeepFMPreTrainedModel

__all__ = [
    "ASTROConfig",
    "ASTROForCTR",
    "ASTROModel",
    "ASTROPreTrainedModel",
    "AutoIntConfig",
    "AutoIntForCTR",
    "AutoIntModel",
    "AutoIntPreTrainedModel",
    "AutoModelForCTR",
    "BehaviorTransformerConfig",
    "BehaviorTransformerForCTR",
    "BehaviorTransformerModel",
    "BehaviorTransformerPreTrainedModel",
    "CTROutput",
    "CTRSinkConfig",
    "CTRSinkForCTR",
    "CTRSinkModel",
    "CTRSinkPreTrainedModel",
    "CTRSinkProcessor",
    "DCNv2Config",
    "DCNv2ForCTR",
    "DCNv2Model",
    "DCNv2PreTrainedModel",
    "DINConfig",
    "DINForCTR",
    "DINModel",
    "DINPreTrainedModel",
    "DLRMTwinConfig",
    "DLRMTwinForCTR",
    "DLRMTwinModel",
    "DLRMTwinPreTrainedModel",
    "DNNConfig",
    "DNNForCTR",
    "DNNModel",
    "DNNPreTrainedModel",
    "DeepFMConfig",
    "DeepFMForCTR",
    "DeepFMModel",
    "DeepFMPreTrainedModel",
    "FATConfig",
    "FATForCTR",
    "FATModel",
    "FATPreTrainedModel",
    "FFMConfig",
    "FFMForCTR",
    "FFMModel",
    "FFMPreTrainedModel",
    "HSTUConfig",
    "HSTUForCTR",
    "HSTUModel",
    "HSTUPreTrainedModel",
    "HiFormerConfig",
    "HiFormerForCTR",
    "HiFormerModel",
    "HiFormerPreTrainedModel",
    "ImpressionProcessor",
    "RankElastorConfig",
    "RankElastorForCTR",
    "RankElastorModel",
    "RankElastorPreTrainedModel",
    "RankMixerConfig",
    "RankMixerForCTR",
    "RankMixerModel",
    "RankMixerPreTrainedModel",
    "RetrievalMLPConfig",
    "RetrievalMLPForCTR",
    "RetrievalMLPModel",
    "RetrievalMLPPreTrainedModel",
    "SequenceProcessor",
    "TWINConfig",
    "TWINForCTR",
    "TWINModel",
    "TWINPreTrainedModel",
    "TabularFeatureProcessor",
    "TwoTowerConfig",
    "TwoTowerForCTR",
    "TwoTowerModel",
    "TwoTowerPreTrainedModel",
    "WukongConfig",
    "WukongForCTR",
    "WukongModel",
    "WukongPreTrainedModel",
    "XDeepFMConfig",
    "XDeepFMForCTR",
    "XDeepFMModel",
    "XDeepFMPreTrainedModel",
    "__version__",
    "list_models",
]
