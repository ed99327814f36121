"""MCET against loads whose service time is known, and one real model."""

import math
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from retrieval_tester import FIELDS

from lmctr import DNNConfig, DNNForCTR, RetrievalMLPConfig, RetrievalMLPForCTR, TwoTowerConfig, TwoTowerForCTR
from lmctr.scaling.cost import Capacity, CostOptions, LatencyLimitError, Window, machines, measure_capacity
from lmctr.scaling.inputs import RequestShape, random_inputs
from lmctr.scaling.load import CapacityCache, ModelLoad, SplitLoad, ThreadLoad, model_fingerprint
from lmctr.serving import split_first_layer
from lmctr.utils.measure import machine as machine_description


class FakeLoad:
    """K cores, each call takes fixed + per_request x b seconds of one; a share of the calls is ten times as late."""

    def __init__(self, cores=4, fixed=0.010, per_request=0.001, late_share=0.0):
        self.cores, self.fixed, self.per_request, self.late_share = cores, fixed, per_request, late_share
        self.now, self.calls = 0.0, []

    def clock(self):
        return self.now

    def run(self, batch_size, concurrency, seconds):
        service = self.fixed + self.per_request * batch_size
        latency = service * max(1.0, concurrency / self.cores)
        count = max(round(seconds / service * min(concurrency, self.cores)), concurrency)
        latencies = np.full(count, latency)
        latencies[: round(self.late_share * count)] *= 10
        self.now += seconds
        self.calls.append((batch_size, concurrency, seconds))
        return Window(latencies, seconds)


def measure(load, **options):
    values = {"latency_limit": 0.050, "batch_sizes": (1, 10), "max_seconds": 1000.0, **options}
    return measure_capacity(load, CostOptions(**values), clock=load.clock)


def test_the_highest_rate_of_a_known_service_time():
    found = measure(FakeLoad())
    # one core answers a single request in 11 ms, ten in 20 ms; 4 cores, and the limit is far
    assert found.single.qps == pytest.approx(4 / 0.011, rel=0.01)
    assert found.qps == pytest.approx(4 * 10 / 0.020, rel=0.01)
    assert (found.batched.batch_size, found.batched.concurrency) == (10, 4)
    assert found.complete
    tried = [(level.batch_size, level.concurrency) for level in found.levels]
    assert tried == [(1, 1), (1, 2), (1, 4), (1, 8), (10, 1), (10, 2), (10, 4), (10, 8)]  # 8 clients bring no more


