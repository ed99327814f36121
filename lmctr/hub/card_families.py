"""What the model card of each family says of the model: a literal table, a row per family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmctr.hub import card_retrieval, card_sequence, card_tabular, card_text
from lmctr.runs.folder import RunFolder

__all__ = ["CardFamily", "card_family"]


@dataclass(frozen=True)
class CardFamily:
    """The parts of a card that depend on the family.

    Args:
        title: the family's name in prose.
        pipeline_tag: task tag of the Hub.
        summary: from the run's folder to one or two sentences on what the model is.
        citation: of the paper.
        facts: from folder and recipe to (title, value) rows.
        usage_note: from folder and recipe to a note below the example.
        limits: from the folder to what the model cannot do.
    """

    title: str
    pipeline_tag: str
    summary: Callable[[RunFolder], str]
    citation: str
    facts: Callable[[RunFolder, dict[str, Any] | None], list[tuple[str, str]]]
    usage_note: Callable[[RunFolder, dict[str, Any] | None], str]
    limits: Callable[[RunFolder], list[str]]
    output: str = "probability = model(**batch).logits.sigmoid()  # one per row"
    promise: str = "its probabilities hold for samples like those only"
    task: str = "Click-through rate prediction"


def _tabular(title: str, what: str, paper: str, url: str) -> CardFamily:
    """A family that reads rows of a table."""
    summary = (
        f"A click-through-rate model for rows of a table: {what}, after [{title}]({url}). It predicts the probability of a "
        "positive response."
    )
    return CardFamily(
        title=title,
        pipeline_tag="tabular-classification",
        summary=lambda folder: summary,
        citation=f"{paper} {url}",
        facts=card_tabular.facts,
        usage_note=card_tabular.usage_note,
        limits=card_tabular.limits,
    )


def _sequence(title: str, what: str, paper: str, url: str) -> CardFamily:
    """A family that reads users' event sequences."""
    summary = (
        f"A click-through-rate model for users' event sequences: {what}, after [{title}]({url}). It predicts the probability of a positive "
        "response to each candidate item."
    )
    return CardFamily(
        title=title,
        pipeline_tag="tabular-classification",
        summary=lambda folder: summary,
        citation=f"{paper} {url}",
        facts=card_sequence.facts,
        usage_note=card_sequence.usage_note,
        limits=card_sequence.limits,
        output="probability = model(**batch).logits.sigmoid()  # (users, candidates); several tasks: one more axis",
    )


_RETRIEVAL_PAPER = "https://arxiv.org/abs/2411.13322"


def _retrieval(title: str, what: str) -> CardFamily:
    """A family that ranks the ads of impressions."""
    summary = f"A model for ad retrieval, {what}, after [Scaling Laws for Online Advertisement Retrieval]({_RETRIEVAL_PAPER})."
    return CardFamily(
        title=title,
        pipeline_tag="tabular-regression",
        summary=lambda folder: (
            f"{summary} It scores the ads of an impression, so that the best ones go on to the next stage."
        ),
        citation=f"Scaling Laws for Online Advertisement Retrieval. {_RETRIEVAL_PAPER}",
        facts=card_retrieval.facts,
        usage_note=card_retrieval.usage_note,
        limits=card_retrieval.limits,
        output="scores = model(**batch).logits  # (impressions, ads), higher is better",
        promise="its order holds for impressions like those only",
        task="Ad retrieval",
    )


