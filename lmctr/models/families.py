"""The model families: one row each. Nothing else in the package lists them.

A row is all that the package must know of a family besides its classes: by it the Auto classes, `import lmctr`, recipes, predictions,
serving, benchmarks and model cards find it. A family of another package joins by an entry point of the group `lmctr.families`, or by
[`~lmctr.register_family`].
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from lmctr.utils.lazy import load_target
from lmctr.utils.suggest import did_you_mean

DEFAULT_FAMILY = "ctr_sink"
"""The family of a recipe that names none."""

CLASSES = ("Config", "PreTrainedModel", "Model", "ForCTR")
"""What follows the stem in the names of a family's four classes."""


@dataclass(frozen=True)
class Input:
    """A kind of input that families share.

    Args:
        processor: "module:class" of what turns raw data into it.
        scorer: "module:class" of the [`~lmctr.serving.registry.RequestScorer`] of a family that names none; None where one user's
            candidates share nothing.
        files: names of the files that the processor, the model or a run may write beside the configurations, weights and tokenizer.
    """

    processor: str
    scorer: str | None = None
    files: tuple[str, ...] = ()


_TABLE_FILES = ("tabular_vocabularies.parquet", "tabular_numbers.safetensors")
ITEM_STATISTICS = "item_statistics.parquet"


INPUTS = {
    "text": Input(
        "lmctr.models.ctr_sink.processing_ctr_sink:CTRSinkProcessor",
        "lmctr.serving.ctr_sink:CTRSinkScorer",
        (ITEM_STATISTICS, "field_vectors.safetensors"),
    ),
    "tabular": Input(
        "lmctr.data.features.processor:TabularFeatureProcessor",
        "lmctr.serving.tables:TableScorer",
        (ITEM_STATISTICS, *_TABLE_FILES),
    ),
    "sequence": Input(
        "lmctr.data.processors.sequence:SequenceProcessor",
        "lmctr.serving.events:EventScorer",
        (ITEM_STATISTICS, "sequence_items.parquet", "sequence_features.parquet"),
    ),
    "impressions": Input(
        "lmctr.data.processors.impressions:ImpressionProcessor",
        "lmctr.serving.retrieval:RetrievalScorer",
        tuple(side + name for side in ("user_", "ad_") for name in _TABLE_FILES),
    ),
}


@dataclass(frozen=True)
class Family:
    """A model family.

    Args:
        model_type: its name in recipes and in `config.json`.
        stem: what its class names start with: "DIN" has `DINConfig`, `DINPreTrainedModel`, `DINModel` and `DINForCTR`.
        input: the kind of input, a key of `INPUTS`.
        says: what the model is, in a phrase.
        paper: citation, which ends with the address.
        title: its name in prose; default the stem.
        scorer: "module:class" of its request scorer; default that of the kind of input.
        module: the module that holds its classes; default `lmctr.models.<model_type>.modeling_<model_type>`, with the configuration
            in `configuration_<model_type>`.
        starts: whether `lmctr init` writes a first recipe of it.
        starting: configuration values of a recipe made for a data file, where the defaults do not go with every number of fields.
        benchmark: configuration values that `lmctr benchmark tabular` measures it with; its other keys have their defaults.
        peers: other libraries that have it too, for `lmctr benchmark peers`; keys of `lmctr.benchmarks.options.PEERS`.
        files: names of the files that its model writes into a run's folder by `save_beside`, where its kind of input does not name them:
            `lmctr push` shares them.
    """

    model_type: str
    stem: str
    input: str
    says: str
    paper: str
    title: str = ""
    scorer: str | None = None
    module: str | None = None
    starts: bool = False
    starting: Mapping[str, Any] = field(default_factory=dict)
    benchmark: Mapping[str, Any] = field(default_factory=dict)
    peers: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.input, str) or self.input not in INPUTS:
            raise ValueError(f"family {self.model_type!r}: input is {self.input!r}, accepted: {', '.join(INPUTS)}")
        object.__setattr__(self, "title", self.title or self.stem)
        object.__setattr__(self, "scorer", self.scorer or INPUTS[self.input].scorer)

    @property
    def url(self) -> str:
        """The paper's address."""
        return self.paper.rpartition(" ")[2]

    @property
    def packages(self) -> tuple[str, ...]:
        """What pip knows the package by that brings it, where that is an installed one beside lmctr."""
        return _PACKAGES.get(self.model_type, ())

    @property
    def processor(self) -> str:
        """The class of its processor, "module:class"."""
        return INPUTS[self.input].processor

    def load(self, part: str) -> type[Any]:
        """One of its classes: `load("Config")`, `load("ForCTR")`, ..."""
        return load_target(self._target(part))

    def _target(self, part: str) -> str:
        kind = "configuration" if part == "Config" else "modeling"
        module = self.module or f"lmctr.models.{self.model_type}.{kind}_{self.model_type}"
        return f"{module}:{self.stem}{part}"


