"""Request scoring: one user's candidates by the fastest exact path that a model has, and user states that are kept."""

from .registry import RequestScorer, register_scorer, scorer_for
from .scoring import score
from .user_state import UserState

__all__ = ["RequestScorer", "UserState", "register_scorer", "score", "scorer_for"]