def test_an_interval_of_a_rate_does_not_begin_below_zero():
    class Uneven(FakeLoad):
        def run(self, batch_size, concurrency, seconds):
            window = super().run(batch_size, concurrency, seconds)
            return Window(window.latencies[: len(window.latencies) // (1 if len(self.calls) % 2 else 100)], seconds)

    low, high = measure(Uneven(), batch_sizes=(1,), num_windows=2, warmup_seconds=0.0).single.qps_interval
    assert low == 0.0
    assert high > 100


def test_the_limit_binds_and_the_gap_is_halved():
    # 12 ms a call on one core: c clients wait 12 c ms, so 50 ms allow 4 of them, 80 ms allow 6
    load = FakeLoad(cores=1, fixed=0.012, per_request=0.0)
    assert measure(load, batch_sizes=(1,)).single.concurrency <= 4
    many = FakeLoad(cores=64, fixed=0.012, per_request=0.0)
    many.run = lambda b, c, s: _slower(many, b, c, s)
    found = measure(many, batch_sizes=(1,), latency_limit=0.080, max_concurrency=64)
    # 12 ms and 1 ms more for every client: 68 clients would fit, 64 are tried
    assert found.single.concurrency == 64
    found = measure(many, batch_sizes=(1,), latency_limit=0.0335, max_concurrency=64)
    assert [level.concurrency for level in found.levels] == [1, 2, 4, 8, 16, 32, 24, 20, 22, 21]
    assert found.single.concurrency == 21
    assert {level.concurrency: level.met for level in found.levels}[22] == "no"


def _slower(load, batch_size, concurrency, seconds):
    """Every client makes each call a millisecond slower, as contention does; the rate still rises."""
    latency = 0.012 + 0.001 * concurrency
    load.now += seconds
    return Window(np.full(max(round(seconds / latency * concurrency), 1), latency), seconds)


def test_batches_that_are_too_slow_are_given_up_and_do_not_count():
    found = measure(FakeLoad(per_request=0.008), batch_sizes=(1, 10, 100))
    assert found.batched.batch_size == 1
    assert [level.batch_size for level in found.levels if level.concurrency == 1] == [1, 10]  # 100 is not tried


def test_late_calls_up_to_what_the_confidence_allows():
    assert CostOptions(0.05).least_calls == 299
    options = CostOptions(0.05)
    # Clopper-Pearson by its definition: the share at which so few late calls have a chance of 5 %
    for late, calls in ((0, 299), (4, 1000), (3, 500)):
        high = options.share_of_late_calls(late, calls)[1]
        chance = sum(math.comb(calls, k) * high**k * (1 - high) ** (calls - k) for k in range(late + 1))
        assert chance == pytest.approx(0.05)
    assert options.share_of_late_calls(4, 1000)[1] < 0.01 < options.share_of_late_calls(5, 1000)[1]
    assert measure(FakeLoad(late_share=0.003), min_calls=3000).levels[0].met == "yes"
    with pytest.raises(LatencyLimitError, match=r"at 95% confidence.*min_calls"):
        measure(FakeLoad(late_share=0.008), window_seconds=10.0)


def test_a_limit_that_no_load_meets():
    with pytest.raises(LatencyLimitError, match=r"no load meets the latency limit of 5 ms on p99: .*1 request per call and 1 client: p99 11 ms"):  # fmt: skip
        measure(FakeLoad(), latency_limit=0.005)
    load = FakeLoad(late_share=0.05)
    with pytest.raises(LatencyLimitError, match="no load meets"):
        measure(load)
    assert len(load.calls) <= 4  # sure after a few windows: no more are spent


def test_time_is_bounded_and_what_is_left_out_is_said():
    load = FakeLoad()
    found = measure(load, max_seconds=16.0)
    assert load.now <= 16.0
    assert not found.complete
    assert found.seconds == pytest.approx(load.now)
    # half of the time for each batch size: ten requests per call, which are the better load, get their turn
    assert {level.batch_size for level in found.levels} == {1, 10}
    assert found.batched.batch_size == 10
    with pytest.raises(LatencyLimitError, match=r"takes at least 299 calls; give more time"):
        measure(FakeLoad(fixed=0.04), max_seconds=2.0, min_calls=100)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"latency_limit": 0.0}, "latency_limit must be a number of seconds above 0"),
        ({"latency_limit": float("nan")}, "latency_limit"),
        ({"quantile": 1.0}, "quantile must be between 0 and 1"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1, got 0"),
        ({"batch_sizes": (0, 4)}, "batch_sizes must be whole numbers of at least 1"),
        ({"max_seconds": -1.0}, "max_seconds"),
        ({"warmup_seconds": -1.0}, "warmup_seconds"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        CostOptions(**{"latency_limit": 0.05, **options})


def test_machines_of_algorithm_1():
    # 10 machines serve 200 requests/s each; a model at 150 needs 13.33, one at 400 needs 5
    found = machines([200.0, 150.0, 400.0], base_rate=200.0, base_machines=10)
    assert [entry.machines for entry in found] == [10, 14, 5]
    assert found[1].fraction == pytest.approx(40 / 3)
    assert [entry.relative for entry in found] == [1.0, pytest.approx(4 / 3), 0.5]
    rate = 749.8091312951641  # 7 * rate / rate / 7 is not 1
    assert machines([rate], base_rate=rate, base_machines=7)[0].relative == 1.0
    assert machines([0.1], base_rate=0.3)[0].machines == 3  # 3.0000000000000004
    with pytest.raises(ValueError, match="rates must be finite and above 0, got 0"):
        machines([0.0], base_rate=1.0)
    with pytest.raises(ValueError, match="base_machines"):
        machines([1.0], base_rate=1.0, base_machines=0)


def test_clients_are_threads_and_their_latencies_are_measured():
    names = set()

    def call(batch_size, number):
        names.add(threading.current_thread().name)
        time.sleep(0.010 * batch_size)

    window = ThreadLoad(call).run(2, 3, 0.3)
    assert len(names) == 3
    assert 0.3 <= window.seconds < 0.6
    assert window.latencies.min() >= 0.020
    assert 3 * 5 <= len(window.latencies) <= 3 * 15
    # a call that takes longer than the window is finished, once per client
    assert len(ThreadLoad(call).run(5, 2, 0.001).latencies) == 2


def test_an_error_of_a_call_stops_all_clients():
    def call(batch_size, number):
        if number > 1:
            raise RuntimeError("broken")
        time.sleep(0.001)

    with pytest.raises(RuntimeError, match="broken"):
        ThreadLoad(call).run(1, 2, 30.0)


@pytest.fixture
def heard():
    """Ctrl-C ends what runs, in tests that a shell started in the background too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_all_clients(heard):
    calls = []

    def call(batch_size, number):
        calls.append(number)
        time.sleep(0.001)

    before = threading.active_count()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ThreadLoad(call).run(1, 2, 20.0)
    assert time.monotonic() - start < 10
    assert threading.active_count() <= before
    made = len(calls)
    time.sleep(0.1)
    assert len(calls) == made > 0


@pytest.fixture
def dnn():
    torch.manual_seed(0)
    return DNNForCTR(DNNConfig(vocab_sizes=[7, 11], num_numeric=3, embedding_dim=4, hidden_units=[8])).train()


def test_a_real_model_and_the_cache(dnn, tmp_path, monkeypatch):
    shape = RequestShape(candidates=20)
    options = CostOptions(
        1.0, batch_sizes=(4,), max_concurrency=2, window_seconds=0.05, num_windows=2, warmup_seconds=0.02, min_calls=299,
        max_seconds=10.0,
    )  # fmt: skip
    load = ModelLoad(dnn, shape)
    assert not dnn.training
    seen = []
    handle = dnn.register_forward_hook(
        lambda module, args, kwargs, out: seen.append(len(out.logits)), with_kwargs=True
    )
    found = measure_capacity(load, options)
    handle.remove()
    assert set(seen) == {20, 80}  # 1 and 4 requests of 20 candidates
    assert found.single.qps > 0
    assert found.qps >= found.single.qps
    assert found.seconds < 10
    dnn.save_pretrained(tmp_path / "model")
    print_of = model_fingerprint(tmp_path / "model")
    cache, machine = CapacityCache(tmp_path / "cache"), machine_description()
    assert cache.get(machine, print_of, shape, options) is None
    cache.put(machine, print_of, shape, options, found)
    assert cache.get(machine, print_of, shape, options) == found
    assert cache.get({**machine, "cores": 999}, print_of, shape, options) is None
    assert cache.get(machine, print_of, RequestShape(21), options) is None
    with torch.no_grad():
        next(dnn.parameters()).add_(1)
    dnn.save_pretrained(tmp_path / "other")
    assert model_fingerprint(tmp_path / "other") != print_of
    path = cache.path(machine, print_of, shape, options)
    for damaged, told in (('{"capacity": {}}', ""), ('{"capacity"', r" \(.* is not valid JSON \(line 1.*")):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=rf"is no kept measurement{told}.*; delete it to measure again"):
            cache.get(machine, print_of, shape, options)
    with pytest.raises(FileNotFoundError, match="holds no saved model"):
        model_fingerprint(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everything
    for folder, told in ((tmp_path / "cache", "Permission denied"), (tmp_path / "file" / "cache", "Not a directory")):
        with pytest.raises(ValueError, match=rf"cache: measurements cannot be kept there \({told}\); .*--no-cache"):
            CapacityCache(folder).get(machine, "other", shape, options)


@pytest.mark.parametrize(
    "model",
    [RetrievalMLPForCTR(RetrievalMLPConfig(**FIELDS)), TwoTowerForCTR(TwoTowerConfig(**FIELDS, vector_size=4))],
    ids=["mlp", "towers"],
)
def test_kept_ads_get_the_scores_of_the_plain_forward(model):
    shape = RequestShape(candidates=5, length=6)
    load = SplitLoad(model, shape, seed=3, split=split_first_layer)
    assert len(load.served) == 500
    load.run(2, 1, 0.0)
    ads = random_inputs(model.config, RequestShape(candidates=500, length=6), 1, 3)
    for number, inputs in enumerate(load._inputs[2]):
        users = {key: values for key, values in inputs.items() if key != "places"}
        own = {key: ads[key][0][inputs["places"]] for key in ("ad_input_ids", "ad_numeric_values")}
        with torch.inference_mode():
            logits = model(**users, **own, ad_mask=torch.ones(2, 5, dtype=torch.bool)).logits
        torch.testing.assert_close(load.call(2, number), logits, rtol=1e-5, atol=1e-5)
    assert len({tuple(inputs["places"].reshape(-1).tolist()) for inputs in load._inputs[2]}) == 4
    with pytest.raises(ValueError, match=r"DNNForCTR has no halves of user and ad"):
        SplitLoad(DNNForCTR(DNNConfig(vocab_sizes=[7], hidden_units=[8])), shape, split=split_first_layer)


def test_a_result_survives_json():
    found = measure(FakeLoad())
    assert Capacity.from_dict(found.to_dict()) == found
