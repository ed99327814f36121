"""Looking into trained models: attention, effective rank, field pairs, and pictures of them.

The functions `effective_rank` and `field_interactions` are in the modules of their names.
"""

from .attention import AttentionMap, SinkAttention, attention_map, sink_attention, token_labels
from .effective_rank import EffectiveRanks, measure_effective_rank
from .field_interactions import FieldInteractions
from .generalization import BoundTerms, bound_terms, projection_parameters
from .importance import Importance, column_importance

__all__ = [
    "AttentionMap",
    "BoundTerms",
    "EffectiveRanks",
    "FieldInteractions",
    "Importance",
    "SinkAttention",
    "attention_map",
    "bound_terms",
    "column_importance",
    "measure_effective_rank",
    "projection_parameters",
    "sink_attention",
    "token_labels",
]
