"""`lmctr benchmark serving` on a tiny model: a real server, real requests."""

import json
import time

import numpy as np
import pytest

from lmctr.benchmarks import serving
from lmctr.benchmarks.options import ServingBenchmark
from lmctr.cli.main import main


@pytest.mark.usefixtures("warm_processes")
def test_the_command_measures_a_server(tmp_path, capsys):
    output = tmp_path / "serving.json"
    words = ["benchmark", "serving", "--quick", "--threads", "1", "--statistics", "full", "--output", str(output)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "| load |" in printed
    assert "; with statistics" in printed
    result = json.loads(output.read_text())
    assert [load["statistics"] for load in result["loads"]] == [None, "full"]
    for load in result["loads"]:
        assert load["requests"] >= 2
        assert load["other_answers"] == 0
        assert 0 < load["p50"] <= load["p95"] <= load["p99"]
        assert load["requests_per_batch"] >= 1
    assert result["largest_difference"] < 1e-5
    assert result["kept"][0] > result["row_by_row"] > 0
    assert len(result["kept_with_statistics"]) == 2


def test_a_stall_of_the_server_counts_for_all_who_should_have_been_answered_in_it(monkeypatch):
    """An open loop: while the first request is stuck for half a second, the others are due, and their latencies show it."""
    options = ServingBenchmark(seconds=0.5, candidates=1)
    stuck = time.perf_counter() + 0.6
    monkeypatch.setattr(
        serving, "_batches", lambda address: _values((0.0, 0.0) if time.perf_counter() < stuck else (1, 9))
    )
    monkeypatch.setattr(serving, "_resident", lambda pid: 1.0)

    async def post(pool, address, message):
        import asyncio

        await asyncio.sleep(max(stuck - time.perf_counter(), 0))
        return 200, b""

    monkeypatch.setattr(serving, "_post", post)
    asked = [serving._Asked(0, [], 0, b"")]
    found = serving._load(options, asked, 100.0, ("", 0), 0, np.random.default_rng(0), 0.5)
    assert found["requests"] == 50
    assert found["p99"] > 300  # the first ones waited for nearly all of the stall
    assert 100 < found["p50"] < found["p99"]


async def _values(values):
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [({"model_type": "bert"}, "decoders that keep states"), ({"loads": [0.0]}, "--loads"), ({"users": 0}, "--users")],
)
def test_wrong_options(values, message):
    with pytest.raises(ValueError, match=message):
        ServingBenchmark(**values)
