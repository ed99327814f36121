"""The scoring server on loopback: answers are the library's, under load as alone; what is wrong is told and harms nobody."""

import gzip
import json
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from served_runs import KINDS, event_request, event_run, live, logits_of, table_run, text_request, text_run

import lmctr
from lmctr.runs.answers.served import ServedModel
from lmctr.serving.fingerprint import model_fingerprint
from lmctr.serving.precision import int8_is_exact


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kind, seed=0):
        if (kind, seed) not in made:
            made[kind, seed] = KINDS[kind][0](tmp_path_factory.mktemp(kind), seed=seed)
        return made[kind, seed]

    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_under_concurrent_load_every_score_is_that_of_the_request_alone(folders, kind):
    """Many clients at once, so that batches hold requests of several users, with wrong requests among them."""
    run, request_of = folders(kind), KINDS[kind][1]
    loaded = lmctr.runs.load(str(run))
    requests = [request_of(seed) for seed in range(24)]
    key = next(key for key in ("candidates", "rows", "ads") if key in requests[0])
    alone = [loaded.predict(request["rows"] if key == "rows" else [request]).reshape(-1) for request in requests]
    assert np.concatenate(alone).std() > 1e-3
    wrong = [{**requests[0], key: []}, {"unknown": 1}, {**requests[0], key: [{"nothing": 1}]}]
    with live(run, max_wait=0.05) as server, ThreadPoolExecutor(12) as pool:
        found = list(
            pool.map(lambda body: server.post("/v1/score", {**body, "logits": True}), [*requests, *wrong] * 2)
        )
        for number, expected in enumerate(alone * 2):
            response = found[number % 24 + number // 24 * 27]
            assert response.status_code == 200, response.text
            answer = response.json()
            np.testing.assert_allclose(logits_of(answer), expected, atol=1e-5, rtol=0)
            if "probabilities" in answer:
                np.testing.assert_allclose(answer["probabilities"], 1 / (1 + np.exp(-expected)), atol=1e-5)
            assert answer["model_version"] == model_fingerprint(loaded.model)
            assert answer["processor_fingerprint"] == loaded.processor.fingerprint
        for response in found[24:27] + found[51:]:
            assert response.status_code == 400
            assert response.json()["error"]["message"]
        batches = server.metric("lmctr_batch_requests_count")
        assert 0 < batches < server.metric("lmctr_batch_requests_sum")  # several at a time
        assert server.metric("lmctr_candidates_total") == 2 * sum(map(len, alone))
        assert server.metric("lmctr_requests_total", route="/v1/score", status="400") == 6


@pytest.mark.parametrize("kind", ["qwen2", "bert", "hstu", "din"])
def test_kept_states_score_as_fresh_ones_under_load(folders, kind):
    """Each user's behaviours come in parts, scores between them, all users at once."""
    run, request_of = folders(kind), KINDS[kind][1]
    loaded = lmctr.runs.load(str(run))

    def user(number):
        body = request_of(number, behaviors=9, candidates=4)
        events, rest = body["history"], {key: value for key, value in body.items() if key != "history"}
        found, seen = [], 0
        for until in (3, 4, 9):
            more = {"events": events[seen:until], "start": seen == 0, "num_seen": seen}
            response = server.post(f"/v1/users/u{number}/events", more)
            assert response.status_code == 200, response.text
            assert response.json()["num_seen"] == until
            found.append(logits_of(server.score({**rest, "user_id": f"u{number}"})))
            seen = until
        return found

    with live(run, max_wait=0.02) as server, ThreadPoolExecutor(8) as pool:
        served = list(pool.map(user, range(8)))
        assert server.metric("lmctr_user_states") == 8
        assert server.metric("lmctr_user_state_bytes") > 0
        assert server.metric("lmctr_user_state_hit_rate") == 1  # the start of a state asks for none
        assert server.metric("lmctr_batch_requests_sum") > server.metric("lmctr_batch_requests_count")
    for number, found in enumerate(served):
        body = request_of(number, behaviors=9, candidates=4)
        for until, logits in zip((3, 4, 9), found):
            expected = loaded.predict([{**body, "history": body["history"][:until]}]).reshape(-1)
            np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=0)


