"""docs/deploy as written: the client against a server, the commands of the Dockerfile."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from served_runs import event_request, event_run, live

import lmctr
import lmctr.server.app
from lmctr.cli.main import build_parser

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"


@pytest.fixture
def client(monkeypatch):
    monkeypatch.syspath_prepend(str(DEPLOY))
    monkeypatch.delitem(sys.modules, "client", raising=False)
    import client

    return client


def test_the_client(tmp_path, client):
    run = event_run(tmp_path / "run")
    body = event_request(2, 5, 3)
    rest = {key: value for key, value in body.items() if key != "history"}
    with live(run) as server:
        port = int(server.url.rsplit(":", 1)[1])
        scores = client.Scores("127.0.0.1", port)
        scores.post("/v1/users/7/events", start=True, events=body["history"])
        found = scores.score(user_id="7", **rest)
        assert found == pytest.approx(scores.score(**body), abs=1e-5)
        expected = lmctr.runs.load(str(run)).predict([body]).reshape(-1)
        assert found == pytest.approx((1 / (1 + pow(2.718281828, -expected))).tolist(), abs=1e-5)
        with pytest.raises(RuntimeError, match="404: no state is kept"):
            scores.score(user_id="8", **rest)


def test_the_client_asks_a_busy_server_again(client, monkeypatch):
    waited = []
    monkeypatch.setattr(client.time, "sleep", waited.append)

    class Busy:
        answers = [(429, {"Retry-After": "3"}, {"error": {"message": "full"}}), (200, {}, {"probabilities": [0.5]})]

        def request(self, *words):
            self.status, self.headers, self.body = self.answers.pop(0)

        def getresponse(self):
            return self

        def read(self):
            return json.dumps(self.body)

        def close(self):
            pass

    scores = client.Scores()
    scores.connection = Busy()
    assert scores.score(rows=[{}]) == [0.5]
    assert waited == [3.0]


def test_every_status_of_an_error_is_told():
    source, told = Path(lmctr.server.app.__file__).read_text(), (DEPLOY / "README.md").read_text()
    statuses = {*re.findall(r"(?:_failed|HTTPException)\(\s*(\d{3}),|\(\w+, (\d{3})\),", source)}
    statuses = {one or other for one, other in statuses}
    assert statuses >= {"400", "404", "415", "429", "504"}
    assert {status for status in statuses if not re.search(rf"\b{status}\b", told)} == set()


def test_the_image_calls_what_there_is():
    text = (DEPLOY / "Dockerfile").read_text()
    words = json.loads(re.search(r"^CMD (\[.*\])", text, re.MULTILINE).group(1))
    assert words[0] == "lmctr"
    args = build_parser("serve")[0].parse_args(words[1:])
    assert (args.run, args.host) == ("run", "0.0.0.0")
    assert re.search(r"^ENV OMP_NUM_THREADS=2$", text, re.MULTILINE)  # the cores that workers and threads share
    assert re.search(r"localhost:(\d+)/ready", text).group(1) == "8000"
    copied = {name for line in re.findall(r"^COPY ([a-zA-Z].*) lmctr/", text, re.MULTILINE) for name in line.split()}
    assert all((DEPLOY.parents[1] / name).exists() for name in copied)
    build = tomllib.loads((DEPLOY.parents[1] / "pyproject.toml").read_text())
    wheel = build["tool"]["hatch"]["build"]["targets"]["wheel"]
    named = [
        *wheel["packages"],
        *wheel["force-include"],
        "pyproject.toml",
        "constraints.txt",
        build["project"]["readme"],
    ]
    assert {name.split("/")[0] for name in named} <= copied
