"""`lmctr serve` as a process: what it prints, refuses, and does on signals."""

import asyncio
import json
import shlex
import signal
import socket
import threading
import time
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch
import uvicorn
import warm
from served_runs import KINDS, event_run, table_run

from lmctr.cli.main import main
from lmctr.runs.answers.served import ServedModel, bound
from lmctr.server import running
from lmctr.server.options import ServeOptions
from lmctr.server.running import _load, server_class

ROWS = {"rows": [{"ad": "a1", "price": 2.0}]}


def started(*words):
    """The process and the address that it printed."""
    process = warm.start("-m", "lmctr", "serve", *words, "--port", "0")
    line = process.line()
    assert "serving" in line, process
    return process, line.split()[-1]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="POSIX signals")
def test_a_new_version_on_sighup_and_every_answer_before_the_end_on_sigterm(tmp_path):
    folder, newer = table_run(tmp_path / "1"), table_run(tmp_path / "2", seed=1)
    current = tmp_path / "current"
    current.symlink_to(folder)
    process, url = started(current, "--batch-wait-ms", "300")
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            first = client.post("/v1/score", json=ROWS).json()
            other = tmp_path / "next"
            other.symlink_to(newer)
            other.replace(current)
            process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                second = client.post("/v1/score", json=ROWS).json()
                if second["model_version"] != first["model_version"]:
                    break
            assert second["model_version"] != first["model_version"]
            assert second["probabilities"] != first["probabilities"]
            # A folder that is broken leaves the version that is served.
            (newer / "config.json").write_text("{}")
            process.send_signal(signal.SIGHUP)
            while 'lmctr_model_swaps_total{result="refused"} 1.0' not in client.get("/metrics").text:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert client.post("/v1/score", json=ROWS).json() == second
            answers = []

            def ask():
                answers.append(client.post("/v1/score", json=ROWS).json())

            asking = threading.Thread(target=ask)
            asking.start()
            while "lmctr_queue_requests 1.0" not in client.get("/metrics").text and not answers:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            asking.join()
            assert answers == [second]
        assert process.wait(30) == 0
    finally:
        process.kill()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="POSIX signals")
def test_a_stop_as_soon_as_it_listens(tmp_path):
    process, _ = started(table_run(tmp_path / "run"))
    try:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()