def test_states_that_are_not_there_and_states_that_went(folders):
    run = folders("qwen2")
    with live(run, max_state_bytes=200_000, time_to_live=0.3) as server:
        states, now = server.engine.states, [0.0]
        states._clock = lambda: now[0]
        asked = {"user_id": "nobody", "candidates": ["Heat"], "time": 5}
        for response in (server.post("/v1/score", asked), server.post("/v1/users/nobody/events", {"events": []})):
            assert response.status_code == 404
            assert "send the whole history" in response.json()["error"]["message"]
        for number in range(12):
            body = {"events": text_request(number, 6)["history"], "start": True}
            assert server.post(f"/v1/users/{number}/events", body).json()["kept"]
        assert 0 < len(states) < 12
        assert states.num_bytes <= 200_000
        assert server.metric("lmctr_user_states_dropped_total", reason="memory") == 12 - len(states)
        assert server.post("/v1/score", {**asked, "user_id": 0}).status_code == 404  # the oldest
        assert server.post("/v1/score", {**asked, "user_id": "11", "time": 10**6}).status_code == 200
        response = server.post("/v1/users/11/events", {"events": [], "num_seen": 5})
        assert response.status_code == 409
        assert "has seen 6 behaviours, not 5" in response.json()["error"]["message"]
        now[0] = 0.4
        assert server.post("/v1/score", {**asked, "user_id": "11", "time": 10**6}).status_code == 404
        assert server.metric("lmctr_user_states_dropped_total", reason="expired") > 0


def test_the_share_of_unknown_values(folders):
    with live(folders("deepfm")) as server:
        rows = [{"ad": "a1", "price": 1.0}, {"ad": "zz", "price": None}]
        assert server.score({"rows": rows})["unknown_share"] == 1 / 3  # the missing price is no value
        assert server.metric("lmctr_unknown_values_total", field="ad") == 1
        assert [server.metric("lmctr_values_total", field=name) for name in ("ad", "price")] == [2, 1]
        server.engine.served.usual_unknown = {"ad": 0.25}.get
        assert server.metric("lmctr_usual_unknown_share", field="ad") == 0.25
    with live(folders("hstu")) as server:
        body = event_request(0, 3, 2)
        body["history"] = [{**event, "behavior": "like"} for event in body["history"]]
        assert server.score(body)["unknown_share"] == 0
        assert server.score({**body, "candidates": [*body["candidates"], 999, 998]})["unknown_share"] == 2 / 17
        events = {"events": [*body["history"], {**body["history"][-1], "item": 999}], "start": True}
        assert server.post("/v1/users/1/events", events).json()["unknown_share"] == 1 / 12
        for entry in events["events"]:
            del entry["behavior"], entry["scenario"]
        assert server.post("/v1/users/1/events", events).json()["unknown_share"] == 9 / 12
    with live(folders("bert")) as server:
        body = {"history": [], "candidates": ["Heat", "☃"], "time": 5}
        assert 0 < server.score(body)["unknown_share"] < 1
        assert server.score({**body, "candidates": ["Heat"]})["unknown_share"] == 0
        said = [{"text": "Heat", "time": time, "feedback": "liked"} for time in (1, 2, 3)]
        unsaid = [{"text": "Heat", "time": time, "label": 1} for time in (1, 2, 3)]
        tokens = len(server.engine.served.processor.tokenizer("Heat", add_special_tokens=False)["input_ids"])
        for history, share in ((said, 0), (unsaid, 3 / (3 + 4 * tokens))):
            assert server.score({**body, "history": history, "candidates": ["Heat"]})["unknown_share"] == share


@pytest.mark.parametrize("kind", KINDS)
def test_workers_share_weights_and_keep_what_a_call_leaves_behind(folders, kind):
    first, second = ServedModel(str(folders(kind))).twins(2)
    assert second.model is first.model
    asked = [[(first.check(KINDS[kind][1](seed)), None)] for seed in (3, 4)]
    expected = [[one.score(own) for own in asked] for one in (first, second)]
    for own, other in zip(*expected):
        np.testing.assert_array_equal(own[0].logits, other[0].logits)
        assert own[0].counts == other[0].counts
    if kind in ("deepfm", "two_tower"):  # whose processors leave their counts behind
        first.score(asked[0])
        counts = first.processor.oov_counts
        second.score(asked[1])
        assert first.processor.oov_counts is counts
        assert second.processor.oov_counts is not counts
    else:
        assert first.answers is not second.answers


