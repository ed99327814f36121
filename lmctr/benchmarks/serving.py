"""`lmctr benchmark serving`: an open loop of requests to `lmctr serve`, against the same requests scored in this process.

Requests arrive when they arrive (Poisson), whether or not the ones before were answered, and a latency counts from the planned arrival:
a server that stalls cannot hide it by keeping its clients from asking (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import torch

from lmctr.benchmarks.harness import machine_text, reports, results, say, table
from lmctr.benchmarks.inputs import SEED, behaviors, catalogue_tokenizer, prompt_of, random_model, read_log
from lmctr.benchmarks.options import ServingBenchmark
from lmctr.data.logs.log import InteractionLog
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.prompt import Prompt
from lmctr.runs.folder import ITEM_STATISTICS
from lmctr.runs.reference import write_reference
from lmctr.serving import UserState
from lmctr.statistics import ItemStatistics, StatisticsReader

_TOLERANCE = 1e-5
_START = 300  # seconds until the server must listen


class _Asked(NamedTuple):
    """One request: whose, which candidates, and as HTTP has it."""

    user: int
    candidates: list[dict[str, str]]
    time: int
    message: bytes


class _Answered(NamedTuple):
    asked: _Asked
    seconds: float  # from the planned arrival
    finished: float
    status: int
    body: bytes


def benchmark_serving(options: ServingBenchmark) -> dict[str, Any]:
    """Measure a server in a process of its own at several loads, shares of what this process scores from kept states.

    Returns:
        `machine`, `settings`; `row_by_row` and `kept`: candidates per second in this process, with statistics also `kept_with_statistics`;
        `loads`: for each load, and each model, the `statistics` that it reads, the candidates per second that were offered and answered,
        latencies in ms (p50, p95, p99), answers other than 200, requests per batch, resident memory of the server in MiB over the run;
        `largest_difference` of a logit from this process.

    Raises:
        ValueError: the server did not start, or its scores differ by more than 1e-5.
    """
    options = options.sized()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    log = read_log(options, num_users=options.users, num_items=500, events_per_user=2 * options.num_behaviors)
    draw = np.random.default_rng(SEED)
    with ExitStack() as stack:
        arms = [stack.enter_context(_arm(options, log, own)) for own in dict.fromkeys((None, options.statistics))]
        rates = [[_in_process(arm.states, arm.asked, options.seconds / 4)] for arm in arms]
        rows = _row_by_row(arms[0], options.seconds / 4)
        say(f"in this process: {rates[0][0]:,.1f} candidates/s from kept states, {rows:,.1f} row by row")
        loads, difference = [], 0.0
        for share in options.loads:
            for arm, own in zip(arms, rates):
                rate = share * own[-1] / options.candidates
                found = _load(options, arm.asked, rate, arm.address, arm.process.pid, draw, share)
                difference = max(difference, _difference(found.pop("answers"), arm.states))
                # Measured anew beside each load, since a shared machine changes from minute to minute.
                own.append(_in_process(arm.states, arm.asked, options.seconds / 4))
                of_kept = found["answered"] / np.mean(own[-2:])
                loads.append({"statistics": arm.statistics, **found, "of_kept": of_kept})
    if difference > _TOLERANCE:
        raise ValueError(
            f"logits of the server differ by {difference:.2g} from those of this process; please report this"
        )
    return {
        **results(options, "cpu", parameters=arms[0].model.num_parameters()),
        "row_by_row": rows,
        "kept": rates[0],
        **({"kept_with_statistics": rates[1]} if rates[1:] else {}),
        "loads": loads,
        "largest_difference": difference,
    }


class _Arm(NamedTuple):
    """A model with the statistics that it reads, states of users with their histories, what is asked for them, and its server."""

    statistics: str | None
    model: torch.nn.Module
    processor: CTRSinkProcessor
    histories: list[list[dict[str, Any]]]
    states: list[UserState]
    asked: list[_Asked]
    address: tuple[str, int]
    process: subprocess.Popen


@contextmanager
def _arm(options: ServingBenchmark, log: InteractionLog, statistics: str | None) -> Iterator[_Arm]:
    reader = None if statistics is None else StatisticsReader.fit(log, log.sample_events(), statistics)
    model, processor, histories, items = _model(options, log, reader)
    table = None if reader is None else ItemStatistics.from_log(log, reader)
    time = int(log.time.max()) + 60
    asked = _requests(options, items, time, np.random.default_rng(SEED))
    states = [UserState(model, processor, history, items=table) for history in histories]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        if table is not None:
            table.save(Path(folder) / ITEM_STATISTICS)
        (first,) = UserState.filled([(states[0], items[:1], time)])
        write_reference(folder, model, processor(histories=histories[:1], targets=first, times=[time]))
        with _server(folder, options) as (address, process):
            _start_users(address, histories)
            yield _Arm(statistics, model, processor, histories, states, asked, address, process)


def _model(
    options: ServingBenchmark, log: InteractionLog, reader: StatisticsReader | None
) -> tuple[Any, CTRSinkProcessor, list[list[dict[str, Any]]], list[dict[str, Any]]]:
    """A model with random weights, its processor, histories of users, and the items as candidates."""
    prompt = prompt_of(log)
    texts = Prompt.load(prompt).item_texts(log.catalogue)
    processor = CTRSinkProcessor(
        catalogue_tokenizer(log, "bpe"),
        prompt=prompt,
        feedback="inline",
        sink_signal="feedback",
        num_behaviors=options.num_behaviors,
        statistics_reader=reader,
    )
    starts, counts = np.unique(log.user, return_index=True)[1], np.bincount(log.user)
    histories = [
        behaviors(log, texts, int(start), int(start) + options.num_behaviors, reader is not None)
        for start, count in zip(starts, counts[counts > 0])
        if count >= options.num_behaviors
    ][: options.users]
    if len(histories) < options.users:
        raise ValueError(
            f"{log.info.name} has {len(histories)} users of {options.num_behaviors} behaviours; lower --users or --num-behaviors"
        )
    size = 0 if reader is None else len(reader.names)
    target = {"text": max(texts, key=len), **({"statistics": [0.0] * size} if size else {})}
    longest = max(
        processor(histories=[history], targets=[target], times=[history[-1]["time"] + 60])["input_ids"].shape[1]
        for history in histories
    )
    spread = {"initializer_range": options.hidden_size**-0.5}  # so that the candidates' logits differ
    model = random_model(
        options, processor, 2 * longest, spread, sink_signal=processor.sink_signal, num_statistics=size
    )
    items = [{"text": text} for text in texts]
    if reader is not None:
        items = [{**item, "item": name} for item, name in zip(items, log.catalogue["item_id"].to_pylist())]
    return model.eval(), processor, histories, items


def _message(route: str, body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    head = f"POST {route} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


def _requests(
    options: ServingBenchmark, items: list[dict[str, Any]], time: int, draw: np.random.Generator
) -> list[_Asked]:
    """Different requests, to be asked again and again in their order."""
    asked = []
    for _ in range(4 * options.users):
        user = int(draw.integers(options.users))
        candidates = [items[item] for item in draw.choice(len(items), options.candidates, replace=False)]
        body = {"user_id": str(user), "candidates": candidates, "time": time, "logits": True}
        asked.append(_Asked(user, candidates, body["time"], _message("/v1/score", body)))
    return asked


@contextmanager
def _server(folder: str, options: ServingBenchmark) -> Iterator[tuple[tuple[str, int], subprocess.Popen]]:
    """`lmctr serve` of the folder: its address and its process."""
    words = [sys.executable, "-m", "lmctr", "serve", folder, "--port", "0", "--device", "cpu"]
    words += ["--deadline-ms", "60000"]
    for name in ("threads", "workers"):
        if getattr(options, name) is not None:
            words += [f"--{name}", str(getattr(options, name))]
    errors = Path(folder) / "server.log"
    with open(errors, "w") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        line = process.stdout.readline()
        if "http://" not in line:
            raise ValueError(f"the server did not start: {errors.read_text()[-500:]}")
        say(line.strip())
        place = urlsplit(line.split()[-1])
        yield (place.hostname, place.port), process
    finally:
        process.terminate()
        process.wait(_START)
        process.stdout.close()


async def _post(pool: list, address: tuple[str, int], message: bytes) -> tuple[int, bytes]:
    """Status and body of a request, over a connection that is free, or a new one."""
    reader, writer = pool.pop() if pool else await asyncio.open_connection(*address)
    writer.write(message)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    body = await reader.readexactly(length)
    pool.append((reader, writer))
    return int(head.split()[1]), body


def _start_users(address: tuple[str, int], histories: list) -> None:
    async def start() -> None:
        pool: list = []
        for number, history in enumerate(histories):
            body = {"events": history, "start": True}
            status, text = await _post(pool, address, _message(f"/v1/users/{number}/events", body))
            if status != 200:
                raise ValueError(f"the server refused a user's history: {text.decode()[:500]}")

    asyncio.run(start())


def _in_process(states: list[UserState], asked: Sequence[_Asked], seconds: float) -> float:
    """Candidates per second from kept states, one request after the other."""
    for one in asked[:3]:
        states[one.user].score(one.candidates, one.time)
    began, done, number = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        one = asked[number % len(asked)]
        done += len(states[one.user].score(one.candidates, one.time))
        number += 1
    return done / (time.perf_counter() - began)


def _row_by_row(arm: _Arm, seconds: float) -> float:
    began, done = time.perf_counter(), 0
    with torch.inference_mode():
        for one in arm.asked:
            history = [arm.histories[one.user]]
            for candidate in one.candidates:
                arm.model(**arm.processor(histories=history, targets=[candidate], times=[one.time]))
                done += 1
                if time.perf_counter() - began > seconds:
                    return done / (time.perf_counter() - began)
    return done / (time.perf_counter() - began)


def _load(
    options: ServingBenchmark,
    asked: Sequence[_Asked],
    rate: float,
    address: tuple[str, int],
    pid: int,
    draw: np.random.Generator,
    share: float,
) -> dict[str, Any]:
    """Requests at `rate` a second for the options' time; what became of them."""
    gaps = draw.exponential(1 / rate, max(int(rate * options.seconds), 2))
    planned = np.cumsum(gaps)
    before = asyncio.run(_batches(address))
    memory = [_resident(pid)]

    async def run() -> list[_Answered]:
        pool: list = []
        began = time.perf_counter() + 0.1

        async def one(number: int) -> _Answered:
            due = began + planned[number]
            await asyncio.sleep(due - time.perf_counter())
            request = asked[number % len(asked)]
            status, body = await _post(pool, address, request.message)
            now = time.perf_counter()
            if number % max(len(planned) // 10, 1) == 0:
                memory.append(_resident(pid))
            return _Answered(request, now - due, now - began, status, body)

        return await asyncio.gather(*(one(number) for number in range(len(planned))))

    answers = asyncio.run(run())
    good = [one for one in answers if one.status == 200]
    if not good:
        raise ValueError(f"the server answered no request: {answers[0].status} {answers[0].body.decode()[:300]}")
    batches, works = (now - then for now, then in zip(asyncio.run(_batches(address)), before))
    latency = dict(
        zip(("p50", "p95", "p99"), np.percentile([1000 * one.seconds for one in good], (50, 95, 99)).tolist())
    )
    found = {
        "load": share,
        "requests": len(answers),
        "offered": len(answers) * options.candidates / float(planned[-1]),
        "answered": len(good) * options.candidates / max(one.finished for one in good),
        "other_answers": len(answers) - len(good),
        **latency,
        "p99_to_p50": latency["p99"] / latency["p50"],
        "requests_per_batch": works / batches,
        "memory": memory,
    }
    say(
        f"load {share:g}: {found['answered']:,.1f} candidates/s, p50 {latency['p50']:.0f} ms, p99 {latency['p99']:.0f} ms"
    )
    return found | {"answers": good[:: max(len(good) // 50, 1)]}


async def _batches(address: tuple[str, int]) -> tuple[float, float]:
    """Batches and requests in them, so far."""
    _, body = await _post([], address, b"GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n")
    values = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    return float(values["lmctr_batch_requests_count"]), float(values["lmctr_batch_requests_sum"])


def _resident(pid: int) -> float | None:
    """MiB of a process; None where the system does not say."""
    file = Path(f"/proc/{pid}/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20 if file.is_file() else None


def _difference(answers: Sequence[_Answered], states: list[UserState]) -> float:
    """Largest difference of a logit from the same request scored here."""
    found = 0.0
    for asked, *_, body in answers:
        expected = states[asked.user].score(asked.candidates, asked.time).numpy()
        found = max(found, float(np.abs(np.array(json.loads(body)["logits"]) - expected).max()))
    return found


def as_markdown(result: Mapping[str, Any]) -> str:
    settings, kept = result["settings"], result["kept"]
    rows = [one | {"span": _span(one["memory"]), "read": one["statistics"] or "-"} for one in result["loads"]]
    form = (
        "{load:.2f} | {read} | {offered:,.0f} | {answered:,.0f} | {of_kept:.0%} | {p50:.1f} | {p95:.1f} | {p99:.1f} | {p99_to_p50:.1f} | "
        "{requests_per_batch:.1f} | {other_answers} | {span}"
    )
    counted = ""
    if more := result.get("kept_with_statistics"):
        counted = (
            f"; with statistics {min(more):,.1f} to {max(more):,.1f}, {np.median(more) / np.median(kept):.0%} of these"
        )
    head = "load | statistics | offered/s | answered/s | of kept | p50 ms | p95 ms | p99 ms | p99/p50 | requests per batch | not 200 | server MiB"
    return f"""## Serving candidates over HTTP

{settings["model_type"]}, {settings["layers"]} layers of width {settings["hidden_size"]}, {settings["parameters"]:,} parameters; \
{settings["users"]} kept users of {settings["num_behaviors"]} behaviours, {settings["candidates"]} candidates a request; Poisson arrivals for \
{settings["seconds"]:g} s at each load, latency from the planned arrival.
{machine_text(result)}

In this process: {result["row_by_row"]:,.1f} candidates/s row by row; from kept states {min(kept):,.1f} to {max(kept):,.1f} (before and after \
each load{counted}). `load` is the share of these that is offered.

{table(head, form, rows)}

Largest difference of a logit from this process: {result["largest_difference"]:.1e}."""


def _span(memory: Sequence[float | None]) -> str:
    return "-" if memory[0] is None else f"{memory[0]:.0f} to {memory[-1]:.0f}"


run = reports(benchmark_serving, as_markdown)