def test_who_waits_to_be_taken_on_at_a_stop_is_answered():
    """Connections that came since the last turn of the loop, and those whose request comes a moment later."""

    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

    async def stop():
        config = uvicorn.Config(app, log_level="warning")
        config.load()
        server = server_class()(config)
        server.lifespan = config.lifespan_class(config)
        with bound("127.0.0.1", 0) as address:
            address.listen(16)
            await server.startup([address])
            clients = [socket.create_connection(address.getsockname()) for _ in range(6)]
            for client in clients[:3]:
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            stopping = asyncio.create_task(server.shutdown([address]))
            await asyncio.sleep(0.02)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", clients[0].getpeername()[1]))
            for client in clients[3:]:
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await stopping
        answers = [client.makefile("rb").readline() for client in clients]
        for client in clients:
            client.close()
        return answers

    assert asyncio.run(stop()) == [b"HTTP/1.1 200 OK\r\n"] * 6


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="POSIX signals")
def test_a_new_version_is_asked_for_while_the_first_one_is_loaded(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import sys, time\n"
        "from lmctr.cli.main import main\n"
        "from lmctr.server import running\n"
        "load = running._load\n"
        "running._load = lambda options: (print('loading', file=sys.stderr, flush=True), time.sleep(0.4), load(options))[2]\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    process = warm.start(tmp_path / "slow.py", "serve", table_run(tmp_path / "run"), "--port", "0")
    try:
        deadline = time.monotonic() + 60
        while "loading" not in process.err:
            assert time.monotonic() < deadline, process
            time.sleep(0.01)
        process.send_signal(signal.SIGHUP)
        line = process.line()
        assert "serving" in line, process
        while 'lmctr_model_swaps_total{result="done"} 1.0' not in httpx.get(f"{line.split()[-1]}/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="POSIX signals")
def test_a_stop_in_the_middle_of_work_that_nobody_waits_for(tmp_path):
    """A request that is in work for longer than its deadline and than requests are waited for does not keep the process."""
    (tmp_path / "slow.py").write_text(
        "import sys, threading, time\n"
        "from lmctr.cli.main import main\n"
        "from lmctr.runs.answers.served import ServedModel\n"
        "score = ServedModel.score  # of the example, before it listens\n"
        "is_first = lambda: threading.current_thread() is threading.main_thread()\n"
        "ServedModel.score = lambda self, asked: score(self, asked) if is_first() else time.sleep(600)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ("--port", "0", "--deadline-ms", "200", "--drain-seconds", "1")
    process = warm.start(tmp_path / "slow.py", "serve", table_run(tmp_path / "run"), *words)
    try:
        url = process.line().split()[-1]
        assert httpx.post(f"{url}/v1/score", json=ROWS, timeout=60).status_code == 504
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "in the middle of work that nobody waits for" in process.err
    finally:
        process.kill()


def test_the_request_that_it_prints_is_answered(tmp_path):
    process, url = started(table_run(tmp_path / "run"))
    try:
        deadline = time.monotonic() + 30
        while process.out.count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        words = shlex.split(process.out.splitlines()[1])
        assert words[:5] == ["try:", "curl", "-s", f"{url}/v1/score", "-d"]
        answer = httpx.post(words[3], content=words[5]).json()
        assert len(answer["probabilities"]) == len(json.loads(words[5])["rows"]) == 1
    finally:
        process.kill()


@pytest.mark.parametrize("kind", [*KINDS, "events with statistics", "graded events with statistics"])
def test_there_is_an_example_for_every_kind_of_input(tmp_path, kind):
    if kind in KINDS:
        served = ServedModel(KINDS[kind][0](tmp_path / "run"))
    else:
        run = event_run(tmp_path / "run", "din", with_statistics=True, graded=kind.startswith("graded"))
        served = ServedModel(run)
    request = json.loads(running._example(served))
    # values of the size of the log's own, where they are read
    assert [2 < entry.get("value", 0) < 4 for entry in request.get("history", ())] == [
        kind.startswith("graded")
    ] * len(request.get("history", ()))
    (one,) = served.score([(served.check(request), None)])
    assert np.isfinite(one.logits).all()
    # a behaviour that says its label has no other beside it
    assert all(
        {"behavior", "feedback"} & entry.keys() and "label" not in entry for entry in request.get("history", ())
    )
    served.check = lambda request: (_ for _ in ()).throw(ValueError("request: no"))
    assert running._example(served) is None


def test_what_cannot_be_served_ends_with_code_2(tmp_path, capsys, monkeypatch):
    kept = []
    monkeypatch.setattr(running, "keep_freed_memory", lambda: kept.append(True))  # in a process that goes on
    folder, other = table_run(tmp_path / "run"), table_run(tmp_path / "other", seed=1)
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    assert main(["serve", str(folder), "--port", "0"]) == 2
    assert "gives other logits than the run did" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "nothing"), "--port", "0"]) == 2
    assert "does not exist" in capsys.readouterr().err
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", str(other), "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen there" in capsys.readouterr().err
    assert len(kept) == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": 70_000}, "--port must lie between"),
        ({"batch_wait_ms": -1.0}, "--batch-wait-ms must be at least 0"),
        ({"state_ttl": 0.0}, "--state-ttl must be above 0"),
        ({"max_queue": 0}, "--max-queue must be at least 1"),
    ],
)
def test_wrong_options(values, message):
    with pytest.raises(ValueError, match=message):
        ServeOptions("run", **values)


def test_the_precision_that_is_asked_for(tmp_path, capsys):
    folder = table_run(tmp_path / "run")
    assert {p.dtype for p in _load(ServeOptions(str(folder), dtype="bfloat16")).model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in _load(ServeOptions(str(folder))).model.parameters()} == {torch.float32}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS["rows"]))
    answers = {}
    for dtype in ("float32", "bfloat16"):
        out = tmp_path / f"{dtype}.jsonl"
        asked = ["predict", str(folder), "--input", str(tmp_path / "rows.jsonl"), "--output", str(out)]
        assert main([*asked, "--dtype", dtype]) == 0
        answers[dtype] = [json.loads(line)["logit"] for line in out.read_text().splitlines()]
    assert answers["bfloat16"] != answers["float32"]
    assert answers["bfloat16"] == pytest.approx(answers["float32"], abs=0.05, rel=0.05)
    with pytest.raises(ValueError, match="dtype: expected float32, bfloat16, float16, int8, got 'half'"):
        ServedModel(str(folder), dtype="half")
    with pytest.raises(
        ValueError, match="dtype int8: deepfm has no language model; accepted for it: float32, bfloat16"
    ):
        ServedModel(str(folder), dtype="int8")
    with pytest.raises(SystemExit):
        main(["serve", str(folder), "--dtype", "half"])
    assert "invalid choice: 'half'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gone", "words"), [(0, "of users\n"), (3, "of users; 3 could not go over, and their users are answered 404")]
)
def test_a_reload_says_what_became_of_kept_states(gone, words, monkeypatch, caplog):
    done = []
    monkeypatch.setattr(running, "_load", lambda options: SimpleNamespace(version="v2"))
    steps = {name: lambda name=name: done.append(name) for name in ("collect", "freeze")}  # seconds behind other tests
    monkeypatch.setattr(running, "gc", SimpleNamespace(**steps))
    running._reload(SimpleNamespace(swap=lambda served: (1200, gone)), None)
    assert done == ["collect", "freeze"]
    assert f"serving version v2 now, with 1,200 kept states {words}" in caplog.text
