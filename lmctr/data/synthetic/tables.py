"""A generated table in the shape of Criteo's, with planted field-pair interactions and a known best AUC.

Row by row, independently: categorical values are drawn by a Zipf-like law, numbers from log-normal laws (rounded down, some missing),
and the label with the probability

    p = sigmoid(bias + sum_f main_f[value_f] + sum_(f,g) u_fg[value_f] . v_fg[value_g] + sum_n g_n(log(1 + x_n)))

where (f, g) are the planted pairs with a latent vector for each value, and g_n is a smooth curve (0 for a missing number). The three
sums are scaled to given standard deviations, so that it is known how much of the signal lies in interactions that an additive
model cannot see. p is known, so the AUC of p itself is the best that a model can reach.

With `conversion_rate` a row has a second label, `conversion`: a row with a positive label converts with a probability of the same form,
drawn anew and without pairs; the others do not. With `conversion_agreement` a, the effects on a conversion are a times those on the first
label and sqrt(1 - a^2) times their own, so that what invites clicks also invites conversions (a > 0) or repels them (a < 0).

With `drift` the table is one day of many, whose values come and go: from day to day each value gives its place, and its frequency, to a
value that was never there, with effects of its own.

Rows are made in blocks, each from its own random stream: a table of any size takes the memory of one block.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.data.features.columns import Rows
from lmctr.data.logs.log import DatasetInfo
from lmctr.data.logs.splits import PARTS
from lmctr.data.tables.source import Piece, TableSource
from lmctr.utils.suggest import first_listed, first_quoted

from .generator import Settings, auc, sigmoid

TRUE_PROBABILITY = "true_probability"
"""Column of the true probabilities; it is no field, and is made when it is asked for by name."""
_BLOCK = 1 << 16
_PILOT = 1 << 17  # rows that scale the effects
_OF_ROWS = ("num_rows", "fractions", "day", "drift")  # settings that the effects do not depend on
_SCALES: dict[str, tuple[np.ndarray, float]] = {}


@dataclass
class SyntheticTable(Settings):
    """Settings of a generated table; [`generate`] makes it.

    Args:
        num_rows: rows of all parts together.
        num_categorical: fields C1, C2, ...
        num_numeric: fields I1, I2, ...
        vocab_size: distinct values of all categorical fields together; sizes rise geometrically from 4.
        vocab_sizes: size of each field, in place of `vocab_size`.
        zipf_exponent: a of the law P(rank k) ~ k^-a (drawn as a bounded Pareto variable, rounded down).
        num_pairs: planted pairs, drawn from the fields of 10 to 1,000 values where there are enough, else from all.
        pairs: the pairs by name, such as `[["C3", "C7"]]`, in place of `num_pairs`.
        latent_dim: length of the latent vectors.
        main_strength: standard deviation of the sum of main effects, in logits.
        pair_strength: that of the sum of interactions.
        numeric_strength: that of the sum of numeric effects.
        missing_share: share of missing values in each numeric field.
        positive_rate: expected share of positive labels.
        conversion_rate: expected share of rows that would convert after a click, with which there is a second label; None: there is none.
        conversion_agreement: -1 to 1, how far the effects on a conversion are those on the first label; 0: not at all.
        unknown_conversions: share of the clicked rows whose conversion is not known, an empty cell.
        drift: share of the values of each categorical field that are replaced from one day to the next.
        day: the day, from 0 on; other days of the same settings have other rows, and with `drift` other values.
        fractions: shares of train, validation and test, in the order of the rows (which are independent).
        seed: of everything.

    `info.best_auc` of the source is the AUC of the true probabilities on the sampled labels of the test part (so it shares their noise with
    the models that are tested there), or of all rows when there is no test part; `info.extra` has the expected AUC over labels
    (`expected_auc`), the AUC without interactions (`additive_auc`: main and numeric effects alone, on the same labels), the pairs and the
    vocabulary sizes.
    """

    message = "synthetic_table: {name}={value!r}; accepted: {accepted}."

    num_rows: int = 200_000
    num_categorical: int = 26
    num_numeric: int = 13
    _: KW_ONLY
    vocab_size: int = 100_000
    vocab_sizes: Sequence[int] | None = None
    zipf_exponent: float = 1.05
    num_pairs: int = 8
    pairs: Sequence[Sequence[str]] | None = None
    latent_dim: int = 4
    main_strength: float = 0.7
    pair_strength: float = 1.0
    numeric_strength: float = 0.6
    missing_share: float = 0.15
    positive_rate: float = 0.25
    conversion_rate: float | None = None
    conversion_agreement: float = 0.0
    unknown_conversions: float = 0.0
    drift: float = 0.0
    day: int = 0
    fractions: Sequence[float] = (0.8, 0.1, 0.1)
    seed: int = 0

    def generate(self) -> TableSource:
        """The source; the same settings give the same rows.

        Raises:
            ValueError: values out of range; too few fields for the pairs.
        """
        shares, seed = self._check(), self.seed
        rng = np.random.default_rng([seed, 0])
        sizes = _sizes(self.num_categorical, self.vocab_size, self.vocab_sizes)
        chosen = _pairs(rng, sizes, self.num_pairs, self.pairs)
        model = _Model.draw(rng, sizes, chosen, self)
        strengths = (self.main_strength, self.pair_strength, self.numeric_strength)
        self._scale(model, 1, strengths, self.positive_rate)

        second = None
        if self.conversion_rate is not None:
            second = _Model.draw(np.random.default_rng([seed, 3]), sizes, [], self)
            second.numeric[:, :2] = model.numeric[:, :2]  # the same rows: their numbers have one law
            if self.conversion_agreement:
                second.like = model, float(self.conversion_agreement)
            self._scale(second, 4, strengths, self.conversion_rate)
            second = _Conversions(second, self.unknown_conversions)

        for stream, other in enumerate((model, *([] if second is None else [second.model])), start=1):
            other.renew(seed, self.day, self.drift, stream)

        cuts = [0, *(round(float(self.num_rows * share)) for share in np.cumsum(shares[:2])), self.num_rows]
        bounds = {part: (cuts[code], cuts[code + 1]) for code, part in enumerate(PARTS) if cuts[code + 1] > cuts[code]}
        best, expected, additive = _reachable(model, seed, *bounds.get("test", (0, self.num_rows)))

        names = (
            [f"C{place + 1}" for place in range(len(sizes))],
            [f"I{place + 1}" for place in range(self.num_numeric)],
        )
        fields = [{"name": name, "type": "categorical"} for name in names[0]]
        fields += [{"name": name, "type": "numeric", "transform": "log1p"} for name in names[1]]
        settings = self.settings()

        def piece(part: str) -> Piece:
            first, last = bounds[part]
            return Piece(
                lambda columns: _stream(model, second, seed, first, last, names, columns), lambda: repr(settings), part
            )

        info = DatasetInfo(
            name="synthetic-table",
            licence="generated by lmctr; no restrictions",
            label_rule="drawn with the true probability",
            notes=f"{self.num_rows} rows, seed {seed}",
            best_auc=best,
            extra={
                "expected_auc": expected,
                "additive_auc": additive,
                "pairs": [[names[0][f], names[0][g]] for f, g in chosen],
                "vocab_sizes": list(sizes),
                "settings": settings,
            },
        )
        extra = () if second is None else ("conversion",)
        return TableSource(tuple(piece(part) for part in bounds), tuple(fields), extra_labels=extra, info=info)

    def _scale(self, model: _Model, stream: int, strengths: tuple[float, ...], rate: float) -> None:
        """Scales a model; once for all tables that differ in their rows alone, for the pilot sample takes longer than a small table."""
        alike = {name: value for name, value in self.settings().items() if name not in _OF_ROWS}
        key = repr((stream, alike))
        if key not in _SCALES:
            model.scale(np.random.default_rng([self.seed, stream]), strengths, rate)
            _SCALES[key] = model.factors, model.bias
        model.factors, model.bias = _SCALES[key]

    def _check(self) -> tuple[float, ...]:
        """Checks the settings, and gives the fractions as numbers."""
        require = self.require
        for name in ("num_rows", "latent_dim"):
            value = getattr(self, name)
            require(name, "a whole number from 1 on", isinstance(value, int) and value >= 1)
        strengths = ("main_strength", "pair_strength", "numeric_strength")
        for name in ("num_categorical", "num_numeric", "num_pairs", *strengths):
            require(name, "0 or more", getattr(self, name) >= 0)
        require("num_categorical", "one field at least, of either kind", self.num_categorical + self.num_numeric > 0)
        require("missing_share", "0 to 1 (exclusive)", 0 <= self.missing_share < 1)
        require("positive_rate", "between 0 and 1", 0 < self.positive_rate < 1)
        rate = self.conversion_rate
        require("conversion_rate", "between 0 and 1, or None", rate is None or 0 < rate < 1)
        require("conversion_agreement", "-1 to 1", -1 <= self.conversion_agreement <= 1)
        require("unknown_conversions", "0 to 1 (exclusive)", 0 <= self.unknown_conversions < 1)
        require("drift", "0 to 1 (exclusive)", 0 <= self.drift < 1)
        require("day", "a whole number from 0 on", isinstance(self.day, int) and self.day >= 0)
        require("zipf_exponent", "more than 0", self.zipf_exponent > 0)
        shares = tuple(float(share) for share in self.fractions)
        sums = len(shares) == 3 and min(shares) >= 0 and abs(sum(shares) - 1) < 1e-6 and shares[0] > 0
        require("fractions", "three shares (train, validation, test) that sum to 1, train above 0", sums)
        return shares


def synthetic_table(*sizes: int, **settings: Any) -> TableSource:
    """Makes the table; takes the settings of [`SyntheticTable`], the first three by position too."""
    return SyntheticTable(*sizes, **settings).generate()


synthetic_table.__signature__ = inspect.signature(SyntheticTable)  # what `help` and the registry read


def _require(condition: bool, name: str, value: Any, accepted: str) -> None:
    if not condition:
        raise ValueError(SyntheticTable.message.format(name=name, value=value, accepted=accepted))


def _sizes(count: int, total: int, given: Sequence[int] | None) -> list[int]:
    if given is not None:
        fits = len(given) == count and min(given, default=2) >= 2
        _require(fits, "vocab_sizes", list(given), f"{count} sizes of 2 or more")
        return [int(size) for size in given]
    if not count:
        return []
    _require(total >= 4 * count, "vocab_size", total, f"{4 * count} or more (4 values per field)")
    return rising_sizes(count, total)


def rising_sizes(count: int, total: int) -> list[int]:
    """Numbers of values of so many fields that rise geometrically from 4 and add up to about `total`, as Criteo's do."""
    low, high = 0.0, np.log(total)
    for _ in range(60):  # the common ratio that makes the sizes add up
        middle = (low + high) / 2
        if (4 * np.exp(np.linspace(0, middle, count))).sum() < total:
            low = middle
        else:
            high = middle
    return [int(size) for size in 4 * np.exp(np.linspace(0, low, count))]