_PACKAGES: dict[str, tuple[str, ...]] = {}
"""By the families of other installed packages: the name of theirs."""
_MLP = {"hidden_units": [400, 400, 400]}
_CLIMBER = (
    "Xu et al.: An Efficient Large Recommendation Model: Towards a Resource-Optimal Scaling Law (Climber). "
    "https://arxiv.org/abs/2502.09888"
)
_RETRIEVAL = "Scaling Laws for Online Advertisement Retrieval. https://arxiv.org/abs/2411.13322"

_FAMILIES = [
    Family(
        "ctr_sink",
        "CTRSink",
        "text",
        "a language model that reads a user's history as text, with attention sinks between behaviours",
        "CTR-Sink: Behavior-Level Attention Sink for Language Models in Click-Through Rate Prediction. https://arxiv.org/abs/2508.03668",
        title="CTR-Sink",
        starts=True,
    ),
    Family(
        "dnn",
        "DNN",
        "tabular",
        "field embeddings side by side into an MLP",
        "Cheng et al.: Wide & Deep Learning for Recommender Systems (the deep part). https://arxiv.org/abs/1606.07792",
        benchmark=_MLP,
        peers=("fuxictr",),
    ),
    Family(
        "ffm",
        "FFM",
        "tabular",
        "a latent vector per value and other field, products of all pairs of fields, and first-order weights",
        "Juan et al.: Field-aware Factorization Machines for CTR Prediction. RecSys 2016. https://doi.org/10.1145/2959100.2959134",
        benchmark={"embedding_dim": 4},
    ),
    Family(
        "deepfm",
        "DeepFM",
        "tabular",
        "a factorisation machine and an MLP on shared embeddings",
        "Guo et al.: DeepFM: A Factorization-Machine based Neural Network for CTR Prediction. https://arxiv.org/abs/1703.04247",
        starts=True,
        benchmark=_MLP,
        peers=("fuxictr", "deepctr", "rechub"),
    ),
    Family(
        "xdeepfm",
        "XDeepFM",
        "tabular",
        "a compressed interaction network, an MLP and a linear part",
        "Lian et al.: xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems. https://arxiv.org/abs/1803.05170",
        title="xDeepFM",
        benchmark=_MLP,
        peers=("fuxictr",),
    ),
    Family(
        "autoint",
        "AutoInt",
        "tabular",
        "multi-head self-attention over the fields",
        "Song et al.: AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks. https://arxiv.org/abs/1810.11921",
        peers=("fuxictr",),
    ),
    Family(
        "dcnv2",
        "DCNv2",
        "tabular",
        "cross layers and an MLP",
        "Wang et al.: DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems. https://arxiv.org/abs/2008.13535",
        title="DCN-V2",
        benchmark=_MLP,
        peers=("fuxictr", "deepctr", "rechub"),
    ),
    Family(
        "wukong",
        "Wukong",
        "tabular",
        "stacked factorisation-machine and linear-compression blocks",
        "Zhang et al.: Wukong: Towards a Scaling Law for Large-Scale Recommendation. https://arxiv.org/abs/2403.02545",
    ),
    Family(
        "hiformer",
        "HiFormer",
        "tabular",
        "heterogeneous attention over fields with composite projections",
        "Gui et al.: Hiformer: Heterogeneous Feature Interactions Learning with Transformers for Recommender Systems. https://arxiv.org/abs/2311.05884",
    ),
    Family(
        "fat",
        "FAT",
        "tabular",
        "a Transformer over fields, whose projections depend on the field and whose scores on the pair of fields",
        "From Scaling to Structured Expressivity: Rethinking Transformers for CTR Prediction. https://arxiv.org/abs/2511.12081",
    ),
    # Token mixers cut the flat vector of the fields into tokens, so the width that a benchmark gives them follows from fields, tokens and
    # token width: 39 fields x 10 = 15 tokens x 26.
    Family(
        "rank_mixer",
        "RankMixer",
        "tabular",
        "multi-head token mixing by transposition and an MLP per token",
        "Zhu et al.: RankMixer: Scaling Up Ranking Models in Industrial Recommenders. https://arxiv.org/abs/2507.15551",
        starting={"num_tokens": 8},  # of an embedding_dim of 8 or 16
        benchmark={"embedding_dim": 10, "num_tokens": 26, "token_dim": 26},
        peers=("authors",),
    ),
    Family(
        "rank_elastor",
        "RankElastor",
        "tabular",
        "full mixing of tokens and gated MLPs per token, which keep the effective rank of the representations",
        "Expand More, Shrink Less: Shaping Effective-Rank Dynamics for Dense Scaling in Recommendation. https://arxiv.org/abs/2605.23191",
        starting={"num_tokens": 8},
        benchmark={"embedding_dim": 10, "num_tokens": 15, "token_dim": 26},
        peers=("authors",),
    ),
    Family(
        "astro",
        "ASTRO",
        "sequence",
        "a block per extraction strategy over the lifetime, adaptive Transformer layers and bit-wise gating fusion",
        _CLIMBER,
        scorer="lmctr.serving.astro:ASTROScorer",
    ),
    Family(
        "din",
        "DIN",
        "sequence",
        "local activation units between the candidate and each event",
        "Zhou et al.: Deep Interest Network for Click-Through Rate Prediction. https://arxiv.org/abs/1706.06978",
        starts=True,
    ),
    Family(
        "twin",
        "TWIN",
        "sequence",
        "one target attention for the search in long histories and for what is found",
        "Chang et al.: TWIN: TWo-stage Interest Network for Lifelong User Behavior Modeling in CTR Prediction at Kuaishou. https://arxiv.org/abs/2302.02352",
    ),
    Family(
        "dlrm_twin",
        "DLRMTwin",
        "sequence",
        "TWIN's interest vector, statistics of the history and an MLP",
        f"The DLRM of {_CLIMBER}",
        title="DLRM with TWIN",
    ),
    Family(
        "behavior_transformer",
        "BehaviorTransformer",
        "sequence",
        "one causal Transformer over the latest events and the candidate",
        "After Chen et al.: Behavior Sequence Transformer for E-commerce Recommendation in Alibaba. https://arxiv.org/abs/1905.06874",
        scorer="lmctr.serving.events:CachedEventScorer",
    ),
    Family(
        "hstu",
        "HSTU",
        "sequence",
        "pointwise SiLU attention with relative bias over items and actions in turn, in its ranking form",
        "Zhai et al.: Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative Recommendations. https://arxiv.org/abs/2402.17152",
        scorer="lmctr.serving.events:CachedEventScorer",
    ),
    Family("retrieval_mlp", "RetrievalMLP", "impressions", "an MLP on the features of a user and an ad", _RETRIEVAL),
    Family("two_tower", "TwoTower", "impressions", "the inner product of a user's and an ad's tower", _RETRIEVAL),
]