NEEDS_INT8 = pytest.mark.skipif(not int8_is_exact(), reason="this processor multiplies eight bits inexactly")
_LOWER = [(kind, *one) for kind in KINDS for one in (("bfloat16", 0.2), ("float16", 0.02))] + [
    pytest.param(kind, "int8", 0.15, marks=NEEDS_INT8) for kind in KINDS if KINDS[kind][1] is text_request
]


@pytest.mark.parametrize(("kind", "dtype", "tolerance"), _LOWER)
def test_lower_precision(folders, kind, dtype, tolerance):
    served = ServedModel(str(folders(kind)), dtype=dtype)
    kept = getattr(torch, {"int8": "float32"}.get(dtype, dtype))
    assert {p.dtype for p in served.model.parameters() if p.is_floating_point()} == {kept}
    bodies = [KINDS[kind][1](seed) for seed in (3, 4, 5)]
    with live(folders(kind)) as server:
        expected = [logits_of(server.score(body)) for body in bodies]
        server.engine.swap(served)
        found = [logits_of(server.score(body)) for body in bodies]
        for half, full in zip(found, expected):
            np.testing.assert_allclose(half, full, atol=tolerance, rtol=0)
        assert any((np.array(half) != np.array(full)).any() for half, full in zip(found, expected))
        if kind in ("qwen2", "hstu"):
            body = bodies[0]
            server.post("/v1/users/u/events", {"events": body["history"], "start": True})
            kept = server.score({key: value for key, value in body.items() if key != "history"} | {"user_id": "u"})
            np.testing.assert_allclose(logits_of(kept), found[0], atol=tolerance, rtol=0)
    rows, difference = served.probe
    assert rows > 0
    assert 0 < difference < tolerance


