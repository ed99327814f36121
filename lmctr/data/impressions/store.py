"""Impressions for ad retrieval: a user, the ads that were ranked for it, their rank index v and their eCPM.

`load_impressions` gives an [`ImpressionSource`] of a known data set; [`ImpressionStore`] fits the processor, transforms both sides in blocks and
keeps the arrays on disk, ragged: an impression's ads are a slice. [`~lmctr.data.batches.impressions.ImpressionView`], its data set and its
collator read batches, padded to the longest impression of the batch.

```python
source = load_impressions("synthetic_cascade", num_impressions=10_000)
store = ImpressionStore.build(source, directory="cache")
view = ImpressionView(store)
batch = ImpressionCollator(view)([0, 1, 2])
```
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import numpy as np

from lmctr.data.array_store import ArrayStore, smallest_integer
from lmctr.data.features.transform import add_counts, merged_examples
from lmctr.data.features.unknown import shares_of
from lmctr.data.logs.splits import PARTS
from lmctr.data.processors.impressions import ImpressionProcessor
from lmctr.utils.ragged import offsets_from_lengths

from .source import ImpressionBlock, ImpressionSource

USER_INPUTS = ("user_input_ids", "user_numeric_values", "user_sequence_ids")
AD_INPUTS = ("ad_input_ids", "ad_numeric_values")
USER_ARRAYS = (*USER_INPUTS, "counts", "groups", "times", "weight", "split")
AD_ARRAYS = (*AD_INPUTS, "ranks", "ecpm", "stages", "oracle")


class ImpressionStore(ArrayStore):
    """Arrays of I processed impressions with A ads in all.

    Args:
        arrays: by the names below; what does not apply is left out.
        processor, info: of the data. statistics: what building counted. directory: the folder that it was read from, or None.

    Attributes:
        user_input_ids (I, Fu), user_numeric_values (I, Nu), user_sequence_ids (I, S, L): the user's inputs. counts: (I,) ads of each
            impression, from 1. groups, times: (I,) int64.
            weight: (I,) float32. split: (I,) int8, 0 train, 1 validation, 2 test, -1 none.
        ad_input_ids (A, Fa), ad_numeric_values (A, Na): the ads' inputs. ranks: (A,) float32 v. ecpm: (A,) float32. stages: (A,) int8.
            oracle: (A,) float32 scores of the best possible ranker. Each is None where it does not apply.
    """

    array_names = (*USER_ARRAYS, *AD_ARRAYS)
    inner_arrays = AD_ARRAYS
    header_file = "impressions.json"
    format_version = 1
    processor_class = ImpressionProcessor
    kind = "store of impressions"

    def _check(self, arrays: dict[str, np.ndarray]) -> int:
        for name in ("counts", "ranks", "ecpm"):
            if name not in arrays:
                raise ValueError(f"ImpressionStore: the array {name!r} is missing.")
        counts = np.asarray(arrays["counts"])
        if len(counts) and counts.min() < 1:
            raise ValueError("ImpressionStore: an impression without ads; leave it out.")
        sizes = dict.fromkeys(USER_ARRAYS, len(counts)) | dict.fromkeys(AD_ARRAYS, int(counts.sum(dtype=np.int64)))
        for name, values in arrays.items():
            if len(values) != sizes[name]:
                raise ValueError(f"ImpressionStore: {name} has {len(values)} rows, expected {sizes[name]}.")
        return len(counts)

    @cached_property
    def offsets(self) -> np.ndarray:
        """(I + 1,) int64, the ads of impression i are `offsets[i]:offsets[i + 1]`."""
        return offsets_from_lengths(self.counts)

    @property
    def num_ads(self) -> int:
        """A."""
        return int(self.offsets[-1])

    # building

    @classmethod
    def build(
        cls,
        source: ImpressionSource,
        processor: ImpressionProcessor | None = None,
        directory: str | os.PathLike | None = None,
        *,
        rebuild: bool = False,
    ) -> ImpressionStore:
        """Transforms a source, block by block, into a store.

        Args:
            source: the impressions.
            processor: fitted on the training part first, unless it is fitted already. None makes one from the source's own fields.
            directory: folder of stores (a cache); a finished store of the same content and processor there is used again. None keeps the
                arrays in memory.
            rebuild: build again even if there is one.

        Returns:
            The store. Its `statistics` count, by part: `impressions`, `ads`, `empty` (impressions without ads, left out), `single` (with one
            ad, so with nothing to rank), `no_revenue` (no eCPM above 0, which R/R* leaves out), and how many values were missing or unknown.

        Raises:
            ValueError: what reading, fitting and transforming raise; no impression with ads.
        """
        if not isinstance(source, ImpressionSource):
            raise ValueError(
                f"source: expected an ImpressionSource, got {type(source).__name__}; make one by lmctr.data.load_impressions(...)"
            )
        if processor is None:
            processor = ImpressionProcessor(source.user_fields, source.ad_fields)
        return cls._build(source, processor, directory, rebuild)

    def _sizes(self) -> dict[str, int]:
        return {"num_ads": self.num_ads, "num_impressions": len(self)}

    @classmethod
    def _length(cls, name: str, header: dict[str, Any]) -> int:
        return header["num_ads"] if name in AD_ARRAYS else header["num_impressions"]

    @classmethod
    def _fill(cls, writer: Any, source: ImpressionSource, processor: ImpressionProcessor) -> ImpressionStore:
        config = processor.model_config_values()
        lists = [field.name for field in processor.user.ordered_fields() if field.kind == "list"]
        dtypes = {
            "user_input_ids": smallest_integer(max(config["user_vocab_sizes"], default=1)),
            "ad_input_ids": smallest_integer(max(config["ad_vocab_sizes"], default=1)),
            "user_sequence_ids": smallest_integer(max((processor.user.vocab_size(name) for name in lists), default=1)),
        }
        statistics: dict[str, Any] = {}
        unknown: dict[str, list] = {"user": [], "ad": []}
        examples: dict[str, list[str]] = {}
        by_part: dict[str, dict[int, dict]] = {"user": {}, "ad": {}}
        for block in source.read():
            count_block(block, statistics)
            has_ads = np.asarray(block.counts) > 0
            if not has_ads.all():
                block = block.take(has_ads)
            if not len(block):
                continue
            for side, part, rows in (
                ("user", processor.user, block.user_rows()),
                ("ad", processor.ad, block.ad_rows()),
            ):
                arrays = part.transform_rows(rows)
                unknown[side] = [add_counts([*unknown[side], arrays.oov_counts])]
                named = {f"{side}.{name}": found for name, found in arrays.unknown_examples.items()}
                examples = merged_examples([examples, named])
                for code, own in arrays.part_counts.items():
                    by_part[side][code] = add_counts([by_part[side].get(code, {}), own])
                for key, values in arrays.items():
                    name = f"{side}_{key}"
                    writer.write(name, values.astype(dtypes.get(name, values.dtype), copy=False))
            for name, kind in _PLAIN.items():
                values = getattr(block, name)
                if values is not None:
                    writer.write(name, np.asarray(values).astype(kind))
        if not sum(part["ads"] for part in statistics.values()):
            raise ValueError(f"{source.info.name}: no impression of any part has ads.")
        statistics["unknown_examples"] = examples
        for side, parts in unknown.items():
            statistics[f"{side} values"] = parts[0]
            own = {part: by_part[side].get(code, {}) for code, part in enumerate(PARTS)}
            getattr(processor, side).keep_unknown(shares_of(own))
            for part in PARTS:
                named = {f"{side}.{name}": found for name, found in own[part].items()}
                statistics.setdefault("values by part", {}).setdefault(part, {}).update(named)
        return cls(writer.finish(), processor, source.info, statistics)


_COUNTED = ("impressions", "ads", "empty", "single", "no_revenue")
_PLAIN = dict.fromkeys(("weight", "ranks", "ecpm", "oracle"), np.float32) | {"counts": np.int32}
_PLAIN |= dict.fromkeys(("groups", "times"), np.int64) | dict.fromkeys(("split", "stages"), np.int8)


def count_block(block: ImpressionBlock, statistics: dict[str, Any]) -> None:
    """Adds the impressions of a block to the counts of each part."""
    counts, split = np.asarray(block.counts), np.asarray(block.split)
    paid = np.bincount(np.repeat(np.arange(len(counts)), counts), np.asarray(block.ecpm) > 0, len(counts)) > 0
    for code, part in enumerate(PARTS):
        own = split == code
        entry = statistics.setdefault(part, dict.fromkeys(_COUNTED, 0))
        entry["empty"] += int((own & (counts == 0)).sum())
        own &= counts > 0
        entry["impressions"] += int(own.sum())
        entry["ads"] += int(counts[own].sum())
        entry["single"] += int((own & (counts == 1)).sum())
        entry["no_revenue"] += int((own & ~paid).sum())
