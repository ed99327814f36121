"""An open loop of mixed requests to `lmctr serve` in a process of its own: answers stay right, memory stays flat.

Whole histories, users whose state is kept and grows, rerank, wrong requests and the routes of a monitor. The short form lasts four seconds,
`pytest -m campaign -s tests/server/test_mixed_load.py` an hour each, with about a fifth of a core; it prints what it found.
"""

import asyncio
import json
import os
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from scipy.special import expit
from served_runs import KINDS
from test_serve_command import started

import lmctr

WRONG = [
    {"time": "soon"},
    {"candidates": [{"text": 5, "item": []}]},
    {"history": [{"text": "a", "item": 100, "time": 10**15}]},
    {"candidates": "\ud800"},
    {"history": {"a": [[[[[]]]]]}},
    {"nothing": 1},
]
LONGEST = 7  # behaviours of a kept user, who then starts anew


class Load:
    """Requests at Poisson arrivals, and what came of them."""

    def __init__(self, kind, url, seed):
        request_of = KINDS[kind][1]
        self.url, self.draw = url, np.random.default_rng(seed)
        self.bodies = [request_of(number, behaviors=number % 7 + 1, candidates=4) for number in range(40)]
        self.users = [request_of(100 + number, behaviors=LONGEST, candidates=4) for number in range(30)]
        self.seen = [0] * len(self.users)
        self.first, self.difference, self.compared, self.statuses = {}, 0.0, 0, {}
        self.of_largest = self.of_probabilities = 0.0
        self.latencies, self.failures = [], []

    async def ask(self, route, body, expected=200):
        content = json.dumps(body).encode()
        response = await self.client.post(route, content=content, headers={"content-type": "application/json"})
        self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
        assert response.status_code == expected, (route, body, response.text)
        return response.json()

    async def logits(self, body):
        return np.array((await self.ask("/v1/score", {**body, "logits": True}))["logits"])

    def compare(self, one, other):
        self.difference = max(self.difference, float((np.abs(one - other) / np.maximum(1, np.abs(one))).max()))
        self.of_largest = max(self.of_largest, float(np.abs(one - other).max() / max(1, np.abs(one).max())))
        self.of_probabilities = max(self.of_probabilities, float(np.abs(expit(one) - expit(other)).max()))
        self.compared += 1

    async def whole(self):
        number = int(self.draw.integers(len(self.bodies)))
        found = await self.logits(self.bodies[number])
        self.compare(found, self.first.setdefault(number, found))

    async def kept(self):
        """A user's next behaviour, then the scores of the kept state against those of the whole history."""
        number = int(self.draw.integers(len(self.users)))
        async with self.locks[number]:
            body, seen = self.users[number], self.seen[number] % LONGEST
            rest = {key: value for key, value in body.items() if key != "history"}
            events = {"events": body["history"][seen : seen + 1], "start": seen == 0, "num_seen": seen}
            await self.ask(f"/v1/users/u{number}/events", events)
            self.seen[number] = seen + 1
            found = await self.logits({**rest, "user_id": f"u{number}"})
        self.compare(found, await self.logits({**body, "history": body["history"][: seen + 1]}))

    async def rerank(self):
        body = self.bodies[int(self.draw.integers(len(self.bodies)))]
        query = json.dumps({key: value for key, value in body.items() if key != "candidates"})
        found = await self.ask("/v1/rerank", {"query": query, "documents": body["candidates"]})
        assert len(found["results"]) == len(body["candidates"])

    async def wrong(self):
        await self.ask("/v1/score", {**self.bodies[0], **WRONG[self.draw.integers(len(WRONG))]}, expected=400)

    async def watch(self):
        for route in ("/health", "/ready", "/metrics"):
            assert (await self.client.get(route)).status_code == 200

    async def run(self, seconds, rate, pid):
        """Asks for so long at so many arrivals a second; MiB of the server, 64 times."""
        self.locks = [asyncio.Lock() for _ in self.users]
        self.memory, work, at = [], set(), time.perf_counter()
        began, asks = at, (self.whole, self.kept, self.rerank, self.wrong, self.watch)
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=self.url, timeout=60, limits=limits) as self.client:
            while at < began + seconds:
                await asyncio.sleep(max(at - time.perf_counter(), 0))
                if at - began >= len(self.memory) * seconds / 64:
                    self.memory.append(resident(pid))
                ask = asks[self.draw.choice(len(asks), p=(0.4, 0.3, 0.1, 0.15, 0.05))]
                work.add(task := asyncio.create_task(self.timed(ask, at, (at - began) / seconds)))
                task.add_done_callback(work.discard)
                at += self.draw.exponential(1 / rate)
            await asyncio.gather(*work)

    async def timed(self, ask, due, part):
        try:
            await ask()
        except Exception as error:
            self.failures.append(repr(error)[:1000])
        if ask == self.whole:
            self.latencies.append((int(4 * part), 1000 * (time.perf_counter() - due)))

    def quarters(self, percent):
        """Milliseconds of whole requests from their planned arrival, by quarter of the time."""
        return [
            round(float(np.percentile([ms for part, ms in self.latencies if part == n], percent)), 1) for n in range(4)
        ]


def resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def processor_seconds(pid):
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads /proc")
@pytest.mark.timeout(4000)
@pytest.mark.parametrize(
    ("kind", "seconds", "rate"),
    [
        ("hstu", 2, 25),
        pytest.param("qwen2", 3600, 8, marks=pytest.mark.campaign),
        pytest.param("hstu", 3600, 8, marks=pytest.mark.campaign),
    ],
)
def test_mixed_load(tmp_path, kind, seconds, rate):
    run = KINDS[kind][0](tmp_path / "run")
    process, url = started(run, "--threads", "1", "--workers", "2", "--deadline-ms", "60000")
    try:
        load = Load(kind, url, seed=0)
        began = processor_seconds(process.pid)
        asyncio.run(load.run(seconds, rate, process.pid))
        spent = processor_seconds(process.pid) - began
    finally:
        process.kill()
        process.wait()
    loaded = lmctr.runs.load(str(run))
    for number, found in load.first.items():
        load.compare(found, loaded.predict([load.bodies[number]]).reshape(-1))
    found = {"answers": load.statuses, "compared": load.compared, "largest_difference": load.difference}
    found |= {"processor_share": round(spent / seconds, 3), "p50_ms": load.quarters(50), "p99_ms": load.quarters(99)}
    assert not load.failures, load.failures[:5]
    print(json.dumps(found | {"MiB": [round(value, 1) for value in load.memory]}))
    assert set(load.statuses) == {200, 400}
    assert load.compared > seconds * rate / 3
    # A kept state adds in another order than the whole history does. Both are as far from float64, in which they agree; a logit near 0 of an
    # untrained model is what is left of terms of the size of the request's largest.
    assert load.of_probabilities < 1e-5
    assert load.of_largest < 1e-5
    assert load.difference < 3e-5
    quarters = np.array_split(load.memory, 4)
    if seconds > 60:  # caches of the allocator and of the interpreter fill in the first quarter
        assert np.median(quarters[3]) < 1.01 * np.median(quarters[1]) + 2