_FAMILIES = {
    "ctr_sink": CardFamily(
        title="CTR-Sink",
        pipeline_tag="text-classification",
        summary=card_text.summary,
        citation="CTR-Sink: Behavior-Level Attention Sink for Language Models in Click-Through Rate Prediction. "
        "https://arxiv.org/abs/2508.03668",
        facts=card_text.facts,
        usage_note=card_text.usage_note,
        limits=card_text.limits,
    ),
    "dnn": _tabular(
        "DNN",
        "field embeddings side by side into an MLP",
        "Cheng et al.: Wide & Deep Learning for Recommender Systems (the deep part).",
        "https://arxiv.org/abs/1606.07792",
    ),
    "ffm": _tabular(
        "FFM",
        "a latent vector per value and other field, products of all pairs of fields, and first-order weights",
        "Juan et al.: Field-aware Factorization Machines for CTR Prediction. RecSys 2016.",
        "https://doi.org/10.1145/2959100.2959134",
    ),
    "deepfm": _tabular(
        "DeepFM",
        "a factorisation machine and an MLP on shared embeddings",
        "Guo et al.: DeepFM: A Factorization-Machine based Neural Network for CTR Prediction.",
        "https://arxiv.org/abs/1703.04247",
    ),
    "xdeepfm": _tabular(
        "xDeepFM",
        "a compressed interaction network, an MLP and a linear part",
        "Lian et al.: xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems.",
        "https://arxiv.org/abs/1803.05170",
    ),
    "autoint": _tabular(
        "AutoInt",
        "multi-head self-attention over the fields",
        "Song et al.: AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks.",
        "https://arxiv.org/abs/1810.11921",
    ),
    "dcnv2": _tabular(
        "DCN-V2",
        "cross layers and an MLP",
        "Wang et al.: DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems.",
        "https://arxiv.org/abs/2008.13535",
    ),
    "wukong": _tabular(
        "Wukong",
        "stacked factorisation-machine and linear-compression blocks",
        "Zhang et al.: Wukong: Towards a Scaling Law for Large-Scale Recommendation.",
        "https://arxiv.org/abs/2403.02545",
    ),
    "hiformer": _tabular(
        "HiFormer",
        "heterogeneous attention over fields with composite projections",
        "Gui et al.: Hiformer: Heterogeneous Feature Interactions Learning with Transformers for Recommender Systems.",
        "https://arxiv.org/abs/2311.05884",
    ),
    "fat": _tabular(
        "FAT",
        "a Transformer over fields, whose projections depend on the field and whose scores on the pair of fields",
        "From Scaling to Structured Expressivity: Rethinking Transformers for CTR Prediction.",
        "https://arxiv.org/abs/2511.12081",
    ),
    "retrieval_mlp": _retrieval("RetrievalMLP", "an MLP on the features of a user and an ad"),
    "two_tower": _retrieval("TwoTower", "the inner product of a user's and an ad's tower"),
    "rank_mixer": _tabular(
        "RankMixer",
        "multi-head token mixing by transposition and an MLP per token",
        "Zhu et al.: RankMixer: Scaling Up Ranking Models in Industrial Recommenders.",
        "https://arxiv.org/abs/2507.15551",
    ),
    "rank_elastor": _tabular(
        "RankElastor",
        "full mixing of tokens and gated MLPs per token, which keep the effective rank of the representations",
        "Expand More, Shrink Less: Shaping Effective-Rank Dynamics for Dense Scaling in Recommendation.",
        "https://arxiv.org/abs/2605.23191",
    ),
    "astro": _sequence(
        "ASTRO",
        "a block per extraction strategy over the lifetime, adaptive Transformer layers and bit-wise gating fusion",
        "Xu et al.: An Efficient Large Recommendation Model: Towards a Resource-Optimal Scaling Law (Climber).",
        "https://arxiv.org/abs/2502.09888",
    ),
    "din": _sequence(
        "DIN",
        "local activation units between the candidate and each event",
        "Zhou et al.: Deep Interest Network for Click-Through Rate Prediction.",
        "https://arxiv.org/abs/1706.06978",
    ),
    "twin": _sequence(
        "TWIN",
        "one target attention for the search in long histories and for what is found",
        "Chang et al.: TWIN: TWo-stage Interest Network for Lifelong User Behavior Modeling in CTR Prediction at Kuaishou.",
        "https://arxiv.org/abs/2302.02352",
    ),
    "dlrm_twin": _sequence(
        "DLRM with TWIN",
        "TWIN's interest vector, statistics of the history and an MLP",
        "The DLRM of Xu et al.: An Efficient Large Recommendation Model: Towards a Resource-Optimal Scaling Law (Climber).",
        "https://arxiv.org/abs/2502.09888",
    ),
    "behavior_transformer": _sequence(
        "BehaviorTransformer",
        "one causal Transformer over the latest events and the candidate",
        "After Chen et al.: Behavior Sequence Transformer for E-commerce Recommendation in Alibaba.",
        "https://arxiv.org/abs/1905.06874",
    ),
    "hstu": _sequence(
        "HSTU",
        "pointwise SiLU attention with relative bias over items and actions in turn, in its ranking form",
        "Zhai et al.: Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative Recommendations.",
        "https://arxiv.org/abs/2402.17152",
    ),
}


def card_family(folder: RunFolder) -> CardFamily:
    """The row of a folder's family.

    Raises:
        ValueError: no card is known for its model type.
    """
    if folder.model_type not in _FAMILIES:
        raise ValueError(f"{folder.path}: no card is known for model_type {folder.model_type!r}")
    return _FAMILIES[folder.model_type]