def test_rerank_in_the_shape_that_its_clients_send(folders):
    with live(folders("qwen2")) as server:
        body = text_request(3, 5, 4)
        query = {key: body[key] for key in ("history", "time")}
        expected = server.score(body)["probabilities"]
        order = sorted(range(4), key=lambda place: -expected[place])
        asked = {"model": "any", "query": json.dumps(query), "documents": body["candidates"], "top_n": 3}
        for route in ("/v1/rerank", "/v2/rerank", "/rerank"):
            answer = server.post(route, {**asked, "return_documents": True}).json()
            assert [entry["index"] for entry in answer["results"]] == order[:3]
            for entry in answer["results"]:
                assert entry["relevance_score"] == pytest.approx(expected[entry["index"]], abs=1e-6)
                assert entry["document"] == {"text": body["candidates"][entry["index"]]}
        server.post("/v1/users/u/events", {"events": body["history"], "start": True})
        kept = server.post("/v1/rerank", {"query": "u", "documents": [{"text": text} for text in body["candidates"]]})
        assert [entry["index"] for entry in kept.json()["results"]] == order
        assert server.post("/v1/rerank", {**asked, "query": "what is a sink"}).status_code == 404
        server.post("/v1/users/7/events", {"events": body["history"], "start": True})
        for user in (7, "7"):
            answer = server.post("/v1/rerank", {**asked, "query": user})
            assert [entry["index"] for entry in answer.json()["results"]] == order[:3]
        for wrong, message in (
            ({"query": 5.5}, "query must be the id of a kept user, a text or a whole number, or an object"),
            ({"query": True}, "got True"),
            ({"query": "{"}, "begins like a JSON object"),
            ({"top_n": 0}, "top_n must be"),
            ({"documents": []}, "documents must be"),
            ({"documents": ["a", 5]}, "request: documents[1]: a target is a text"),
            ({"topn": 3}, "'top_n'"),
            ({"query": query | {"candidates": ["a"]}}, "query: 'candidates'; the request has 'documents' beside it"),
            ({"query": query | {"id": 1}, "id": 2}, "query: 'id'; the request has 'id' beside it"),
        ):
            response = server.post("/v1/rerank", {**asked, **wrong})
            assert response.status_code == 400
            assert message in response.json()["error"]["message"]
        late = query | {"time": 40000 * "9"}
        told = server.post("/v1/rerank", {**asked, "query": late}).json()["error"]["message"]
        assert "9 ... 9" in told
        assert len(told) < 2100
    with live(folders("deepfm")) as server:
        documents = [{"ad": f"a{number}"} for number in range(4)]
        expected = server.score({"rows": [{**one, "price": 3.0} for one in documents]})["probabilities"]
        found = server.post("/v1/rerank", {"query": {"price": 3.0}, "documents": documents}).json()["results"]
        assert [entry["index"] for entry in found] == sorted(range(4), key=lambda place: -expected[place])
        again = {"query": {"price": 3.0}, "documents": [documents[0] | {"price": 3.0}, *documents[1:]]}
        assert server.post("/v1/rerank", again).json()["results"] == found
        again["documents"][2] = documents[2] | {"price": 4.5}
        refused = server.post("/v1/rerank", again)
        assert refused.status_code == 400
        message = "request: documents[2]: the column 'price' is 4.5, in the query 3.0; give it in one place"
        assert refused.json()["error"]["message"] == message
    with live(folders("two_tower")) as server:
        body = KINDS["two_tower"][1](4)
        expected = server.score(body)["scores"]
        assert server.score({**body, "ads": [ad | {"colour": "red"} for ad in body["ads"]]})["scores"] == expected
        short = {**body["ads"][1]}
        del short["ad_c1"]
        refused = server.post("/v1/score", {**body, "ads": [body["ads"][0], short]}).json()["error"]["message"]
        assert refused.startswith("request: ads[1]: no 'ad_c1'; give every column of ['ad_id', 'ad_c1',")
        found = server.post("/v1/rerank", {"query": body["user"], "documents": body["ads"]}).json()["results"]
        assert [entry["relevance_score"] for entry in found] == pytest.approx(sorted(expected, reverse=True))


def test_a_full_queue_is_429_and_a_late_answer_504(folders):
    began, released = threading.Event(), threading.Event()
    with live(folders("deepfm"), workers=1, max_queue=2, max_wait=0.0) as server, ThreadPoolExecutor(8) as pool:
        score = server.engine.served.score
        server.engine.served.score = lambda asked: (began.set(), released.wait(20), score(asked))[2]
        body = KINDS["deepfm"][1](0)
        first = pool.submit(server.post, "/v1/score", body)
        assert began.wait(20)
        waiting = [pool.submit(server.post, "/v1/score", {**body, "deadline_ms": 300 + place}) for place in range(2)]
        while server.engine.batcher.num_waiting < 2:
            time.sleep(0.01)
        refused = server.post("/v1/score", body)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert server.client.get("/health").status_code == 200  # the loop is free
        assert [one.result().status_code for one in waiting] == [504, 504]
        released.set()
        assert first.result().status_code == 200
        assert server.post("/v1/score", body).status_code == 200


