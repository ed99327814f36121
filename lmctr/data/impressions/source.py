"""Sources of impressions: blocks of users and of the ads that each of them was ranked for. See [`lmctr.data.impressions.store`]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.data.features.columns import Rows
from lmctr.data.logs.log import DatasetInfo
from lmctr.data.logs.splits import PARTS
from lmctr.utils.ragged import offsets_from_lengths, ragged_arange

STAGES = ("matching", "pre-ranking", "ranking", "mix-ranking")
"""Stages of a cascade: an ad's stage is the last one that it was judged in. Sources may name their own."""
_OF_IMPRESSIONS = ("split", "groups", "times", "weight")
_OF_ADS = ("ranks", "ecpm", "stages", "oracle")


@dataclass(frozen=True, eq=False)
class ImpressionBlock:
    """Some consecutive impressions: B users, and the A ads of all of them, impression by impression.

    Args:
        users: B rows with the columns of the user's fields.
        ads: A rows with the columns of the ads' fields.
        counts: (B,) ads of each impression; 0 is dropped and counted by a store.
        ranks: (A,) v, the rank index: higher is better, from 0, finite (Eq. 1 of arXiv 2411.13322).
        ecpm: (A,) revenue per mille, from 0, finite; 0 where an ad never reached the ranking stage.
        split: (B,) int8 index into "train", "validation", "test"; -1 belongs to no part.
        stages: (A,) int8, index into the source's stages, or None.
        oracle: (A,) score of the best possible ranker, where data are generated, or None.
        groups: (B,) int64 user, or None. times: (B,) int64 unix seconds, or None. weight: (B,) sample weight, or None.
        first: number of the first impression in the source, from 0. first_ad: of the first ad.
        source: what messages call the place, such as a file.

    Raises:
        ValueError: arrays that differ in length; ranks, eCPM or weights that are NaN, negative or infinite, with the impression and
            the place of the ad.
    """

    users: pa.Table
    ads: pa.Table
    counts: np.ndarray
    ranks: np.ndarray
    ecpm: np.ndarray
    split: np.ndarray
    stages: np.ndarray | None = None
    oracle: np.ndarray | None = None
    groups: np.ndarray | None = None
    times: np.ndarray | None = None
    weight: np.ndarray | None = None
    first: int = 0
    first_ad: int = 0
    source: str | None = None

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts)
        where = self.source or "impressions"
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or (len(counts) and counts.min() < 0):
            raise ValueError(f"{where}: counts must be whole numbers from 0, one per impression.")
        impressions, ads = len(counts), int(counts.sum())
        for name, wanted in (("users", impressions), ("ads", ads)):
            found = getattr(self, name).num_rows
            if found != wanted:
                raise ValueError(
                    f"{where}: {name} has {found} rows, the counts of {impressions} impressions need {wanted}."
                )
        for name in (*_OF_IMPRESSIONS, *_OF_ADS):
            values, wanted = getattr(self, name), ads if name in _OF_ADS else impressions
            if values is not None and np.shape(values) != (wanted,):
                raise ValueError(f"{where}: {name} has the shape {np.shape(values)}, expected ({wanted},).")
        for name in ("ranks", "ecpm", "oracle", "weight"):
            values = getattr(self, name)
            if values is None:
                continue
            values, signed = np.asarray(values), name == "oracle"
            bad = ~np.isfinite(values) | (values < (-np.inf if signed else 0))
            if bad.any():
                row, accepted = int(np.argmax(bad)), "finite" if signed else "finite and at least 0"
                raise ValueError(
                    f"{where}: {name} must be {accepted}, got {values[row]} at {self._place(row, name == 'weight')} "
                    f"({int(bad.sum())} such values)."
                )

    def _place(self, row: int, is_impression: bool) -> str:
        if is_impression:
            return f"impression {self.first + row}"
        offsets = offsets_from_lengths(self.counts)
        impression = int(np.searchsorted(offsets, row, side="right")) - 1
        return f"impression {self.first + impression}, ad {row - int(offsets[impression])}"

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, keep: np.ndarray) -> ImpressionBlock:
        """The impressions where `keep` (B,) is True."""
        keep = np.flatnonzero(keep)
        offsets = offsets_from_lengths(self.counts)
        ads = ragged_arange(offsets[:-1][keep], np.asarray(self.counts)[keep])
        own: dict[str, Any] = {"users": self.users.take(keep), "ads": self.ads.take(ads), "counts": self.counts[keep]}
        for name in (*_OF_IMPRESSIONS, *_OF_ADS):
            values, rows = getattr(self, name), ads if name in _OF_ADS else keep
            own[name] = None if values is None else np.asarray(values)[rows]
        return ImpressionBlock(**own, first=self.first, first_ad=self.first_ad, source=self.source)

    def user_rows(self) -> Rows:
        """The users as a feature processor reads them."""
        return Rows(self.users, f"{self.source or 'impressions'} (users)", self.first + 1, np.asarray(self.split))

    def ad_rows(self) -> Rows:
        """The ads as a feature processor reads them."""
        split = np.repeat(np.asarray(self.split), self.counts)
        return Rows(self.ads, f"{self.source or 'impressions'} (ads)", self.first_ad + 1, split)


@dataclass(frozen=True, eq=False)
class ImpressionSource:
    """Impressions to learn from, in blocks, and what is known about them.

    Args:
        read: gives the blocks anew at every call.
        user_fields, ad_fields: default fields of an [`~lmctr.data.processors.impressions.ImpressionProcessor`].
        content: gives a text that changes with the content and the parts; asked for once, by `fingerprint`.
        stages: names of the stages, by the numbers of a block's `stages`.
        info: origin, licence, counts, label rule.
    """

    read: Callable[[], Iterator[ImpressionBlock]]
    user_fields: tuple[dict[str, Any], ...]
    ad_fields: tuple[dict[str, Any], ...]
    content: Callable[[], str]
    stages: tuple[str, ...] = STAGES
    info: DatasetInfo = field(default_factory=DatasetInfo)

    def with_validation(self) -> ImpressionSource:
        """The same impressions, those of validation being training ones: what a model is trained on again."""

        def read() -> Iterator[ImpressionBlock]:
            for block in self.read():
                split = np.asarray(block.split)
                yield replace(block, split=np.where(split == PARTS.index("validation"), split.dtype.type(0), split))

        return replace(self, read=read, content=lambda: f"{self.fingerprint} with validation")

    @cached_property
    def fingerprint(self) -> str:
        """Text that changes with the content and the parts."""
        return self.content()

    def blocks(self, part: str | None = None) -> Iterator[ImpressionBlock]:
        """The blocks; with `part` only its impressions, and of those only the ones that have ads.

        Raises:
            ValueError: an unknown part.
        """
        if part is not None and part not in PARTS:
            raise ValueError(f"part: got {part!r}, accepted: {', '.join(PARTS)}.")
        for block in self.read():
            if part is not None:
                keep = (np.asarray(block.split) == PARTS.index(part)) & (np.asarray(block.counts) > 0)
                if not keep.all():
                    block = block.take(keep)
            if len(block):
                yield block
