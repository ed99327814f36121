"""Looking into trained models: attention, effective rank, field pairs, and pictures of them.

The functions `effective_rank` and `field_interactions` are in the modules of their names.
"""

from .attention import AttentionMap, SinkAttention, attention_map, sink_attention, token_labels
from .effective_rank import EffectiveRanks, measure_effective_rank
from .field_interactions import FieldInteractions
from .generalization import BoundTerms, bound_terms, projection_parameters

__all__ = [
    "AttentionMap",
    "BoundTerms",
    "EffectiveRanks",
    "FieldInteractions",
    "SinkAttention",
    "attention_map",
    "bound_terms",
    "measure_effective_rank",
    "projection_parameters",
    "sink_attention",
    "token_labels",
]
