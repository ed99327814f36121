"""`/v1/rerank`: the shape that clients of rerank servers send, turned into a request of the engine, and its scores into theirs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from lmctr.runs.answers.served import Scored
from lmctr.utils.files import parse_json
from lmctr.utils.outside import checked
from lmctr.utils.suggest import errors_of, refuse_unknown

# "model" and the bounds of texts are sent by clients of other servers; here the model is the one that is served.
_KEYS = ("id", "query", "documents", "top_n", "return_documents", "model", "max_tokens_per_doc", "deadline_ms")


def rerank_request(
    body: Mapping[str, Any],
    kind: str,
    last_time: Callable[[str], float | None] = lambda user: None,
) -> dict[str, Any]:
    """The request that a query and its documents stand for.

    The query is the user. For models of histories: the id of a kept state (a text or a whole number), or an object with `history` and
    `time` (and `scenario`, `user`); without a `time` it is now, or the second after the last behaviour (`last_time` of a kept state).
    For tables: an object of the columns that all documents share, and may repeat. For impressions: the user's columns. A client that sends
    texts only gives the object as JSON text.

    Raises:
        ValueError: names the key, what came and what is accepted.
    """
    refuse_unknown(body, _KEYS, "the request", "request: ")
    query, documents, most = body.get("query"), body.get("documents"), body.get("top_n")
    if not isinstance(documents, list) or not documents:
        raise ValueError("request: documents must be a list of at least one candidate")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ValueError(f"request: top_n must be a whole number of at least 1, got {most!r}")
    if not isinstance(body.get("return_documents", False), bool):
        raise ValueError(f"request: return_documents must be true or false, got {body['return_documents']!r}")
    if isinstance(query, str) and query.lstrip().startswith("{"):
        with errors_of("request: query begins like a JSON object, but is none"):
            query = checked(parse_json(query), "request: query")
    own = {"id": body["id"]} if "id" in body else {}
    if kind in ("text", "events"):
        if isinstance(query, (str, int)) and not isinstance(query, bool):
            query = {"user_id": query}
        if not isinstance(query, dict):
            raise ValueError(
                "request: query must be the id of a kept user, a text or a whole number, or an object (or its JSON text) with the user's "
                f"history and the time; got {query!r:.80}"
            )
        for key in query.keys() & {"candidates", *own}:
            beside = "documents" if key == "candidates" else key
            raise ValueError(f"request: query: {key!r}; the request has {beside!r} beside it; give it in one place")
        return own | {"time": _now(query, int(time.time()), last_time)} | query | {"candidates": documents}
    if not isinstance(query, dict):
        raise ValueError(f"request: query must be an object (or its JSON text) with columns; this model reads {kind}")
    if not all(isinstance(document, dict) for document in documents):
        raise ValueError(f"request: documents must be objects with columns; this model reads {kind}")
    if kind == "impressions":
        return own | {"user": query, "ads": documents}
    return own | {"shared": query, "candidates": [_besides(query, *one) for one in enumerate(documents)]}


def _besides(query: Mapping[str, Any], place: int, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns of a document that the query has not."""
    both = query.keys() & document.keys()
    for name in sorted(both):
        ours, theirs = json.dumps(query[name]), json.dumps(document[name])
        if ours != theirs:
            raise ValueError(
                f"request: documents[{place}]: the column {name!r} is {theirs:.80}, in the query {ours:.80}; give it in one place"
            )
    return {name: value for name, value in document.items() if name not in both} if both else document


def _now(query: Mapping[str, Any], now: int, last_time: Callable[[str], float | None]) -> int:
    """This second, or the one after the last behaviour, which may have come in it."""
    history, last = query.get("history"), None
    if "user_id" in query:
        last = last_time(str(query["user_id"]))
    elif isinstance(history, list) and history and isinstance(history[-1], dict):
        last = history[-1].get("time")
    is_number = isinstance(last, (int, float)) and math.isfinite(last)  # what is none is refused with the history
    return int(last) + 1 if is_number and now <= last < now + 60 else now


def rerank_answer(scored: Scored, body: Mapping[str, Any]) -> dict[str, Any]:
    """The documents by falling relevance: the probability of the first task, of retrieval families the score."""
    answer = scored.answer()
    values = answer.pop("scores", None)
    if values is None:
        values = answer.pop("probabilities", None)
        values = next(iter(values.values())) if isinstance(values, dict) else values
    order = sorted(range(len(values)), key=lambda place: -values[place])[: body.get("top_n")]
    results = [{"index": place, "relevance_score": values[place]} for place in order]
    if body.get("return_documents", False):
        for entry in results:
            document = body["documents"][entry["index"]]
            entry["document"] = {"text": document} if isinstance(document, str) else document
    return {"id": answer.pop("id", None), "model": scored.served.name, "results": results, **answer}
