"""Options of `lmctr analyze`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmctr.utils.options import DEVICE, given, option

_RUN = "run folder; or another folder that from_pretrained loads or a Hub id (user/name[@revision]), with --data.name and what else its data need"
_FAT = "run folder, another folder that from_pretrained loads, or a Hub id (user/name[@revision])"
_NO_PLOTS = "write numbers only; matplotlib is not needed"


@dataclass(kw_only=True)
class AnalysisOptions:
    """Where what was found is written; `overrides` are (dotted recipe key, YAML text) pairs."""

    output: str | None = option(
        "folder to write to (default: analysis/ in the first RUN; of a Hub id ./NAME-analysis)", None, metavar="DIR"
    )
    overrides: Sequence[tuple[str, str]] = given(())
    command: str = given("")


@dataclass(kw_only=True)
class SampleOptions(AnalysisOptions):
    """Which samples are read, and how."""

    split: str = option("part of the data", "test", choices=("train", "validation", "test"))
    num_samples: int = option("samples, drawn at random", 2048, metavar="N")
    seed: int = option("seed of that draw", 0)
    batch_size: int = option("samples at a time", 512, metavar="B")
    device: str | None = option(DEVICE, None)


@dataclass(kw_only=True)
class RunsOptions(SampleOptions):
    """Runs that are compared."""

    runs: list[str] = option(_RUN, positional=True, metavar="RUN")
    no_plots: bool = option(_NO_PLOTS, False)


@dataclass(kw_only=True)
class AttentionOptions(RunsOptions):
    """Attention of CTR-Sink runs by layer: the share that goes to sinks (Eq. 7) and from sinks to sinks (Eq. 8), a heat map of one
    sample, and curves that compare runs. Writes attention.json, attention.csv, attention_map.png and attention_layers.png; with several
    runs attention_comparison.json and so on, with one map per run."""

    num_samples: int = option("samples, drawn at random", 64, metavar="N")
    sample: int | None = option(
        "which of the drawn samples the map shows, from 0 (default: the first one with sinks)", None, metavar="K"
    )
    layer: int | None = option("layer of the map, 0 = first, -1 = last (default: mean over layers)", None, metavar="L")
    head: int | None = option("head of the map (default: mean over heads)", None, metavar="H")
    batch_size: int = option("samples at a time", 8, metavar="B")


@dataclass(kw_only=True)
class BehaviorsOptions(RunsOptions):
    """Share of the candidates' attention that falls on each behaviour type, by layer and block, beside the share of events of that type.
    Give an ASTRO run and a behavior_transformer run of the same data to compare them. Writes behaviors.json, behaviors.csv and
    behaviors.png; with several runs behaviors_comparison.json and so on."""

    num_samples: int = option("samples, drawn at random", 1024, metavar="N")
    batch_size: int = option("samples at a time", 32, metavar="B")


@dataclass(kw_only=True)
class ImportanceOptions(RunsOptions):
    """What a model's answers hang on: the AUC and log loss of samples as they are, and with one column, statistic, the item or the whole history
    shuffled among them. Of two things that say the same neither is worth much. Writes importance.json, importance.csv and importance.png; with several
    runs importance_comparison.json and so on, with a picture per run."""

    batch_size: int = option("samples at a time", 128, metavar="B")
    top: int = option("lines printed", 20, metavar="N")


@dataclass(kw_only=True)
class NextOptions(AnalysisOptions):
    """How much of what users took next stands in the lists of a run: all items that somebody met are ranked for each user of a part of the log, at the
    second of the first sample there; recall, NDCG and hit rate beside the most clicked items, and item-to-item cosines. Writes next.json and next.csv;
    with several runs next_comparison.json and so on."""

    runs: list[str] = option(
        "folder of a run whose data are a log of users, items and times", positional=True, metavar="RUN"
    )
    split: str = option("part of the data", "test", choices=("train", "validation", "test"))
    top: int = option("items in a list", 10, metavar="N")
    seen: bool = option("rank items too that a user has met before: where people come back to things", False)
    num_users: int = option("users, drawn at random", 1000, metavar="N")
    time: str | None = option(
        "rank for all users at this moment, as the log writes times (default: when each one comes)", None
    )
    log: str | None = option("another file or schema of the run's log, where that has moved", None, metavar="LOG")
    seed: int = option("seed of the draw of users", 0)
    batch_size: int | None = option(
        "pairs of a user and an item per forward pass (default 256; tables: 1024)", None, metavar="B"
    )
    device: str | None = option(DEVICE, None)


@dataclass(kw_only=True)
class RankOptions(RunsOptions):
    """Effective rank of each sample's representation at every stage of tabular runs: mean, interval and distribution. Writes rank.json,
    rank.csv, rank.png (curves), rank_distributions.png; with several runs rank_comparison.json and so on, with distributions per run."""

    kind: str = option("rank in table and plots", "stable", choices=("stable", "entropy"))
    normalized: bool = option("divide by min(T, D) in table and curves", False)


@dataclass(kw_only=True)
class FieldsOptions(AnalysisOptions):
    """The modulation weights w of FAT runs, mean over heads: table by field pair, heat maps, and the pairs that read each other most
    differently. Writes fields.json, fields.csv, fields.png (mean over layers) and fields_layer_N.png."""

    run: str = option(_FAT, positional=True, metavar="RUN")
    layer: int | None = option("0 = first, -1 = last (default: mean over layers)", None, metavar="L")
    no_plots: bool = option(_NO_PLOTS, False)
    top: int = option("rows printed per list", 10, metavar="N")


@dataclass(kw_only=True)
class BoundOptions(SampleOptions):
    """The terms of FAT's Theorem A.1 from the run's norms, layer by layer, and the parameters of field-wise, field-pair and generated
    projections. Writes bound.json."""

    run: str = option(_RUN, positional=True, metavar="RUN")
    num_samples: int = option("samples, drawn at random, whose largest norm is R", 2048, metavar="N")