ELSEWHERE = "A family of another package is there once that package is installed, or its row was given to lmctr.register_family"


def families(input: str | None = None) -> tuple[Family, ...]:
    """All families, or those of one kind of input, in the order in which messages list them."""
    return tuple(family for family in _FAMILIES if input in (None, family.input))


def side_files() -> frozenset[str]:
    """Names of all files of a model that processors, models and runs may write beside configurations, weights and tokenizer."""
    kinds = (name for kind in INPUTS.values() for name in kind.files)
    return frozenset((*kinds, *(name for family in families() for name in family.files)))


def family_of(model_type: str) -> Family:
    """The row of a family.

    Raises:
        ValueError: no family of this name; the message offers the nearest.
    """
    known = {family.model_type: family for family in _FAMILIES}
    if model_type not in known:
        hint = did_you_mean(str(model_type), known, "did you mean")
        names = ", ".join(known)
        raise ValueError(f"no model family {model_type!r};{hint} families: {names}{'' if hint else f'. {ELSEWHERE}'}")
    return known[model_type]


def add_family(family: Family) -> None:
    """Put a row into the table; [`~lmctr.register_family`] does this and tells the Auto classes.

    Raises:
        ValueError: its name or its class names are taken by another family.
    """
    for other in _FAMILIES:
        if other != family and (other.model_type == family.model_type or other.stem == family.stem):
            raise ValueError(
                f"family {family.model_type!r} ({family.stem}): {other.model_type!r} ({other.stem}) is in the table already; "
                "give it a model_type and a stem of its own"
            )
    if family not in _FAMILIES:
        _FAMILIES.append(family)


def drop_family(family: Family) -> None:
    """Take a row out of the table again."""
    _FAMILIES.remove(family)


def add_installed() -> None:
    """Add the families of other installed packages: what their entry points of the group `lmctr.families` name, a [`Family`] each. One that
    cannot be added is a warning."""
    for entry in entry_points(group="lmctr.families"):
        try:
            add_family(family := entry.load())
            _PACKAGES[family.model_type] = (entry.dist.name,)
        except Exception as error:  # another package's fault must not end this one
            warnings.warn(f"the model family {entry.name!r} ({entry.value}) is left out: {error}", stacklevel=2)


def public_classes() -> dict[str, str]:
    """Name of every class of every family, and the "module:class" that it is."""
    return {f"{family.stem}{part}": family._target(part) for family in _FAMILIES for part in CLASSES}