def zipf_values(uniform: np.ndarray, size: int | np.ndarray, exponent: float) -> np.ndarray:
    """Values below `size` (one, or one per column) by the law P(rank k) ~ k^-exponent: a bounded Pareto variable, rounded down."""
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        rank = np.exp(uniform * np.log(size + 1))
    else:
        rank = (1 + uniform * ((size + 1) ** power - 1)) ** (1 / power)
    return np.minimum(rank.astype(np.int32) - 1, size - 1)


def _pairs(
    rng: np.random.Generator, sizes: Sequence[int], count: int, given: Sequence[Sequence[str]] | None
) -> list[tuple[int, int]]:
    if given is not None:
        known = {f"C{place + 1}": place for place in range(len(sizes))}
        for pair in given:
            _require(
                len(pair) == 2 and pair[0] != pair[1] and set(pair) <= set(known), "pairs", pair, "two of C1, C2, ..."
            )
        return [(known[first], known[second]) for first, second in given]
    medium = [place for place, size in enumerate(sizes) if 10 <= size <= 1000]
    places = medium if len(medium) * (len(medium) - 1) // 2 >= count else list(range(len(sizes)))
    every = [(f, g) for index, f in enumerate(places) for g in places[index + 1 :]]
    _require(len(every) >= count, "num_pairs", count, f"at most {len(every)} with {len(sizes)} categorical fields")
    return [every[index] for index in sorted(rng.choice(len(every), count, replace=False))] if count else []


