"""The routes: JSON in, JSON out, errors that say what was wrong with the request and nothing about the inside."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from lmctr import __version__
from lmctr.runs.answers.engine import Conflict, Engine, UnknownUser
from lmctr.serving.batching import DeadlinePassed, Draining, QueueFull
from lmctr.utils.files import parse_json
from lmctr.utils.outside import checked
from lmctr.utils.suggest import reworded

from .metrics import ServerMetrics
from .rerank import rerank_answer, rerank_request

logger = logging.getLogger(__name__)


_LARGE = 1 << 16  # bytes that take about a millisecond to read
_LONGEST = 2000  # characters of an error's message


def create_app(engine: Engine, metrics: ServerMetrics, *, deadline: float = 10.0, max_body: int = 8 << 20) -> FastAPI:
    """The web application of an engine.

    Args:
        deadline: seconds of a request that brings no `deadline_ms`. max_body: bytes of a request.
    """
    plain = {"docs_url": None, "redoc_url": None, "redirect_slashes": False}
    # where openapi.json was read, so below a proxy's prefix there too
    app = FastAPI(title="lmctr", version=__version__, servers=[{"url": "."}], **plain)
    metrics.engine = engine

    async def answered(route: str, request: Request, work: Callable[[dict[str, Any]], Awaitable[dict]]) -> Response:
        began = time.monotonic()
        try:
            response = _json(200, await work(await _read(request, max_body, deadline)))
        except Exception as error:
            response = _error(error)
        metrics.requests.labels(route, str(response.status_code)).inc()
        metrics.latency.labels(route).observe(time.monotonic() - began)
        return response

    def until(body: dict[str, Any]) -> float:
        given = body.pop("deadline_ms", None)
        if given is None:
            return time.monotonic() + deadline
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < math.inf:
            raise ValueError(f"request: deadline_ms must be a number above 0, got {given!r}")
        return time.monotonic() + given / 1000

    async def scored(body: dict[str, Any], end: float) -> Any:
        result = await _result(engine.score(body, end), end)
        metrics.candidates.inc(len(result.logits))
        metrics.count(result.counts)
        return result

    @app.post("/v1/score", openapi_extra=_BODY)
    async def score(request: Request) -> Response:
        """Probabilities of one user's candidates, of rows, or scores of an impression's ads."""

        async def work(body: dict[str, Any]) -> dict[str, Any]:
            end, with_logits = until(body), body.pop("logits", False)
            if not isinstance(with_logits, bool):
                raise ValueError(f"request: logits must be true or false, got {with_logits!r}")
            return (await scored(body, end)).answer(with_logits)

        return await answered("/v1/score", request, work)

    @app.post("/v1/rerank", openapi_extra=_BODY)
    @app.post("/v2/rerank", include_in_schema=False)
    @app.post("/rerank", include_in_schema=False)
    async def rerank(request: Request) -> Response:
        """Documents by falling relevance to the user that the query names."""

        async def work(body: dict[str, Any]) -> dict[str, Any]:
            end = until(body)
            with reworded(lambda text: re.sub(r"\b(candidates|ads)\[", "documents[", text)):
                asked = rerank_request(body, engine.served.kind, last_time=engine.last_time)
                return rerank_answer(await scored(asked, end), body)

        return await answered("/v1/rerank", request, work)

    @app.post("/v1/users/{user_id:path}/events", openapi_extra=_BODY)
    async def events(user_id: str, request: Request) -> Response:
        """Append behaviours to a kept state, or start one."""

        async def work(body: dict[str, Any]) -> dict[str, Any]:
            end = until(body)
            # What has begun is waited for: the caller must know whether the behaviours were added.
            result = await _result(engine.add_events(user_id, body, end), end, to_the_end=True)
            metrics.count(result.counts)
            return result.answer()

        return await answered("/v1/users/{id}/events", request, work)

    @app.get("/health")
    @app.head("/health", include_in_schema=False)
    async def health() -> Response:
        """Whether the process works."""
        return _json(200 if engine.batcher.is_alive else 503, {"status": "ok" if engine.batcher.is_alive else "dead"})

    @app.get("/ready")
    @app.head("/ready", include_in_schema=False)
    async def ready() -> Response:
        """Whether it takes requests: the model gave the known answers to the run's reference rows, and no stop was asked for."""
        served = engine.served
        probe = "none: the folder holds no reference rows"
        if served.probe is not None:
            probe = {"rows": served.probe[0], "largest_difference": served.probe[1]}
        about = {"model": served.name, "kind": served.kind, "model_version": served.version}
        about |= {"processor_fingerprint": served.fingerprint, "probe": probe}
        open_ = engine.batcher.is_alive and not engine.batcher.is_closed
        return _json(200 if open_ else 503, {"ready": open_, **about})

    @app.get("/metrics")
    async def prometheus() -> Response:
        """Counters for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return _failed(error.status_code, message, dict(error.headers or {}))

    return app


_BODY = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}, "required": True}}


async def _read(request: Request, most: int, seconds: float) -> dict[str, Any]:
    """The object of a body that comes in time; a large one is parsed beside what else is answered."""
    encoding = request.headers.get("content-encoding", "").strip()
    if encoding.lower() not in ("", "identity"):
        raise HTTPException(
            415, f"the request's Content-Encoding {encoding!r} is not read; send JSON as it is, without it"
        )
    try:
        text = await asyncio.wait_for(_body(request, most), seconds)
    except TimeoutError:
        raise HTTPException(408, f"the request's body did not come within {seconds:g} s") from None
    return _object(text) if len(text) < _LARGE else await asyncio.to_thread(_object, text)


async def _body(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise HTTPException(413, f"the request is larger than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def _object(text: bytes) -> dict[str, Any]:
    try:
        body = parse_json(text)
    except ValueError as error:  # no UTF-8 among them
        raise ValueError(f"request: no valid JSON: {str(error).removeprefix('not valid JSON: ')}") from error
    if not isinstance(body, dict):
        raise ValueError(f"request: expected a JSON object, got {type(body).__name__}")
    return checked(body, "request")


async def _result(future: Future, end: float, to_the_end: bool = False) -> Any:
    """The result of some work, as long as there is time."""
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.wait_for(asyncio.shield(waiting), max(end - time.monotonic(), 0.0))
    except TimeoutError:
        if not future.cancel() and to_the_end:
            return await waiting
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody asks for it any more
        raise DeadlinePassed("the deadline passed before there was an answer") from None


def _json(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    return Response(text, status_code=status, headers=headers, media_type="application/json")


def _failed(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    if len(message) > _LONGEST:  # it repeats a value of the request
        message = f"{message[: _LONGEST * 3 // 4]} ... {message[-_LONGEST // 4 :]}"
    return _json(status, {"error": {"message": message, "code": status}}, headers)


def _error(error: Exception) -> Response:
    """The answer to a request that failed. What is no fault of the request goes to the log under a number, and only the number out."""
    if isinstance(error, QueueFull):
        return _failed(429, str(error), {"Retry-After": str(error.retry_after)})
    if isinstance(error, Draining):
        return _failed(503, str(error), {"Retry-After": "1", "Connection": "close"})
    if isinstance(error, HTTPException):
        return _failed(error.status_code, error.detail)
    for kind, status in (
        (UnknownUser, 404),
        (Conflict, 409),
        (DeadlinePassed, 504),
        (ClientDisconnect, 400),
        (ValueError, 400),
    ):
        if isinstance(error, kind):
            return _failed(status, str(error) or "the request's body broke off")
    number = uuid.uuid4().hex
    logger.error("request failed, number %s", number, exc_info=error)
    return _failed(500, f"the server failed at this request; its log says why under the number {number}")
