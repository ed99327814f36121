"""`lmctr serve --states`: kept states outlive a stop, exactly or not at all."""

import contextlib
import signal

import httpx
import numpy as np
import pytest
import warm
from served_runs import KINDS, event_request, event_run, live, logits_of, table_run, text_request, text_run
from test_serve_command import started

import lmctr
from lmctr.cli.main import main
from lmctr.runs.answers.engine import Engine
from lmctr.runs.answers.served import ServedModel

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX signals")
EVENTS, TIME = event_request(1, 12, 4), 10**6
HASTY = """
import sys
from lmctr.cli.main import main
from lmctr.utils import lock
lock._PATIENCE = 0.0  # nobody is just being killed
sys.exit(main(sys.argv[1:]))
"""


@contextlib.contextmanager
def serving(*words):
    """A client of a server that is killed at the end where it still runs."""
    process, url = started(*words)
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            yield process, client
    finally:
        process.kill()


def test_states_of_a_process_that_ended_are_those_of_the_next(tmp_path):
    """Scores go on, and so do appended events; while a server runs, and after it was killed, there is no file of what was before."""
    run, kept = event_run(tmp_path / "run", "din", with_statistics=True), tmp_path / "kept"
    rest = {"candidates": EVENTS["candidates"], "scenario": "home", "time": TIME, "logits": True}
    with serving(run, "--states", kept) as (process, client):
        for user, count in (("7", 12), ("\u00fc%09", 3)):
            body = {"events": EVENTS["history"][:count], "start": True}
            assert client.post(f"/v1/users/{user}/events", json=body).status_code == 200
        before = client.post("/v1/score", json={**rest, "user_id": 7}).json()["logits"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert f"2 kept states of users written to {kept}" in process.err
    with serving(run, "--states", kept) as (process, client):
        assert f"2 kept states of users taken up from {kept}" in process.err
        assert not list(kept.glob("*.tsv"))
        after = client.post("/v1/score", json={**rest, "user_id": 7}).json()["logits"]
        np.testing.assert_allclose(after, before, atol=1e-5)
        body = {"events": EVENTS["history"][3:5], "num_seen": 3}
        assert client.post("/v1/users/\u00fc%09/events", json=body).json()["num_seen"] == 5
        found = client.post("/v1/score", json={**rest, "user_id": "\u00fc\t"}).json()["logits"]
        expected = lmctr.runs.load(str(run)).predict([{**EVENTS, "history": EVENTS["history"][:5], "time": TIME}])
        np.testing.assert_allclose(found, expected.reshape(-1), atol=1e-5)
        second = warm.start("-c", HASTY, "serve", run, "--port", "0", "--states", kept)
        try:
            assert second.wait(60) == 2
            assert f"another lmctr serve --states is at work in {kept}" in second.err
        finally:
            second.kill()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    with serving(run, "--states", kept) as (_, client):
        assert client.post("/v1/score", json={**rest, "user_id": 7}).status_code == 404


def test_states_go_over_to_a_model_that_came_meanwhile(tmp_path):
    """As at SIGHUP: where the new model needs no behaviour that was let go."""
    folder = text_run(tmp_path / "1")
    longer = text_run(tmp_path / "2", seed=1, num_behaviors=10)
    file = tmp_path / "states"
    with live(folder) as server:
        for user, count in (("short", 4), ("long", 9)):
            server.post(f"/v1/users/{user}/events", {"events": text_request(2, count)["history"], "start": True})
        assert server.engine.save(file) == (2, 0)
    rest = {"candidates": ["Heat", "Babe"], "time": TIME}
    engine = Engine(ServedModel(str(longer)))
    assert engine.restore(file) == 2
    # What nobody has used is written again as it was, and goes over from there.
    assert engine.save(file) == (2, 0)
    engine.close()
    with live(longer) as server:
        server.engine.restore(file)
        found = logits_of(server.score({**rest, "user_id": "short"}))
        expected = lmctr.runs.load(str(longer)).predict([{**rest, "history": text_request(2, 4)["history"]}])
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert server.engine.states.finish_move() == 1
        assert server.post("/v1/score", {**rest, "user_id": "long"}).status_code == 404
        assert server.metric("lmctr_user_states_dropped_total", reason="model") == 1


@pytest.mark.parametrize("kind", ["qwen2", "bert", "hstu", "din"])
def test_bounds_hold_for_states_that_are_taken_up(tmp_path, kind):
    """Memory and time: the least recently used go, and time goes on while no process runs."""
    run, file, now = KINDS[kind][0](tmp_path / "run"), tmp_path / "states", [1000.0]
    engine = Engine(ServedModel(str(run)), time_to_live=130)
    engine.states._clock = lambda: now[0]
    history = KINDS[kind][1](3, behaviors=6)["history"]
    for user in "abcd":
        engine.add_events(user, {"events": history, "start": True}).result()
        now[0] += 30
    assert engine.close()
    engine.save(file)
    assert len(engine.states) == 4
    later = Engine(ServedModel(str(run)), time_to_live=75)
    assert later.restore(file) == 4
    later.states.expire()
    assert [user for user, _, _ in later.states.all()] == ["c", "d"]
    later.states.finish_move()
    one = later.states.num_bytes // 2
    small = Engine(ServedModel(str(run)), max_state_bytes=int(1.5 * one))
    small.restore(file)
    small.states.finish_move()
    assert [user for user, _, _ in small.states.all()] == ["d"]
    assert small.states.counts["memory"] == 3
    for one in (later, small):
        one.close()


def test_a_user_whose_request_has_not_ended_is_left_out(tmp_path):
    """Whether the behaviours were added, nobody was told."""
    engine = Engine(ServedModel(str(event_run(tmp_path / "run"))))
    for user in ("a", "b"):
        engine.add_events(user, {"events": EVENTS["history"], "start": True}).result()
    engine.batcher._keys["a"] = 1
    assert engine.save(tmp_path / "states") == (1, 1)
    engine.batcher._keys.clear()
    engine.close()


def test_what_is_no_file_of_states_stays_as_it_is(tmp_path, capsys):
    run, kept = event_run(tmp_path / "run"), tmp_path / "kept"
    engine = Engine(ServedModel(str(run)))
    engine.add_events("a", {"events": EVENTS["history"], "start": True}).result()
    engine.close()
    kept.mkdir()
    file = kept / "kept_states.tsv"
    engine.save(file)
    whole = file.read_bytes()
    cases = [(whole.replace(b'"item": 1', b'"item": 2', 1), run, "is cut off or damaged")]
    cases += [(whole[:-80], run, "is cut off or damaged"), (whole[: whole.index(b"\n") + 1], run, "is cut off")]
    cases += [(b"", run, "holds no kept states of this version"), (b"user,item\n", run, "holds no kept states")]
    cases += [(whole, text_run(tmp_path / "text"), "holds states of models that read events, this one reads text")]
    cases += [(whole, table_run(tmp_path / "table"), "reads table, no histories; it keeps no states")]
    for content, folder, message in cases:
        file.write_bytes(content)
        assert main(["serve", str(folder), "--port", "0", "--states", str(kept)]) == 2
        assert message in capsys.readouterr().err
        assert file.read_bytes() == content


def test_states_that_cannot_be_written_are_told_as_lost(tmp_path):
    run, kept = event_run(tmp_path / "run", "din"), tmp_path / "kept"
    with serving(run, "--states", kept) as (process, client):
        body = {"events": EVENTS["history"], "start": True}
        assert client.post("/v1/users/7/events", json=body).status_code == 200
        (kept / "kept_states.tsv" / "in_the_way").mkdir(parents=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
        assert (
            "1 kept states of users are lost, and their users are answered 404 until they are started again: "
            in process.err
        )
        assert str(kept) in process.err