@dataclass
class _Model:
    """The generator's parameters. V: values of a field, k: latent_dim."""

    sizes: list[int]
    pairs: list[tuple[int, int]]
    zipf_exponent: float
    missing_share: float
    main: list[np.ndarray]  # (V,) of each field
    left: list[np.ndarray]  # (V, k) of each pair
    right: list[np.ndarray]
    numeric: np.ndarray  # (Nn, 5): location and scale of log(x), and the curve's slope, bend and frequency
    factors: np.ndarray  # of main, pair and numeric effects
    bias: float = 0.0
    day: int = 0
    generations: list[np.ndarray] | None = None  # (V,) of each field: how often values were replaced; None: none was
    like: tuple[_Model, float] | None = None  # whose effects join these, and how far

    @classmethod
    def draw(
        cls, rng: np.random.Generator, sizes: list[int], pairs: list[tuple[int, int]], settings: SyntheticTable
    ) -> _Model:
        dim, count = settings.latent_dim, settings.num_numeric
        main = [rng.standard_normal(size) for size in sizes]
        left = [rng.standard_normal((sizes[f], dim)).astype(np.float32) for f, _ in pairs]
        right = [rng.standard_normal((sizes[g], dim)).astype(np.float32) for _, g in pairs]
        location, scale = rng.uniform(0, 3, count), rng.uniform(0.6, 1.6, count)
        slope, bend, frequency = rng.standard_normal(count), rng.standard_normal(count), rng.uniform(0.8, 2.0, count)
        numeric = np.stack([location, scale, slope, bend, frequency], axis=1)
        shares = settings.zipf_exponent, settings.missing_share
        return cls(sizes, pairs, *shares, main, left, right, numeric, np.ones(3))

    def renew(self, seed: int, days: int, share: float, stream: int = 1) -> None:
        """Goes on by some days, on each of which a share of the values of each field is replaced: the same ones for every `stream`, which the
        effects of the new ones are drawn from."""
        self.day, self.generations = days, [np.zeros(size, np.int64) for size in self.sizes] if share else None
        for day in range(1, days + 1 if share else 1):
            which, rng = (np.random.default_rng([seed, 6, day, part]) for part in (0, stream))
            for field, size in enumerate(self.sizes):
                gone = which.random(size) < share
                self.generations[field] += gone
                self.main[field][gone] = rng.standard_normal(int(gone.sum()))
                for place, pair in enumerate(self.pairs):
                    for side, tables in zip(pair, (self.left, self.right)):
                        if side == field:
                            tables[place][gone] = rng.standard_normal((int(gone.sum()), tables[place].shape[1]))

    def names(self, field: int, values: np.ndarray) -> np.ndarray:
        """What stands in a field's column for its values: numbers that no earlier value of the same place had."""
        if self.generations is None:
            return values
        return values + self.sizes[field] * self.generations[field][values]

    def inputs(
        self, rng: np.random.Generator, count: int, rows: slice = slice(None)
    ) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
        """Values of each categorical field (int32), of each numeric field (float64, NaN where missing) and uniforms for labels.

        Drawn for `count` rows, worked out for `rows` of them.
        """
        values = [zipf_values(_uniform(rng, count, rows), size, self.zipf_exponent) for size in self.sizes]
        numbers = []
        for location, scale, *_ in self.numeric:
            number = np.floor(np.exp(rng.standard_normal(count)[rows] * scale + location))
            number[_uniform(rng, count, rows) < self.missing_share] = np.nan
            numbers.append(number)
        return values, numbers, _uniform(rng, count, rows)

    def effects(self, values: list[np.ndarray], numbers: list[np.ndarray]) -> np.ndarray:
        """(3, N) main, pair and numeric effects, scaled."""
        count = len(values[0]) if values else len(numbers[0])
        result = np.zeros((3, count))
        for table, value in zip(self.main, values):
            result[0] += table[value]
        for (f, g), left, right in zip(self.pairs, self.left, self.right):
            result[1] += np.einsum("nk,nk->n", left[values[f]], right[values[g]])
        for (location, scale, slope, bend, frequency), number in zip(self.numeric, numbers):
            z = (np.log1p(number) - location) / scale
            result[2] += np.nan_to_num(slope * np.tanh(z) + bend * np.sin(frequency * z))
        result *= self.factors[:, None]
        if self.like is not None:
            other, share = self.like
            result = share * other.effects(values, numbers) + np.sqrt(1 - share**2) * result
        return result

    def scale(self, rng: np.random.Generator, strengths: Sequence[float], positive_rate: float) -> None:
        """Scales the effects to their standard deviations and sets the bias, on a pilot sample."""
        values, numbers, _ = self.inputs(rng, _PILOT)
        like, self.like = self.like, None
        spread = self.effects(values, numbers).std(axis=1)
        self.factors = np.where(spread > 0, np.asarray(strengths, dtype=float) / np.where(spread > 0, spread, 1), 0.0)
        self.like = like
        logit = self.effects(values, numbers).sum(axis=0)
        low, high = -50.0, 50.0
        for _ in range(60):
            self.bias = (low + high) / 2
            if sigmoid(logit + self.bias).mean() < positive_rate:
                low = self.bias
            else:
                high = self.bias


