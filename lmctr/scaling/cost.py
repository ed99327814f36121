"""Machine cost estimation (MCET): the highest QPS of a model under a latency limit on this machine, and the machines that a load needs.

Algorithm 1 of arXiv 2411.13322: with req_0 machines that serve the base model today and
QPS_i the highest rate of model i under the limit, model i needs req_i = req_0 QPS_0 / QPS_i machines. Decided: the limit holds for the 99th
percentile; the number of machines is rounded up, and the fraction is reported too.

**The load is closed**: c clients each send a call, wait for its answer, and send the next; a call scores b requests at once. So the rate is what
the machine can sustain, and a latency is that of a call from sending to answer, waiting for a core included; the wait for other
requests to fill a batch, and bursts of an open stream of arrivals, are not in it. Levels (b, c) are tried from (1, 1) upwards: for each b
the number of clients doubles until a level misses the limit or brings no more, then the gap between the last two is halved.

**Confidence**: of n calls, k are later than the limit. A level is accepted when the one-sided Clopper-Pearson bound on the share of late calls is at
most 1 - quantile, which for the 99th percentile at 95 % takes 299 calls without a late one, or 1,000 with at most 4. A level with fewer calls, or
between the two bounds, is not accepted. The bound takes the calls as independent: a machine that others disturb violates that, and the rates of the
repeated windows, whose spread is reported, show it.

b: requests per call. c: concurrent clients.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from pydantic import TypeAdapter
from scipy import stats

from .options import SweepOptions

__all__ = ["Capacity", "CostOptions", "LatencyLimitError", "Level", "Load", "Machines", "Window", "machines", "measure_capacity"]  # fmt: skip

_GROWTH = 1.02  # a doubling of the clients that brings less is no growth


class LatencyLimitError(ValueError):
    """No load meets the latency limit, or none could be shown to meet it in the time that was allowed."""


@dataclass(frozen=True)
class CostOptions(SweepOptions):
    """How a model is measured.

    Args:
        latency_limit: seconds that the `quantile` of the calls may take; 0.99 is p99. The rest: see `SweepOptions`.
    """

    latency_limit: float

    def __post_init__(self):
        for name in ("latency_limit", "window_seconds", "max_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a number of seconds above 0, got {value}")
        if not (math.isfinite(self.warmup_seconds) and self.warmup_seconds >= 0):
            raise ValueError(f"warmup_seconds must be at least 0, got {self.warmup_seconds}")
        for name in ("quantile", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        for name in ("max_concurrency", "num_windows", "min_calls"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ValueError(f"batch_sizes must be whole numbers of at least 1, got {list(self.batch_sizes)}")
        object.__setattr__(self, "batch_sizes", tuple(sorted({1, *self.batch_sizes})))

    @property
    def least_calls(self) -> int:
        """Calls, none of them late, that the stated confidence takes: 299 for p99 at 95 %."""
        return math.ceil(math.log(1 - self.confidence) / math.log(self.quantile))

    def share_of_late_calls(self, late: int, calls: int) -> tuple[float, float]:
        """One-sided Clopper-Pearson bounds, each at `confidence`, on the share of late calls."""
        low = 0.0 if late == 0 else float(stats.beta.ppf(1 - self.confidence, late, calls - late + 1))
        high = 1.0 if late == calls else float(stats.beta.ppf(self.confidence, late + 1, calls - late))
        return low, high


@dataclass(frozen=True)
class Window:
    """Latencies (N,) in seconds of the calls that were answered in `seconds`, per call of b requests."""

    latencies: np.ndarray
    seconds: float


class Load(Protocol):
    """What sends the calls: `run(b, c, seconds)` keeps c clients busy with calls of b requests for so long."""

    def run(self, batch_size: int, concurrency: int, seconds: float) -> Window: ...


@dataclass(frozen=True)
class Level:
    """One load (b, c) that was tried.

    Args:
        qps: requests per second over all windows. qps_interval: its 95 % interval from the windows (t), None of a single one.
        latency: the `quantile` of the calls, in seconds. median_latency: of the same calls.
        calls, late: calls in all windows, and those above the limit. share: bounds on the share of late calls.
        met: "yes" (shown at the stated confidence), "no" (its quantile is above the limit), "open" (within it, but not shown).
    """

    batch_size: int
    concurrency: int
    qps: float
    qps_interval: tuple[float, float] | None
    latency: float
    median_latency: float
    calls: int
    late: int
    share: tuple[float, float]
    met: str


@dataclass(frozen=True)
class Capacity:
    """What a model can do on this machine.

    Args:
        single: the level of the highest rate with single requests. batched: the same over all batch sizes, 1 included; `qps` is its rate.
        levels: all levels, in the order in which they were tried. complete: whether time sufficed for the whole sweep. seconds: that it took.
        options: as measured.
    """

    single: Level | None
    batched: Level
    levels: tuple[Level, ...]
    complete: bool
    seconds: float
    options: CostOptions

    @property
    def qps(self) -> float:
        """The highest rate under the limit, in requests per second."""
        return self.batched.qps

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Capacity:
        """What `to_dict` wrote, also where it went through JSON. Raises `ValueError`: another thing."""
        return TypeAdapter(cls).validate_python(values)


def measure_capacity(
    load: Load,
    options: CostOptions,
    clock: Callable[[], float] = time.perf_counter,
    say: Callable[[str], None] = lambda line: None,
) -> Capacity:
    """The highest rate under the latency limit.

    Args:
        load: sends the calls. options: limit, sweep, confidence, time. clock: seconds. say: gets a line per level.

    Raises:
        LatencyLimitError: no level met the limit; the message tells how near the fastest came, or that too few calls fitted into the time.
    """
    sweep = _Sweep(load, options, clock, say)
    sweep.run()
    accepted = [level for level in sweep.levels if level.met == "yes"]
    if not accepted:
        raise LatencyLimitError(_why_none(sweep.levels, options))
    single = [level for level in accepted if level.batch_size == 1]
    return Capacity(
        max(single, key=lambda level: level.qps, default=None),
        max(accepted, key=lambda level: level.qps),
        tuple(sweep.levels),
        sweep.complete,
        clock() - sweep.began,
        options,
    )


@dataclass
class _Sweep:
    load: Load
    options: CostOptions
    clock: Callable[[], float]
    say: Callable[[str], None]
    levels: list[Level] = field(default_factory=list)
    complete: bool = True
    began: float = 0.0
    end: float = 0.0  # of the batch size that is tried

    def run(self) -> None:
        self.began = self.clock()
        count = len(self.options.batch_sizes)
        for number, batch_size in enumerate(self.options.batch_sizes, 1):
            self.end = self.began + self.options.max_seconds * number / count
            first = self._sweep_clients(batch_size)
            # a call of more requests takes longer still
            if first is not None and first.met == "no":
                break

    def _sweep_clients(self, batch_size: int) -> Level | None:
        """All levels of a batch size. Returns the one with a single client, None where no time was left for it."""
        first = previous = self._level(batch_size, 1)
        if first is None or first.met == "no":
            return first
        concurrency = 2
        while concurrency <= self.options.max_concurrency:
            level = self._level(batch_size, concurrency)
            if level is None:
                break
            if level.met != "yes":
                if previous.met == "yes":
                    self._halve(batch_size, previous, level)
                break
            if level.qps < _GROWTH * previous.qps:
                break
            previous, concurrency = level, concurrency * 2
        return first

    def _halve(self, batch_size: int, good: Level, bad: Level) -> None:
        """Between a level that met the limit and one that did not."""
        low, high = good.concurrency, bad.concurrency
        while high - low > 1:
            level = self._level(batch_size, (low + high) // 2)
            if level is None:
                return
            if level.met == "yes":
                low = level.concurrency
            else:
                high = level.concurrency

    def _left(self) -> float:
        return self.end - self.clock()

    def _level(self, batch_size: int, concurrency: int) -> Level | None:
        """Measure one level; None where no time is left."""
        options = self.options
        if self._left() < options.warmup_seconds + options.window_seconds and self.levels:
            self.complete = False
            return None
        if options.warmup_seconds:
            self.load.run(batch_size, concurrency, min(options.warmup_seconds, max(self._left(), 1e-3)))
        windows: list[Window] = []
        while not windows or self._left() > 0:
            seconds = min(options.window_seconds, max(self._left(), 1e-3))
            windows.append(self.load.run(batch_size, concurrency, seconds))
            level = self._summary(batch_size, concurrency, windows)
            enough = len(windows) >= options.num_windows and level.calls >= options.min_calls
            if enough or level.share[0] > 1 - options.quantile:  # no further call can help what is late for sure
                break
        else:
            self.complete = False
        self.levels.append(level)
        self.say(
            f"  {batch_size} per call, {concurrency} clients: {level.qps:,.1f} requests/s, p{100 * options.quantile:g} "
            f"{1e3 * level.latency:.2f} ms of {level.calls:,} calls ({level.late} late): {_WORDS[level.met]}"
        )
        return level

    def _summary(self, batch_size: int, concurrency: int, windows: list[Window]) -> Level:
        options = self.options
        latencies = np.concatenate([window.latencies for window in windows])
        seconds = sum(window.seconds for window in windows)
        rates = [batch_size * len(window.latencies) / window.seconds for window in windows]
        interval = None
        if len(rates) > 1:
            mean = statistics.fmean(rates)
            half = float(stats.t.ppf(0.975, len(rates) - 1)) * statistics.stdev(rates) / math.sqrt(len(rates))
            interval = (max(0.0, mean - half), mean + half)
        late = int((latencies > options.latency_limit).sum())
        share = options.share_of_late_calls(late, len(latencies))
        # the smallest value that at least the wanted share of the calls does not exceed
        latency = float(np.quantile(latencies, options.quantile, method="inverted_cdf"))
        met = "yes" if share[1] <= 1 - options.quantile else ("no" if latency > options.latency_limit else "open")
        return Level(
            batch_size,
            concurrency,
            batch_size * len(latencies) / seconds,
            interval,
            latency,
            float(np.median(latencies)),
            len(latencies),
            late,
            share,
            met,
        )


_WORDS = {"yes": "meets the limit", "no": "misses the limit", "open": "not shown to meet the limit"}


def _why_none(levels: Sequence[Level], options: CostOptions) -> str:
    name = f"p{100 * options.quantile:g}"
    limit = f"the latency limit of {1e3 * options.latency_limit:g} ms on {name}"
    fastest = min(levels, key=lambda level: level.latency)
    shown = (
        f"{fastest.batch_size} request{'s' if fastest.batch_size > 1 else ''} per call and {fastest.concurrency} "
        f"client{'s' if fastest.concurrency > 1 else ''}: {name} {1e3 * fastest.latency:.3g} ms, median "
        f"{1e3 * fastest.median_latency:.3g} ms of {fastest.calls:,} calls"
    )
    if fastest.met == "no":
        return f"no load meets {limit}: the lightest tried has {shown}; raise the limit, or take a smaller model or request"
    if fastest.calls < options.least_calls:
        return (
            f"no load could be shown to meet {limit}: {shown}, but {options.confidence:.0%} confidence takes at least "
            f"{options.least_calls} calls; give more time (max_seconds), or a lower confidence"
        )
    return (
        f"no load could be shown to meet {limit} at {options.confidence:.0%} confidence: {shown}, {fastest.late} of them late; raise the limit, "
        "measure on a quieter machine, or give more calls (min_calls)"
    )


@dataclass(frozen=True)
class Machines:
    """Machines for the base model's load. relative: cost relative to the base, exactly 1 for the base itself. fraction: machines before rounding.
    machines: rounded up."""

    qps: float
    relative: float
    fraction: float
    machines: int


def machines(rates: Sequence[float], base_rate: float, base_machines: float = 1.0) -> list[Machines]:
    """req_i = ceil(req_0 QPS_0 / QPS_i) (Algorithm 1, line 9, rounded up).

    Args:
        rates: QPS_i of each model. base_rate: QPS_0. base_machines: req_0, machines of the base model today.

    Raises:
        ValueError: rates or machines that are not above 0.
    """
    for name, value in (("base_rate", base_rate), ("base_machines", base_machines), *(("rates", x) for x in rates)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be finite and above 0, got {value}")
    found = []
    for rate in rates:
        relative = float(base_rate / rate)
        fraction = base_machines * relative
        rounded = math.ceil(fraction * (1 - 1e-12))  # 3.0000000000000004 is 3
        found.append(Machines(float(rate), relative, fraction, rounded))
    return found