def test_wrong_requests_are_told_and_faults_are_not_shown(folders, caplog):
    with live(folders("bert"), limits={"max_body": 5000}, workers=1) as server:
        body = text_request(1, 2, 2)

        def error(status, route="/v1/score", **call):
            response = server.client.post(route, **call)
            assert response.status_code == status, response.text
            assert "Traceback" not in response.text
            return response.json()["error"]["message"]

        assert "no valid JSON" in error(400, content=b"{")
        assert "no valid JSON" in error(400, content=b"\xff\xfe")
        packed = {"content": gzip.compress(json.dumps(body).encode()), "headers": {"Content-Encoding": "gzip"}}
        assert "Content-Encoding 'gzip' is not read; send JSON as it is" in error(415, **packed)
        as_it_is = {"content": json.dumps(body), "headers": {"Content-Encoding": "identity"}}
        assert server.client.post("/v1/score", **as_it_is).status_code == 200
        assert "expected a finite number" in error(400, content=b'{"time": Infinity}')
        assert "stands twice" in error(400, content=b'{"time": 1, "time": 2}')
        assert "expected a JSON object" in error(400, json=[1])
        assert "larger than 5000 bytes" in error(413, content=b"x" * 6000)
        assert "deadline_ms" in error(400, json={**body, "deadline_ms": -1})
        assert "time must be a number of seconds, got nan" in error(400, content=json.dumps({**body, "time": np.nan}))
        assert "logits must be" in error(400, json={**body, "logits": "yes"})
        assert "not both" in error(400, json={**body, "user_id": "7"})
        assert "history[0]" in error(400, json={**body, "history": [{"text": 5, "time": 1}]})
        assert "events must be a list" in error(400, "/v1/users/7/events", json={"events": 3})
        wrong = {"events": [{"text": "a"}], "start": True}
        assert error(400, "/v1/users/7/events", json=wrong).startswith("events[0]")
        assert "Not Found" in error(404, "/v1/scores", json={})
        assert "Not Found" in error(404, "/v1/score/", json={})  # a redirection would lack a proxy's prefix
        assert "no valid JSON" in error(400, content=b'{"a": ' + b"[" * 4900)
        for key in ("a", "history", "candidates", "time"):  # Python 3.13's parser takes these
            assert "nested" in error(400, content=b'{"%s": %s%s}' % (key.encode(), b"[" * 2400, b"]" * 2400))
        assert server.client.get("/v1/score").headers["allow"] == "POST"
        host, port = server.url.removeprefix("http://").split(":")
        refused = lambda: server.metric("lmctr_requests_total", route="/v1/score", status="400")  # noqa: E731
        before = refused()
        with socket.create_connection((host, int(port)), timeout=20) as leaving:
            leaving.sendall(b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        for _ in range(100):
            if refused() > before:
                break
            time.sleep(0.05)
        assert refused() == before + 1
        assert "request failed" not in caplog.text  # who goes away is no fault of the server
        server.engine.served.answers.together = lambda requests: 1 / 0
        message = error(500, json=body)
        assert "division" not in message
        number = message.rsplit(" ", 1)[1]
        assert any(number in record.getMessage() for record in caplog.records)
        assert "ZeroDivisionError" in caplog.text
    with live(folders("deepfm")) as server:
        assert "keeps no state" in server.post("/v1/users/7/events", {"events": []}).json()["error"]["message"]
        row = {"ad": "a1", "price": 2.0}
        for body, message in (
            ({"rows": {}}, "request: rows must be"),
            ({"candidates": [row]}, "request: give either rows, or candidates and shared"),
            ({"rows": [row], "candidates": [row]}, "request: give either rows, or candidates and shared"),
            ({"row": [row]}, "known keys: candidates, id, rows, shared"),
            ({"rows": [row, {"ad": "a1"}]}, "rows[1]: no column 'price'"),
            ({"shared": {}, "candidates": [row, {"ad": "a1"}]}, "candidates[1]: no column 'price'"),
            ({"rows": [row, row | {"price": 1e300}]}, "'price': 1 values do not fit float32 (rows[1]: 1e+300)"),
            ({"rows": [row] * 40 + [row | {"price": "x"}]}, "no common type (rows[0]: 2.0; rows[40]: 'x')"),
            ({"rows": [row] * 40 + [row | {"price": 1e38}]}, "rows[40] gets no finite score"),
            ({"shared": {}, "candidates": [row, row | {"price": 1e300}]}, "float32 (candidates[1]: 1e+300)"),
            ({"shared": {"price": "row 1: x"}, "candidates": [{"ad": "a1"}]}, "are no numbers ('row 1: x')"),
        ):
            assert message in server.post("/v1/score", body).json()["error"]["message"]
        assert "'ad'" in server.post("/v1/score", {"rows": [{"price": 1}]}).json()["error"]["message"]


def test_wrong_candidates_are_named_by_their_places(folders):
    body = {**event_request(3), "candidates": [101]}
    with live(folders("hstu")) as server:
        for wrong, message in (
            (None, 'request: candidates[1]: a candidate is the id of an item, or an object with "item"; got None'),
            ({"item": None}, "request: candidates: candidate 1: no 'item'; it is null (None), and the id of an item"),
        ):
            answer = server.post("/v1/score", {**body, "candidates": [101, wrong]})
            assert answer.json()["error"]["message"].startswith(message)
        for more, key in (
            ({"user": "u7"}, "user"),
            ({"candidates": [{"item": 101, "statistics": [0.5]}]}, "statistics"),
        ):
            answer = server.post("/v1/score", body | more)
            told = f"candidate 0 has {key!r}, of which this model reads nothing; leave {key!r} out"
            assert told in answer.json()["error"]["message"]
        assert server.score(body | {"user": None}) == server.score(body | {"user": {}}) == server.score(body)


def test_wrong_values_of_ads_are_named_by_their_places(folders):
    body = KINDS["two_tower"][1](4)
    with live(folders("two_tower")) as server:
        user = {**body["user"], "user_n1": "x"}
        ads = [{**body["ads"][0], "ad_n1": 1.5}, {**body["ads"][1], "ad_n1": "x"}]
        for wrong, message in (
            ({**body, "user": user}, "request: column 'user_n1': 1 values are no numbers ('x')"),
            (
                {**body, "ads": ads},
                "request: ads: column 'ad_n1': the values have no common type (ads[0]: 1.5; ads[1]: 'x')",
            ),
        ):
            assert server.post("/v1/score", wrong).json()["error"]["message"].startswith(message)


def test_rows_with_columns_in_common(folders):
    documents, shared = [{"ad": f"a{number}"} for number in (0, 3, 1, 7)], {"price": 3.0}
    with live(folders("deepfm")) as server:
        expected = server.score({"rows": [{**one, **shared} for one in documents]})
        found = server.score({"id": "q", "shared": shared, "candidates": documents})
        assert found["id"] == "q"
        assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
        assert found["unknown_share"] == 1 / 5  # the price is read once
        for wrong, message in (
            ({"shared": [], "candidates": documents}, "shared must be an object"),
            ({"shared": shared, "candidates": []}, "candidates must be a list of at least one"),
            ({"shared": shared, "rows": documents}, "unknown key 'rows'"),
            ({"shared": shared, "candidates": [{**documents[0], **shared}]}, "'price' is shared too"),
        ):
            response = server.post("/v1/score", wrong)
            assert response.status_code == 400
            assert message in response.json()["error"]["message"]
    run = lmctr.runs.load(folders("deepfm"))
    logits = run.predict([{**one, **shared} for one in documents])
    assert run.score([shared], documents, 0) == pytest.approx(logits, abs=1e-6)


def test_ready_says_what_was_probed_and_a_wrong_model_is_not_served(folders, tmp_path):
    with live(folders("hstu")) as server:
        # what asks whether a server lives may want no body
        assert [server.client.head(route).status_code for route in ("/health", "/ready")] == [200, 200]
        answer = server.client.get("/ready").json()
        assert answer["ready"]
        assert answer["probe"]["rows"] >= 1
        assert answer["probe"]["largest_difference"] < 1e-5
        assert 'lmctr_model{kind="events"' in server.client.get("/metrics").text
        server.engine.batcher.close()
        assert server.client.get("/ready").status_code == 503
        assert server.post("/v1/score", event_request(0)).status_code == 503
    run, other = table_run(tmp_path / "run"), table_run(tmp_path / "other", seed=1)
    (run / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    for dtype in (None, "bfloat16"):
        with pytest.raises(ValueError, match="gives other logits than the run did"):
            ServedModel(str(run), dtype=dtype)
    (run / "reference.safetensors").unlink()
    with live(run) as server:
        assert "no reference rows" in server.client.get("/ready").json()["probe"]


@pytest.mark.parametrize("kind", ["qwen2", "hstu"])
def test_a_new_version_is_swapped_in_under_load(folders, kind):
    """No request is dropped; every answer is that of the version which it names; kept states go over."""
    request_of, runs = KINDS[kind][1], [folders(kind), folders(kind, seed=1)]
    loaded = {model_fingerprint(one.model): one for one in (lmctr.runs.load(str(run)) for run in runs)}
    body = request_of(5, behaviors=7, candidates=4)
    rest = {key: value for key, value in body.items() if key != "history"}
    with live(runs[0]) as server, ThreadPoolExecutor(4) as pool:
        server.post("/v1/users/u/events", {"events": body["history"], "start": True})
        stop = threading.Event()

        def ask(kept):
            found = []
            while not stop.is_set():
                found.append(server.score({**rest, "user_id": "u"} if kept else body))
            return found

        def wait_for(answers):
            answers += (answered := lambda: server.metric("lmctr_requests_total", route="/v1/score", status="200"))()
            while answered() < answers and not any(one.done() for one in asking):
                time.sleep(0.01)

        asking = [pool.submit(ask, kept) for kept in (True, False, True, False)]
        wait_for(12)
        assert server.engine.swap(ServedModel(str(runs[1]))) == (1, 0)
        wait_for(24)  # four at most are the earlier model's
        stop.set()
        answers = [answer for one in asking for answer in one.result()]
        assert server.metric("lmctr_model_swaps_total", result="done") == 1
        with pytest.raises(ValueError, match="start another server"):
            server.engine.swap(ServedModel(str(folders("deepfm"))))
    assert {answer["model_version"] for answer in answers} == set(loaded)
    expected = {version: run.predict([body]).reshape(-1) for version, run in loaded.items()}
    for answer in answers:
        np.testing.assert_allclose(logits_of(answer), expected[answer["model_version"]], atol=1e-5, rtol=0)


def test_a_swap_gives_up_states_that_would_be_short_of_behaviours(folders, tmp_path):
    """The old model needed six behaviours, the new one reads ten: what is no longer there must not be made up."""
    longer = text_run(tmp_path / "longer", seed=1, num_behaviors=10)
    with live(folders("qwen2")) as server:
        for user, count in (("short", 4), ("long", 9)):
            server.post(f"/v1/users/{user}/events", {"events": text_request(2, count)["history"], "start": True})
        assert server.engine.swap(ServedModel(str(longer))) == (1, 1)
        rest = {"candidates": ["Heat", "Babe"], "time": 10**6}
        found = logits_of(server.score({**rest, "user_id": "short"}))
        expected = lmctr.runs.load(str(longer)).predict([{**rest, "history": text_request(2, 4)["history"]}])
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert server.post("/v1/score", {**rest, "user_id": "long"}).status_code == 404
        assert server.metric("lmctr_user_states_dropped_total", reason="model") == 1


def test_event_runs_take_users_features_beside_kept_states(tmp_path):
    """`user` (features of the user) and `user_id` (whose state) are different keys."""
    run = event_run(tmp_path / "run", "din")
    with live(run) as server:
        body = event_request(1, 4, 2)
        server.post("/v1/users/7/events", {"events": body["history"], "start": True})
        rest = {key: value for key, value in body.items() if key != "history"}
        assert logits_of(server.score({**rest, "user_id": 7})) == pytest.approx(
            logits_of(server.score(body)), abs=1e-5
        )


def test_a_folder_that_is_written_over_leaves_what_is_served(folders, tmp_path):
    for kind in ("deepfm", "bert"):
        run, request = shutil.copytree(folders(kind), tmp_path / kind), KINDS[kind][1](1)
        with live(run) as server:
            before = logits_of(server.score(request))
            shutil.copyfile(
                folders(kind, 1) / "model.safetensors", run / "model.safetensors"
            )  # in place, as `cp` does
            np.testing.assert_array_equal(logits_of(server.score(request)), before)
            (run / "model.safetensors").write_bytes(b"")
            np.testing.assert_array_equal(logits_of(server.score(request)), before)


def test_a_request_is_bounded(folders):
    for kind, key in (("din", "candidates"), ("deepfm", "rows"), ("two_tower", "ads")):
        with live(folders(kind), max_candidates=3) as server:
            body = KINDS[kind][1](0)
            response = server.post("/v1/score", {**body, key: body[key][:1] * 4})
            assert response.status_code == 400
            assert f"4 {key}, and this server takes at most 3 at a time" in response.json()["error"]["message"]
            assert server.post("/v1/score", {**body, key: body[key][:1] * 3}).status_code == 200
    with live(folders("din"), max_history=3) as server:
        body = event_request(1, 4, 2)
        rest = {key: value for key, value in body.items() if key != "history"}
        told = "4 behaviours, and this server takes at most 3 at a time; keep the user's state"
        for route, sent in (("/v1/score", body), ("/v1/users/7/events", {"events": body["history"], "start": True})):
            response = server.post(route, sent)
            assert response.status_code == 400
            assert told in response.json()["error"]["message"]
        server.post("/v1/users/7/events", {"events": body["history"][:3], "start": True})
        assert server.post("/v1/users/7/events", {"events": body["history"][3:]}).json()["num_seen"] == 4
        assert server.score({**rest, "user_id": "7"})
    with live(folders("deepfm"), limits={"deadline": 0.3}) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as half:
            half.sendall(b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            assert half.recv(1000).startswith(b"HTTP/1.1 408")
        pairs = ",".join(f'"k{number}":0' for number in range(30_000))
        began = time.monotonic()
        response = server.client.post("/v1/score", content="{" + pairs + ',"k29999":1}')
        assert response.status_code == 400
        assert "'k29999' stands twice" in response.json()["error"]["message"]
        assert time.monotonic() - began < 10


def test_ids_of_kept_users(folders):
    history = event_request(1, 3, 2)["history"]
    with live(folders("din")) as server:
        answer = server.post("/v1/users/a%2Fb/events", {"events": history, "start": True}).json()
        assert answer["user_id"] == "a/b"
        rest = {key: value for key, value in event_request(1, 3, 2).items() if key != "history"}
        assert server.score({**rest, "user_id": "a/b"})
        for wrong in ("%FF", "u" * 300):
            response = server.post(f"/v1/users/{wrong}/events", {"events": [], "start": True})
            assert response.status_code == 400
            assert "must be UTF-8 text of at most 256 characters" in response.json()["error"]["message"]
        assert len(server.engine.states) == 1


def test_rerank_in_the_second_of_the_last_behaviour(folders):
    run, now = folders("din"), int(time.time())
    history = [{**entry, "time": now - 5 + place} for place, entry in enumerate(event_request(1, 6, 2)["history"])]
    history[-1]["time"] = now + 3  # a clock that is a little ahead
    with live(run) as server:
        server.post("/v1/users/7/events", {"events": history, "start": True})
        for query in ("7", {"history": history}):
            response = server.post("/v1/rerank", {"query": query, "documents": [{"item": 100}, {"item": 101}]})
            assert response.status_code == 200, response.text
        expected = lmctr.runs.load(str(run)).predict([{"history": history, "candidates": [100, 101], "time": now + 4}])
        scores = {entry["index"]: entry["relevance_score"] for entry in response.json()["results"]}
        np.testing.assert_allclose([scores[0], scores[1]], 1 / (1 + np.exp(-expected.reshape(-1))), atol=1e-5)


def test_a_kept_user_is_not_scored_at_a_time_that_only_the_whole_history_tells(folders):
    body = event_request(1, 20, 2)  # of which the model keeps eight
    rest = {key: value for key, value in body.items() if key != "history"}
    with live(folders("din")) as server:
        server.post("/v1/users/7/events", {"events": body["history"], "start": True})
        assert server.post("/v1/score", {**rest, "user_id": "7"}).status_code == 200
        for asked, name in (
            ({"time": 57}, "time 57"),
            ({"time": 40}, "time 40"),
            ({"candidates": [{"item": 100, "time": 40}]}, "candidates[0]: time 40"),
        ):
            response = server.post("/v1/score", {**rest, "user_id": "7", **asked})
            assert response.status_code == 400
            assert f"{name} is not after the user's last behaviour at 57" in response.json()["error"]["message"]
            assert (
                "of 20 behaviours the last 8 are kept; score it with the whole" in response.json()["error"]["message"]
            )
        server.post("/v1/users/8/events", {"events": body["history"][:8], "start": True})
        early = logits_of(server.score({**rest, "user_id": "8", "time": 10}))
        whole = logits_of(server.score({**rest, "history": body["history"][:8], "time": 10}))
        np.testing.assert_allclose(early, whole, atol=1e-5)