def _uniform(rng: np.random.Generator, count: int, rows: slice) -> np.ndarray:
    """`rng.random(count)[rows]`, without the numbers before and behind."""
    start, stop, _ = rows.indices(count)
    rng.bit_generator.advance(start)
    found = rng.random(stop - start)
    rng.bit_generator.advance(count - stop)
    return found


@dataclass
class _Conversions:
    """What draws the second label: a model, and the share of clicked rows that it is not known of."""

    model: _Model
    unknown: float

    def draw(
        self,
        seed: int,
        block: int,
        rows: slice,
        values: list[np.ndarray],
        numbers: list[np.ndarray],
        clicks: np.ndarray,
    ) -> np.ndarray:
        """(N,) float: 0 or 1, NaN where it is not known, of these rows of a block."""
        uniform, hidden = np.random.default_rng([seed, 5, block, self.model.day]).random((2, _BLOCK))[:, rows]
        converts = uniform < sigmoid(self.model.effects(values, numbers).sum(axis=0) + self.model.bias)
        return np.where(clicks & (hidden < self.unknown), np.nan, clicks & converts)


def _blocks(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Block number and the rows of it that lie in [start, stop)."""
    for block in range(start // _BLOCK, -(-stop // _BLOCK)):
        yield block, max(start - block * _BLOCK, 0), min(stop - block * _BLOCK, _BLOCK)


def _block(
    model: _Model, seed: int, block: int, rows: slice = slice(None)
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, np.ndarray]:
    stream = [seed, 2, block] if model.day == 0 else [seed, 2, block, model.day]
    values, numbers, uniform = model.inputs(np.random.default_rng(stream), _BLOCK, rows)
    return values, numbers, uniform, model.effects(values, numbers)


def _stream(
    model: _Model,
    second: _Conversions | None,
    seed: int,
    start: int,
    stop: int,
    names: tuple[list[str], list[str]],
    columns: Mapping[str, str] | None,
) -> Iterator[Rows]:
    extra = [] if second is None else ["conversion"]
    known = ["label", *extra, *names[1], *names[0], TRUE_PROBABILITY]
    wanted = known[:-1] if columns is None else list(columns)
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ValueError(f"synthetic_table: no column {first_quoted(missing)}; the columns are {first_listed(known)}.")
    for block, first, last in _blocks(start, stop):
        values, numbers, uniform, effects = _block(model, seed, block, slice(first, last))
        probability = sigmoid(effects.sum(axis=0) + model.bias)
        arrays = {"label": (uniform < probability).astype(np.int8), TRUE_PROBABILITY: probability}
        arrays |= {name: model.names(field, own) for field, (name, own) in enumerate(zip(names[0], values))}
        arrays |= dict(zip(names[1], numbers))
        if "conversion" in wanted and second is not None:
            clicks = uniform < probability
            arrays["conversion"] = second.draw(seed, block, slice(first, last), values, numbers, clicks)
        batch = pa.record_batch(
            {name: pa.array(arrays[name], from_pandas=name in (*names[1], *extra)) for name in wanted}
        )
        yield Rows(batch, None, block * _BLOCK + first - start + 1)


def _reachable(model: _Model, seed: int, start: int, stop: int) -> tuple[float | None, float, float | None]:
    """AUC of the true probabilities on the sampled labels, expected AUC over labels, and AUC of the additive part."""
    probabilities, labels, additive = [], [], []
    for block, first, last in _blocks(start, stop):
        *_, uniform, effects = _block(model, seed, block, slice(first, last))
        probability = sigmoid(effects.sum(axis=0) + model.bias)
        labels.append((uniform < probability).astype(np.int8))
        probabilities.append(probability)
        additive.append(effects[0] + effects[2])
    p, y, a = np.concatenate(probabilities), np.concatenate(labels), np.concatenate(additive)
    order = np.argsort(p, kind="stable")
    ordered = p[order]
    below = np.concatenate([[0.0], np.cumsum(1 - ordered)])
    left, right = np.searchsorted(ordered, ordered, "left"), np.searchsorted(ordered, ordered, "right")
    # a row's own half is taken out below: it is no pair with itself
    pairs = ordered * (below[left] + below[right]) / 2
    total = p.sum() * (1 - p).sum() - (p * (1 - p)).sum()
    expected = float((pairs.sum() - 0.5 * (p * (1 - p)).sum()) / total) if len(p) > 1 else 0.5
    if y.min() == y.max():
        return None, expected, None
    return auc(y, p), expected, auc(y, a)
