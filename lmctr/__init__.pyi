from lmctr import analysis as analysis
from lmctr import auto as auto
from lmctr import benchmarks as benchmarks
from lmctr import data as data
from lmctr import evaluation as evaluation
from lmctr import hub as hub
from lmctr import models as models
from lmctr import runs as runs
from lmctr import scaling as scaling
from lmctr import serving as serving
from lmctr import studies as studies
from lmctr import training as training
from lmctr.auto import AutoModelForCTR as AutoModelForCTR
from lmctr.auto import list_models as list_models
from lmctr.auto import register_family as register_family
from lmctr.data.features.processor import TabularFeatureProcessor as TabularFeatureProcessor
from lmctr.data.processors.impressions import ImpressionProcessor as ImpressionProcessor
from lmctr.data.processors.sequence import SequenceProcessor as SequenceProcessor
from lmctr.models.astro.configuration_astro import ASTROConfig as ASTROConfig
from lmctr.models.astro.modeling_astro import ASTROForCTR as ASTROForCTR
from lmctr.models.astro.modeling_astro import ASTROModel as ASTROModel
from lmctr.models.astro.modeling_astro import ASTROPreTrainedModel as ASTROPreTrainedModel
from lmctr.models.autoint.configuration_autoint import AutoIntConfig as AutoIntConfig
from lmctr.models.autoint.modeling_autoint import AutoIntForCTR as AutoIntForCTR
from lmctr.models.autoint.modeling_autoint import AutoIntModel as AutoIntModel
from lmctr.models.autoint.modeling_autoint import AutoIntPreTrainedModel as AutoIntPreTrainedModel
from lmctr.models.behavior_transformer.configuration_behavior_transformer import (
    BehaviorTransformerConfig as BehaviorTransformerConfig,
)
from lmctr.models.behavior_transformer.modeling_behavior_transformer import (
    BehaviorTransformerForCTR as BehaviorTransformerForCTR,
)
from lmctr.models.behavior_transformer.modeling_behavior_transformer import (
    BehaviorTransformerModel as BehaviorTransformerModel,
)
from lmctr.models.behavior_transformer.modeling_behavior_transformer import (
    BehaviorTransformerPreTrainedModel as BehaviorTransformerPreTrainedModel,
)
from lmctr.models.common.outputs import CTROutput as CTROutput
from lmctr.models.ctr_sink.configuration_ctr_sink import CTRSinkConfig as CTRSinkConfig
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR as CTRSinkForCTR
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkModel as CTRSinkModel
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkPreTrainedModel as CTRSinkPreTrainedModel
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor as CTRSinkProcessor
from lmctr.models.dcnv2.configuration_dcnv2 import DCNv2Config as DCNv2Config
from lmctr.models.dcnv2.modeling_dcnv2 import DCNv2ForCTR as DCNv2ForCTR
from lmctr.models.dcnv2.modeling_dcnv2 import DCNv2Model as DCNv2Model
from lmctr.models.dcnv2.modeling_dcnv2 import DCNv2PreTrainedModel as DCNv2PreTrainedModel
from lmctr.models.deepfm.configuration_deepfm import DeepFMConfig as DeepFMConfig
from lmctr.models.deepfm.modeling_deepfm import DeepFMForCTR as DeepFMForCTR
from lmctr.models.deepfm.modeling_deepfm import DeepFMModel as DeepFMModel
from lmctr.models.deepfm.modeling_deepfm import DeepFMPreTrainedModel as DeepFMPreTrainedModel
from lmctr.models.din.configuration_din import DINConfig as DINConfig
from lmctr.models.din.modeling_din import DINForCTR as DINForCTR
from lmctr.models.din.modeling_din import DINModel as DINModel
from lmctr.models.din.modeling_din import DINPreTrainedModel as DINPreTrainedModel
from lmctr.models.dlrm_twin.configuration_dlrm_twin import DLRMTwinConfig as DLRMTwinConfig
from lmctr.models.dlrm_twin.modeling_dlrm_twin import DLRMTwinForCTR as DLRMTwinForCTR
from lmctr.models.dlrm_twin.modeling_dlrm_twin import DLRMTwinModel as DLRMTwinModel
from lmctr.models.dlrm_twin.modeling_dlrm_twin import DLRMTwinPreTrainedModel as DLRMTwinPreTrainedModel
from lmctr.models.dnn.configuration_dnn import DNNConfig as DNNConfig
from lmctr.models.dnn.modeling_dnn import DNNForCTR as DNNForCTR
from lmctr.models.dnn.modeling_dnn import DNNModel as DNNModel
from lmctr.models.dnn.modeling_dnn import DNNPreTrainedModel as DNNPreTrainedModel
from lmctr.models.families import Family as Family
from lmctr.models.fat.configuration_fat import FATConfig as FATConfig
from lmctr.models.fat.modeling_fat import FATForCTR as FATForCTR
from lmctr.models.fat.modeling_fat import FATModel as FATModel
from lmctr.models.fat.modeling_fat import FATPreTrainedModel as FATPreTrainedModel
from lmctr.models.ffm.configuration_ffm import FFMConfig as FFMConfig
from lmctr.models.ffm.modeling_ffm import FFMForCTR as FFMForCTR
from lmctr.models.ffm.modeling_ffm import FFMModel as FFMModel
from lmctr.models.ffm.modeling_ffm import FFMPreTrainedModel as FFMPreTrainedModel
from lmctr.models.hiformer.configuration_hiformer import HiFormerConfig as HiFormerConfig
from lmctr.models.hiformer.modeling_hiformer import HiFormerForCTR as HiFormerForCTR
from lmctr.models.hiformer.modeling_hiformer import HiFormerModel as HiFormerModel
from lmctr.models.hiformer.modeling_hiformer import HiFormerPreTrainedModel as HiFormerPreTrainedModel
from lmctr.models.hstu.configuration_hstu import HSTUConfig as HSTUConfig
from lmctr.models.hstu.modeling_hstu import HSTUForCTR as HSTUForCTR
from lmctr.models.hstu.modeling_hstu import HSTUModel as HSTUModel
from lmctr.models.hstu.modeling_hstu import HSTUPreTrainedModel as HSTUPreTrainedModel
from lmctr.models.rank_elastor.configuration_rank_elastor import RankElastorConfig as RankElastorConfig
from lmctr.models.rank_elastor.modeling_rank_elastor import RankElastorForCTR as RankElastorForCTR
from lmctr.models.rank_elastor.modeling_rank_elastor import RankElastorModel as RankElastorModel
from lmctr.models.rank_elastor.modeling_rank_elastor import RankElastorPreTrainedModel as RankElastorPreTrainedModel
from lmctr.models.rank_mixer.configuration_rank_mixer import RankMixerConfig as RankMixerConfig
from lmctr.models.rank_mixer.modeling_rank_mixer import RankMixerForCTR as RankMixerForCTR
from lmctr.models.rank_mixer.modeling_rank_mixer import RankMixerModel as RankMixerModel
from lmctr.models.rank_mixer.modeling_rank_mixer import RankMixerPreTrainedModel as RankMixerPreTrainedModel
from lmctr.models.retrieval_mlp.configuration_retrieval_mlp import RetrievalMLPConfig as RetrievalMLPConfig
from lmctr.models.retrieval_mlp.modeling_retrieval_mlp import RetrievalMLPForCTR as RetrievalMLPForCTR
from lmctr.models.retrieval_mlp.modeling_retrieval_mlp import RetrievalMLPModel as RetrievalMLPModel
from lmctr.models.retrieval_mlp.modeling_retrieval_mlp import (
    RetrievalMLPPreTrainedModel as RetrievalMLPPreTrainedModel,
)
from lmctr.models.twin.configuration_twin import TWINConfig as TWINConfig
from lmctr.models.twin.modeling_twin import TWINForCTR as TWINForCTR
from lmctr.models.twin.modeling_twin import TWINModel as TWINModel
from lmctr.models.twin.modeling_twin import TWINPreTrainedModel as TWINPreTrainedModel
from lmctr.models.two_tower.configuration_two_tower import TwoTowerConfig as TwoTowerConfig
from lmctr.models.two_tower.modeling_two_tower import TwoTowerForCTR as TwoTowerForCTR
from lmctr.models.two_tower.modeling_two_tower import TwoTowerModel as TwoTowerModel
from lmctr.models.two_tower.modeling_two_tower import TwoTowerPreTrainedModel as TwoTowerPreTrainedModel
from lmctr.models.wukong.configuration_wukong import WukongConfig as WukongConfig
from lmctr.models.wukong.modeling_wukong import WukongForCTR as WukongForCTR
from lmctr.models.wukong.modeling_wukong import WukongModel as WukongModel
from lmctr.models.wukong.modeling_wukong import WukongPreTrainedModel as WukongPreTrainedModel
from lmctr.models.xdeepfm.configuration_xdeepfm import XDeepFMConfig as XDeepFMConfig
from lmctr.models.xdeepfm.modeling_xdeepfm import XDeepFMForCTR as XDeepFMForCTR
from lmctr.models.xdeepfm.modeling_xdeepfm import XDeepFMModel as XDeepFMModel
from lmctr.models.xdeepfm.modeling_xdeepfm import XDeepFMPreTrainedModel as XDeepFMPreTrainedModel
from lmctr.runs.estimator import CTRClassifier as CTRClassifier
from lmctr.runs.pipeline import ClickPredictionPipeline as ClickPredictionPipeline
from lmctr.training.arguments import CTRTrainingArguments as CTRTrainingArguments
from lmctr.training.trainer import CTRTrainer as CTRTrainer

__version__: str
