"""Request scoring: one user's candidates by the fastest exact path that a model has, user states that are kept, requests of many
callers in batches, and retrieval models split into user and ad."""

from .batching import Batcher
from .kept_states import KeptStates
from .registry import RequestScorer, register_scorer, scorer_for
from .retrieval_split import SplitRetrievalModel, split_first_layer
from .scoring import score
from .statistics import RequestStatistics
from .user_state import UserState

__all__ = [
    "Batcher",
    "KeptStates",
    "RequestScorer",
    "RequestStatistics",
    "SplitRetrievalModel",
    "UserState",
    "register_scorer",
    "score",
    "scorer_for",
    "split_first_layer",
]
