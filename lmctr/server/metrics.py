"""What `/metrics` says, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lmctr.data.features.unknown import num_present
from lmctr.runs.answers.engine import Engine

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServerMetrics:
    """Counters of one server, and what its engine counts, read when they are asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        about = {"registry": self.registry, "namespace": "lmctr"}
        self.requests = Counter("requests", "Requests by route and status.", ("route", "status"), **about)
        self.latency = Histogram(
            "request_seconds", "From the request's arrival to its answer.", ("route",), buckets=_SECONDS, **about
        )
        self.candidates = Counter("candidates", "Candidates and rows that were scored.", **about)
        self.values = Counter("values", "Values of requests that the processor looked up.", ("field",), **about)
        self.unknown = Counter("unknown_values", "Those of them that it did not know.", ("field",), **about)
        self.names: dict[str, None] = {}  # of what was counted
        self.batch = Histogram("batch_requests", "Requests of a batch.", buckets=_SIZES, **about)
        self.batch_seconds = Histogram("batch_seconds", "Work on a batch.", buckets=_SECONDS, **about)
        self.positions = Counter("batch_positions", "Positions of all batches, about.", **about)
        self.engine: Engine | None = None
        self.registry.register(self)

    def count(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Counts the values of an answer, by their names."""
        self.names |= dict.fromkeys(counts)
        for name, own in counts.items():
            self.values.labels(name).inc(num_present(own))
            self.unknown.labels(name).inc(own["unknown"])

    def on_batch(self, requests: int, positions: int, seconds: float) -> None:
        """Counts a batch; for the engine."""
        self.batch.observe(requests)
        self.batch_seconds.observe(seconds)
        self.positions.inc(positions)

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """What the engine counts by itself."""
        if self.engine is None:
            return
        engine, states = self.engine, self.engine.states
        for name, says, value in (
            ("queue_requests", "Requests that wait.", engine.batcher.num_waiting),
            ("user_states", "Kept user states.", len(states)),
            ("user_state_bytes", "Memory of the kept user states.", states.num_bytes),
        ):
            yield GaugeMetricFamily(f"lmctr_{name}", says, value)
        for name, says, label, kinds in (
            ("user_state_lookups", "Kept states asked for.", "result", {"hits": "hit", "misses": "miss"}),
            (
                "user_states_dropped",
                "Kept states that went: memory was short, their time was up, another model came.",
                "reason",
                {"memory": "memory", "expired": "expired", "model": "model"},
            ),
        ):
            family = CounterMetricFamily(f"lmctr_{name}", says, labels=[label])
            for kind, called in kinds.items():
                family.add_metric([called], states.counts[kind])
            yield family
        looked = states.counts["hits"] + states.counts["misses"]
        rate = states.counts["hits"] / looked if looked else float("nan")
        yield GaugeMetricFamily("lmctr_user_state_hit_rate", "Hits among all lookups since the start.", rate)
        usual = GaugeMetricFamily(
            "lmctr_usual_unknown_share", "Of the unknown among all values, in the validation part.", labels=["field"]
        )
        for name in list(self.names):
            if (share := engine.served.usual_unknown(name)) is not None:
                usual.add_metric([name], share)
        yield usual
        swaps = CounterMetricFamily("lmctr_model_swaps", "New models, taken over or refused.", labels=["result"])
        for result, count in engine.swaps.items():
            swaps.add_metric([result], count)
        yield swaps
        model = GaugeMetricFamily("lmctr_model", "1 for the model that is served.", labels=["name", "version", "kind"])
        model.add_metric([engine.served.name, engine.served.version, engine.served.kind], 1)
        yield model
