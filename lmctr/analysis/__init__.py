"""Looking into trained models: where attention goes, and pictures of it."""

from .attention import AttentionMap, SinkAttention, attention_map, sink_attention, token_labels

__all__ = ["AttentionMap", "SinkAttention", "attention_map", "sink_attention", "token_labels"]
