"""Impression inputs: users and the ads ranked for them, for the retrieval families.

A sample is an impression. Metrics are R/R*, ordered-pair accuracy, NDCG and Recall@m@k (`data.metrics`), the best checkpoint is that of the
largest validation R/R*, and predictions have a row per ad.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from lmctr.data.batches.impressions import ImpressionCollator, ImpressionDataset, ImpressionView
from lmctr.data.features.fields import override_fields
from lmctr.data.impressions.source import ImpressionSource
from lmctr.data.impressions.store import ImpressionStore
from lmctr.data.impressions.validation import validate_impressions
from lmctr.data.processors.impressions import ImpressionProcessor
from lmctr.data.registry import find, load_impressions
from lmctr.evaluation.impression_baselines import impression_baseline_metrics
from lmctr.evaluation.ranking_evaluator import RankingSettings, evaluate_ranking
from lmctr.runs.inputs.base import PARTS, checksum, count_cost
from lmctr.runs.inputs.keys import COMMON_DATA_KEYS, ImpressionDataKeys
from lmctr.runs.inputs.stored import StoredInput

_COST_IMPRESSIONS = 16
_WIDE = 2048  # ads, from which on the losses of pairs take a second or so for an impression on a processor


class ImpressionInput(StoredInput):
    """Impressions with rank index and eCPM, for families of `RetrievalConfig`."""

    data_keys: ClassVar = ImpressionDataKeys
    free_data_keys: ClassVar = (*COMMON_DATA_KEYS, "cache_dir", "baselines", "metrics")
    ranks: ClassVar = True
    training_defaults: ClassVar = {"metric_for_best_model": "eval_revenue_ratio"}
    store_class: ClassVar = ImpressionStore
    view_class: ClassVar = ImpressionView
    features_of_data: ClassVar = "their features"
    set_by_processor: ClassVar = (
        "user_vocab_sizes",
        "user_num_numeric",
        "user_field_names",
        "user_num_sequences",
        "user_sequence_tables",
        "user_sequence_vocab_sizes",
        "ad_vocab_sizes",
        "ad_num_numeric",
        "ad_field_names",
        "processor_fingerprint",
    )
    set_by_processor_hint: ClassVar = "it follows from the data, data.user_features and data.ad_features"

    source: ImpressionSource | None = None
    store: ImpressionStore | None = None

    # ---- the recipe ----

    @cached_property
    def settings(self) -> RankingSettings:
        """What the metrics count."""
        return RankingSettings(**self.data["metrics"])

    @classmethod
    def baseline_data_keys(cls, data: dict[str, Any]) -> tuple[str, ...]:
        return (*super().baseline_data_keys(data), "user_features", "ad_features", "metrics")

    # ---- data ----

    def load(self, scratch: Path | None = None) -> None:
        self.scratch = scratch
        options = self._options("impressions", "path", "split", "fractions", says="takes none; leave it out")
        if "seed" in find(self.data["name"], "impressions").options:
            options.setdefault("seed", self.data["seed"])
        self.source = load_impressions(self.data["name"], **options)

    @property
    def lacks_times(self) -> bool:
        first = next(self.source.blocks(), None)
        return first is not None and first.times is None

    def _new_processor(self) -> ImpressionProcessor:
        data = self.data
        return ImpressionProcessor(
            override_fields(self.source.user_fields, data["user_features"], "data.user_features"),
            override_fields(self.source.ad_fields, data["ad_features"], "data.ad_features"),
        )

    def _check_leaks(self) -> list[str]:
        return validate_impressions(self.store, self.data["allow_leaks"])

    def check(self) -> list[str]:
        """As for every store; then counts what metrics cannot use."""
        lines = super().check()
        for part in PARTS:
            counted = self.store.statistics[part]
            found = [f"{counted[key]:,} {words}" for key, words in _ODD.items() if counted[key]]
            if found:
                lines.append(
                    f"{part}: of {counted['impressions'] + counted['empty']:,} impressions {'; '.join(found)}"
                )
        most = max(int(self.store.counts[self.rows(part)].max()) for part in PARTS[1:])
        if most <= self.settings.m:
            lines.append(
                f"no impression of validation and test has more than {most} ads, of which data.metrics.m lets {self.settings.m} go on: R/R* is 1 "
                f"whatever the scores, and chooses no checkpoint; set data.metrics.m to {max(most // 4, 1)}, say"
            )
        widths, loss = self.store.counts[self.rows("train")].astype(np.int64), self.model_group.get("loss")
        if loss in ("arf", "pairwise") and widths.max() > _WIDE:
            lines.append(
                f"model.loss: {loss} takes time for each pair of ads of an impression: the widest of the train part has {widths.max():,} ads, and an "
                f"epoch {(widths**2).sum():,} pairs; bce and list take time for each ad alone ({widths.sum():,} of them), or part wide impressions, "
                "or leave out more of the ads that lost"
            )
        return lines

    def _check_parts(self, parts: tuple[str, ...]) -> None:
        """Every part has impressions to rank, and those that are measured have revenue."""
        for part in parts:
            rows = self.rows(part)
            if not len(rows):
                raise ValueError(
                    f"the {part} part has no impressions: take other split fractions, or more impressions"
                )
            if (self.store.counts[rows] < 2).all():
                raise ValueError(f"every impression of the {part} part has one ad: there is nothing to rank")
            counted = rows if self.store.weight is None else rows[self.store.weight[rows] > 0]
            if not (self.store.ecpm[ImpressionView(self.store).ads(counted)] > 0).any():
                weighted = "" if self.store.weight is None else " in an impression of a weight above 0"
                raise ValueError(
                    f"the {part} part has no ad with an eCPM above 0{weighted}, so that R/R* is not defined; check the value column, or "
                    "take other split fractions"
                )

    def unknown_counts(self, part: str) -> dict[str, dict[str, int]]:
        return self.store.statistics.get("values by part", {}).get(part, {})

    def dataset(self, part: str) -> MeasuredImpressions:
        return MeasuredImpressions(self.view, self.rows(part), self.settings)

    def collator(self, half_precision: bool) -> Callable[[list], dict]:
        return ImpressionCollator(self.view)

    def describe(self, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        store, processor = self.store, self.store.processor
        rows = {part: self.rows(part) for part in PARTS}
        config = processor.model_config_values()
        ads = {part: int(store.counts[own].sum(dtype=np.int64)) for part, own in rows.items()}
        widths = store.counts[rows["train"]]
        result = {
            "info": store.info.to_dict(),
            "counts": {
                "impressions": {part: len(own) for part, own in rows.items()},
                "ads": ads,
                "ads per impression": [int(widths.min()), int(widths.max())],
                "user fields": len(config["user_field_names"]),
                "ad fields": len(config["ad_field_names"]),
                "values": sum(
                    config["user_vocab_sizes"] + config["ad_vocab_sizes"] + config["user_sequence_vocab_sizes"]
                ),
            },
            "left out or odd": {part: {key: store.statistics[part][key] for key in _ODD} for part in PARTS},
            "metrics": self.settings.titles(),
            "unknown_by_field": self.unknown_shares(),
            "processor_fingerprint": processor.fingerprint,
            "fingerprint": checksum(store.counts, store.ranks, store.ecpm, *rows.values()),
            "inputs_fingerprint": self.inputs_checksum(),
        }
        say(
            f"{store.info.name}: {len(config['user_field_names'])} user and {len(config['ad_field_names'])} ad fields, "
            f"{result['counts']['values']:,} values; impressions "
            + ", ".join(f"{part} {len(own):,} ({ads[part]:,} ads)" for part, own in rows.items())
        )
        return result

    @property
    def best_auc(self) -> None:
        return None

    def identify(self, part: str) -> dict[str, Any]:
        """A row per ad: `event`, its place in the store; `impression`; `ecpm`; the user, the time and the weight of the impression."""
        rows, store = self.rows(part), self.store
        ads, counts = self.view.ads(rows), store.counts[rows]
        columns = {
            "event": pa.array(ads, pa.int64()),
            "impression": pa.array(np.repeat(rows, counts), pa.int64()),
            "ecpm": pa.array(store.ecpm[ads], pa.float32()),
        }
        for name, values in (("user", store.groups), ("time", store.times)):
            if values is not None:
                columns[name] = pa.array(np.repeat(values[rows], counts), pa.int64())
        if store.weight is not None:
            columns["weight"] = pa.array(np.repeat(store.weight[rows], counts), pa.float32())
        return columns

    def baselines(self, seed: int, refit: bool = False) -> tuple[dict[str, dict[str, dict[str, Any]]], int]:
        parts = {part: self.rows(part) for part in ("validation", "test")}
        train = self.store.splits["train"]  # a limit on the model's samples is none on theirs
        found = impression_baseline_metrics(self.store, {"train": train, **parts}, self.settings, seed, refit)
        return found, len(train) + (len(parts["validation"]) if refit else 0)

    # ---- model ----

    def cost(self, model: Any) -> dict[str, Any]:
        """Counted forward FLOPs of an ad, its share of the user's included, as a mean over a few test impressions; parameters."""
        batch = self.view.batch(self.rows("test")[:_COST_IMPRESSIONS])
        return count_cost(model, {"flops_per_sample": [(batch, int(batch["ad_mask"].sum()))]})


_ODD = {
    "empty": "have no ads and are left out",
    "single": "have one ad, so that nothing is ranked",
    "no_revenue": "have no eCPM above 0, which R/R* leaves out",
}


class MeasuredImpressions(ImpressionDataset):
    """Impressions that measure themselves, see [`~lmctr.training.trainer.CTRTrainer`].

    Args:
        view, rows: as in [`ImpressionDataset`]. settings: of the metrics.
    """

    def __init__(self, view: ImpressionView, rows: np.ndarray, settings: RankingSettings) -> None:
        super().__init__(view, rows)
        self.settings = settings

    def measure(self, labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
        """Metrics of the (A,) scores of all ads, impression by impression."""
        return evaluate_ranking(self.lengths, labels, logits, self.ecpm, self.settings, self.sample_weight)
