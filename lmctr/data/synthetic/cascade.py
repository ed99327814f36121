"""A generated advertising cascade (matching, pre-ranking, ranking, mix-ranking) with known eCPM, made to be learnt better by larger models.

**Value.** The log of the eCPM of ad a for user u is

    y(u, a) = spread * ( sqrt(main_share) b(a) + sqrt(1 - main_share) sum_j w_j p_j(u) q_j(a) ) + log(value)

with b(a) an effect of the ad alone (which counting by ad finds) and J planted components, all of mean 0 and variance 1. Component j has
the weight w_j^2 ~ j^-decay, and p_j is the product of a random effect per value of one or two categorical fields of the user (odd j: one,
even j: two), or, for every third j, a sine of the user's numeric fields; q_j likewise for the ad. A model needs room for every component
that it tells apart: width of embeddings to hold the effects of a value, width of layers to form the products. So the first components are
easy, and each further one is worth less and costs the same: a spectrum of difficulty, so that quality keeps rising with size until the
components, or the data, are used up. The fields have few values, so that data do not run out first.

**Cascade.** For each impression, with independent normal noise of the given size at every stage: matching keeps `num_matched` of all ads by
y + noise, pre-ranking `num_preranked` of these, ranking computes the eCPM exp(y + noise) of these and keeps `num_ranked`, mix-ranking
orders these by log eCPM + noise. An ad that did not reach ranking has the eCPM 0 (Eq. 1 of arXiv 2411.13322). `ads_per_impression` ads are
then drawn, a share of `stage_shares` each, from those last judged in pre-ranking, in ranking and in mix-ranking. The queue stands in the
order of the stages, latest first, inside a stage by its own scores; v = largest possible number of ads - place from 0, so that the k
best ads have the same v in every impression.

**Best reachable.** Noise is independent of everything that is seen, so no ranker can beat, in expectation, the order of y: the block's `oracle`
is y, and R/R* of the oracle is the best reachable one. With less noise it rises towards 1.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.data.impressions.source import STAGES, ImpressionBlock, ImpressionSource
from lmctr.data.logs.log import DatasetInfo
from lmctr.utils.ragged import ragged_arange
from lmctr.utils.suggest import unknown_key_message

from .generator import Settings

SCENARIOS: dict[str, dict[str, Any]] = {
    "feed": {"world": 0, "decay": 1.0, "main_share": 0.25, "value": 1.0, "requests_per_second": 20_000.0},
    "search": {"world": 1, "decay": 2.0, "main_share": 0.4, "value": 4.0, "requests_per_second": 2_000.0},
}
"""Two places of one system, for experiments on allocation: much traffic of low value whose signal is spread over many components, and a tenth of
the traffic at four times the eCPM with a signal that small models nearly exhaust. `world` is mixed into the seed."""

_BLOCK = 1024  # impressions of one random stream
_USER_VALUES = (8, 12, 16, 24, 32, 48)
_AD_VALUES = (6, 10, 16, 24, 32, 64)
_NUM_NUMERIC = 3
_PILOT = 4096  # users whose components set the scale


@dataclass
class SyntheticCascade(Settings):
    """Settings of a generated cascade; [`generate`] makes it.

    Args:
        num_impressions: impressions of all parts together.
        num_users: users; impressions draw them by a Zipf-like law.
        num_ads: ads of the catalogue. Every impression looks at all of them.
        ads_per_impression: n, or the smallest and largest n, drawn evenly.
        scenario: a row of `SCENARIOS`, which gives what is None below: "feed" or "search".
        num_components: J. decay: of the components' weights; larger is easier for small models. main_share: share of the variance of y that
            the ad alone explains. spread: standard deviation of y. value: factor of the eCPM.
        num_matched, num_preranked, num_ranked: ads that leave matching, pre-ranking and ranking.
        stage_shares: shares of the ads of an impression last judged in pre-ranking, ranking and mix-ranking.
        noise: standard deviations by stage, in units of log eCPM; default matching 1.0, pre-ranking 0.5, ranking 0.25, mix-ranking 0.25.
        history_length: ads in the user's sequence, those that matching and ranking would show it first (drawn with the noise of both); 0 for
            no sequence.
        fractions: shares of train, validation and test, in the order of the impressions (which are independent).
        seed: of everything.

    The source has ten fields of the ad and nine, or ten, of the user. `info.extra` holds `requests_per_second` and every setting; `oracle` of
    its blocks is y.

    Raises:
        ValueError: sizes that do not fit into each other, an unknown scenario or stage, shares that do not sum to 1.
    """

    num_impressions: int = 50_000
    num_users: int = 20_000
    num_ads: int = 1_000
    _: KW_ONLY
    ads_per_impression: int | Sequence[int] = 16
    scenario: str = "feed"
    num_components: int = 64
    decay: float | None = None
    main_share: float | None = None
    spread: float = 1.5
    value: float | None = None
    num_matched: int = 200
    num_preranked: int = 50
    num_ranked: int = 12
    stage_shares: Sequence[float] = (0.375, 0.375, 0.25)
    noise: Mapping[str, float] | None = None
    history_length: int = 8
    fractions: Sequence[float] = (0.8, 0.1, 0.1)
    seed: int = 0

    def __post_init__(self) -> None:
        self.require("scenario", ", ".join(SCENARIOS), self.scenario in SCENARIOS)
        self.ads_per_impression = _pair(self.ads_per_impression)
        for name in ("decay", "main_share", "value"):
            if getattr(self, name) is None:
                setattr(self, name, SCENARIOS[self.scenario][name])
        for name in ("decay", "main_share", "value", "spread"):
            setattr(self, name, float(getattr(self, name)))
        for name in ("stage_shares", "fractions"):
            setattr(self, name, [float(share) for share in getattr(self, name)])
        self.noise = _noise(self.noise)
        self._check()

    def generate(self) -> ImpressionSource:
        """The source; the same settings give the same impressions."""
        preset, settings, world = SCENARIOS[self.scenario], self.settings(), _World(self)
        info = DatasetInfo(
            name="synthetic-cascade" if self.scenario == "feed" else f"synthetic-cascade-{self.scenario}",
            licence="none needed: the data are generated",
            label_rule="v: place in the queue of the cascade, counted from its end; eCPM as computed by the ranking stage, 0 before it",
            notes="generated; the log eCPM is a sum of planted components of falling weight, see lmctr.data.synthetic.cascade",
            extra=settings | {"requests_per_second": preset["requests_per_second"]},
        )
        digest = hashlib.sha256(json.dumps([1, settings, preset["world"]], sort_keys=True).encode()).hexdigest()
        return ImpressionSource(world.blocks, world.user_fields, world.ad_fields, lambda: digest, STAGES, info)

    def _check(self) -> None:
        counts = ("num_impressions", "num_users", "num_ads", "num_components", "num_ranked", "history_length", "seed")
        for name in counts:
            value, least = getattr(self, name), int(name not in ("history_length", "seed"))
            whole = isinstance(value, int) and not isinstance(value, bool)
            self.require(name, f"a whole number of at least {least}", whole and value >= least)
        if not 0 < self.num_ranked < self.num_preranked < self.num_matched <= self.num_ads:
            raise ValueError(
                f"num_ranked {self.num_ranked} < num_preranked {self.num_preranked} < num_matched {self.num_matched} <= num_ads "
                f"{self.num_ads} must hold: every stage passes fewer ads on."
            )
        low, high = self.ads_per_impression
        if not 1 <= low <= high:
            raise ValueError(f"ads_per_impression: got {low} to {high}, accepted: at least 1, the smallest first.")
        for name in ("stage_shares", "fractions"):
            shares = getattr(self, name)
            sums = len(shares) == 3 and min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-6
            self.require(name, "3 shares that sum to 1", sums)
        taken = _quotas(high, self.stage_shares)
        rooms = (self.num_matched - self.num_preranked, self.num_preranked - self.num_ranked, self.num_ranked)
        for stage, wanted, room in zip(STAGES[1:], taken, rooms):
            if wanted > room:
                raise ValueError(
                    f"stage_shares ask for {wanted} of {high} ads from {stage}, which has {room}; take fewer ads_per_impression or wider stages."
                )
        self.require("main_share", "0 to 1", 0 <= self.main_share <= 1)
        for name in ("spread", "value"):
            self.require(name, "a number above 0", 0 < getattr(self, name) < np.inf)
        self.require("decay", "a number of at least 0", 0 <= self.decay < np.inf)


def synthetic_cascade(*sizes: int, **settings: Any) -> ImpressionSource:
    """Makes the cascade; takes the settings of [`SyntheticCascade`], the first three by position too."""
    return SyntheticCascade(*sizes, **settings).generate()


synthetic_cascade.__signature__ = inspect.signature(SyntheticCascade)  # what `help` and the registry read


def _pair(value: int | Sequence[int]) -> list[int]:
    numbers = list(value) if isinstance(value, (list, tuple)) else [value, value]
    if len(numbers) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        raise ValueError(
            f"ads_per_impression: got {value!r}, accepted: a whole number, or the smallest and the largest."
        )
    return numbers


def _noise(given: Mapping[str, float] | None) -> dict[str, float]:
    noise = {"matching": 1.0, "pre-ranking": 0.5, "ranking": 0.25, "mix-ranking": 0.25}
    for key, size in (given or {}).items():
        if key not in noise:
            raise ValueError(unknown_key_message(key, noise, "noise"))
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 <= size < np.inf:
            raise ValueError(f"noise.{key}: got {size!r}, accepted: a number of at least 0.")
        noise[key] = float(size)
    return noise


def _quotas(count: int, shares: Sequence[float]) -> list[int]:
    """Ads from pre-ranking, ranking and mix-ranking that make `count`: rounded from the top stage down."""
    top = round(count * shares[2])
    middle = min(round(count * shares[1]), count - top)
    return [count - top - middle, middle, top]


class _World:
    """Users, ads and components: fixed by the settings; impressions are made block by block."""

    def __init__(self, settings: SyntheticCascade) -> None:
        self.s, self.number = settings, SCENARIOS[settings.scenario]["world"]
        draw = np.random.default_rng([settings.seed, self.number, 0])
        users, ads = settings.num_users, settings.num_ads
        self.user_values = np.stack([_values(draw, size, users) for size in _USER_VALUES], axis=1)
        self.ad_values = np.stack([_values(draw, size, ads) for size in _AD_VALUES], axis=1)
        self.user_numbers = draw.normal(size=(users, _NUM_NUMERIC))
        self.ad_numbers = draw.normal(size=(ads, _NUM_NUMERIC))
        weight = np.arange(1, settings.num_components + 1) ** (-settings.decay / 2)
        weight /= np.sqrt((weight**2).sum())
        p = _Effects(draw, _USER_VALUES, settings.num_components)
        q = _Effects(draw, _AD_VALUES, settings.num_components)
        user, ad = p(self.user_values, self.user_numbers), q(self.ad_values, self.ad_numbers)
        user = (user - user.mean(0)) / user.std(0)
        ad = (ad - ad.mean(0)) / ad.std(0)
        main = draw.normal(size=(_AD_VALUES[-1],))[self.ad_values[:, -1]] + np.tanh(self.ad_numbers[:, 0])
        share = settings.main_share
        self.main = settings.spread * np.sqrt(share) * (main - main.mean()) / main.std()
        self.user = (user * weight).astype(np.float32)
        # in a sample of users the components are not quite uncorrelated: the sum is scaled, not its parts
        self.ad = ad.astype(np.float32)
        pilot = self.user[draw.permutation(users)[:_PILOT]] @ self.ad.T
        self.ad *= np.float32(settings.spread * np.sqrt(1 - share) / pilot.std())
        # numbers are seen as statistics are: positive, with a long tail; the fields take their logarithm
        self.ad_table = pa.table(
            {"ad_id": pa.array(np.arange(ads)).cast(pa.string())}
            | {f"ad_c{f + 1}": pa.array(self.ad_values[:, f].astype(np.int16)) for f in range(len(_AD_VALUES))}
            | {f"ad_n{f + 1}": pa.array(np.expm1(self.ad_numbers[:, f] + 5)) for f in range(_NUM_NUMERIC)}
        )
        self.popularity = _zipf(users, 0.5)
        self.user_order = draw.permutation(users)

    @property
    def user_fields(self) -> tuple[dict[str, Any], ...]:
        fields = _fields("user", len(_USER_VALUES), "standardize")
        if self.s.history_length:
            shared = {"max_length": self.s.history_length, "share_with": "ad.ad_id"}
            fields.append({"name": "shown_ads", "type": "sequence"} | shared)
        return tuple(fields)

    @property
    def ad_fields(self) -> tuple[dict[str, Any], ...]:
        return ({"name": "ad_id", "type": "categorical"}, *_fields("ad", len(_AD_VALUES), "log1p"))

    def blocks(self) -> Iterator[ImpressionBlock]:
        """The impressions; memory of one block."""
        total, first_ad = self.s.num_impressions, 0
        cuts = np.round(np.cumsum(self.s.fractions[:2]) * total)
        for number, first in enumerate(range(0, total, _BLOCK)):
            size = min(_BLOCK, total - first)
            split = np.searchsorted(cuts, np.arange(first, first + size), side="right").astype(np.int8)
            block = self._block(
                np.random.default_rng([self.s.seed, self.number, 1, number]), size, first, first_ad, split
            )
            first_ad += int(block.counts.sum())
            yield block

    def _block(
        self, draw: np.random.Generator, size: int, first: int, first_ad: int, split: np.ndarray
    ) -> ImpressionBlock:
        s, noise = self.s, self.s.noise
        user = self.user_order[np.searchsorted(self.popularity, draw.random(_BLOCK))]
        y = self.user[user] @ self.ad.T + self.main.astype(np.float32)  # (B, ads)
        history = self._history(draw, y)

        def noisy(values: np.ndarray, stage: str) -> np.ndarray:
            return values + noise[stage] * draw.standard_normal(values.shape, dtype=np.float32)

        matched = _best(noisy(y, "matching"), s.num_matched)
        y = np.take_along_axis(y, matched, 1)
        scores = noisy(y, "pre-ranking")
        order = np.argsort(-scores, axis=1)
        judged, lost = order[:, : s.num_preranked], order[:, s.num_preranked :]
        log_ecpm = noisy(np.take_along_axis(y, judged, 1), "ranking")
        order = np.argsort(-log_ecpm, axis=1)
        shown, beaten = order[:, : s.num_ranked], order[:, s.num_ranked :]
        final = noisy(np.take_along_axis(log_ecpm, shown, 1), "mix-ranking")
        shown = np.take_along_axis(shown, np.argsort(-final, axis=1), 1)

        low, high = s.ads_per_impression
        counts = draw.integers(low, high + 1, _BLOCK)
        quotas = np.array([_quotas(int(count), s.stage_shares)[::-1] for count in counts])
        # the whole queue, (B, matched), latest stage first: place among the matched, log eCPM, stage, and whether it is drawn
        ranked = np.concatenate([shown, beaten], axis=1)
        place = np.concatenate([np.take_along_axis(judged, ranked, 1), lost], axis=1)
        unranked = np.full(lost.shape, -np.inf, np.float32)
        log_value = np.concatenate([np.take_along_axis(log_ecpm, ranked, 1), unranked], axis=1)
        widths = (s.num_ranked, s.num_preranked - s.num_ranked, s.num_matched - s.num_preranked)
        stages = np.repeat(np.array([3, 2, 1], np.int8), widths)
        orders = [np.argsort(draw.random((_BLOCK, width)), axis=1) for width in widths]
        drawn = [np.argsort(order, axis=1) < quota[:, None] for order, quota in zip(orders, quotas.T)]
        of, column = np.nonzero(np.concatenate(drawn, axis=1)[:size])
        place, log_value, stages = place[of, column], log_value[of, column], stages[column]
        counts = counts[:size]
        v = (high - ragged_arange(np.zeros_like(counts), counts)).astype(np.float32)
        ad, oracle = matched[of, place], y[of, place]
        # inside an impression the ads stand in no telling order
        mixed = np.lexsort((draw.random(len(ad)), of))
        ecpm = np.exp(log_value[mixed]) * s.value
        user = user[:size]
        columns: dict[str, Any] = {
            f"user_c{f + 1}": self.user_values[user, f].astype(np.int16) for f in range(len(_USER_VALUES))
        }
        columns |= {f"user_n{f + 1}": self.user_numbers[user, f] for f in range(_NUM_NUMERIC)}
        if history is not None:
            texts = self.ad_table["ad_id"].combine_chunks().take(pa.array(history[:size].reshape(-1)))
            columns["shown_ads"] = pa.ListArray.from_arrays(
                np.arange(size + 1, dtype=np.int32) * history.shape[1], texts
            )
        return ImpressionBlock(
            users=pa.table(columns),
            ads=self.ad_table.take(pa.array(ad[mixed])),
            counts=counts.astype(np.int32),
            ranks=v[mixed],
            ecpm=ecpm,
            split=split,
            stages=stages[mixed],
            oracle=oracle[mixed],
            groups=user.astype(np.int64),
            first=first,
            first_ad=first_ad,
            source="synthetic_cascade",
        )

    def _history(self, draw: np.random.Generator, y: np.ndarray) -> np.ndarray | None:
        """(B, L) ads of the user's past, the best of another draw of the noise, in a random order."""
        length = self.s.history_length
        if not length:
            return None
        size = np.hypot(self.s.noise["matching"], self.s.noise["ranking"])
        best = _best(y + np.float32(size) * draw.standard_normal(y.shape, dtype=np.float32), length)
        return np.take_along_axis(best, np.argsort(draw.random(best.shape), axis=1), 1)


def _fields(side: str, num_categorical: int, transform: str) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = [
        {"name": f"{side}_c{f + 1}", "type": "categorical"} for f in range(num_categorical)
    ]
    numeric = {"type": "numeric", "transform": transform}
    return fields + [{"name": f"{side}_n{f + 1}"} | numeric for f in range(_NUM_NUMERIC)]


class _Effects:
    """J functions of a side: products of effects of the values of one or two fields, every third one a sine of the numbers."""

    def __init__(self, draw: np.random.Generator, sizes: Sequence[int], count: int) -> None:
        self._tables, self._fields, self._waves = [], [], []
        for j in range(count):
            if j % 3 == 2:
                self._waves.append(
                    (j, draw.normal(size=_NUM_NUMERIC) * (0.6 + 0.4 * np.log2(1 + j // 3)), draw.uniform(0, 2 * np.pi))
                )
                continue
            fields = draw.permutation(len(sizes))[: 1 + (j % 2)]
            self._fields.append((j, fields))
            self._tables.append([draw.normal(size=sizes[f]) for f in fields])
        self._count = count

    def __call__(self, values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """(N, J) of (N, F) values and (N, Nn) numbers."""
        result = np.empty((len(values), self._count))
        for (j, fields), tables in zip(self._fields, self._tables):
            result[:, j] = np.prod([table[values[:, f]] for f, table in zip(fields, tables)], axis=0)
        for j, direction, phase in self._waves:
            result[:, j] = np.sin(numbers @ direction + phase)
        return result


def _values(draw: np.random.Generator, size: int, count: int) -> np.ndarray:
    """(N,) values from 0, the first ones more often; with enough rows every value occurs."""
    return np.searchsorted(_zipf(size, 0.5), draw.random(count))


def _zipf(size: int, exponent: float) -> np.ndarray:
    """(size,) cumulated shares of a law rank^-exponent."""
    share = np.arange(1, size + 1) ** -exponent
    total = np.cumsum(share)
    return total / total[-1]


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """(B, count) places of the largest scores of each row, in no order."""
    return np.argpartition(-scores, min(count, scores.shape[1]) - 1, axis=1)[:, :count]
