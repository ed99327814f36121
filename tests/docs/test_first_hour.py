"""docs/first_hour.md, command by command: train, report, demo, serve, push to a stand-in of the Hub, load back by the pipeline;
and what docs/tasks/score.md and the README do with the same run."""

import json
import os
import re
import shlex
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import warm

from lmctr.cli.main import main

sys.path.append(str(Path(__file__).parents[1] / "hub"))

from browser import free_port
from hub_server import HubServer, client

SCORE = (Path(__file__).resolve().parents[2] / "docs" / "tasks" / "score.md").read_text()
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "first_hour.md").read_text()
README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
# The page's training, cut short: the commands are tested here, not what the model reaches.
SHORT = ["--data.max_train_samples", "300", "--data.max_eval_samples", "100", "--training.stage1_epochs", "0"]
SHORT += [
    "--training.stage2_epochs",
    "1",
    "--training.use_cpu",
    "true",
    "--data.options",
    "{num_users: 60, events_per_user: 30}",
]


def commands():
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.S)
    return [shlex.split(line) for block in blocks for line in block.strip().splitlines()]


def started(words):
    """A verb that serves, and the address that it says."""
    process = warm.start("-m", *words)
    return process, re.search(r"http://\S+?(?=/? |/?$)", process.line())[0]


def answered(address, data=None):
    """What an address answers, once it does."""
    headers = {} if data is None else {"Content-Type": "application/json"}
    for _ in range(600):
        try:
            request = urllib.request.Request(address, data, headers)
            return urllib.request.urlopen(request, timeout=60).read().decode()
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{address} did not answer")


@pytest.mark.slow
def test_the_page_as_written(tmp_path, monkeypatch, capfd):
    for package in ("gradio", "uvicorn", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    train, report, demo, serve, curl, push = commands()
    assert main([*train[1:], *SHORT]) == 0
    assert main(report[1:]) == 0
    assert (tmp_path / "quickstart.html").read_text().startswith("<!")

    scope = {}
    for code in re.findall(r"```python\n(.*?)```", SCORE, flags=re.S):
        exec(code, scope)
    assert scope["best"]["rank"].to_pylist() == [1, 2, 3] * 2
    assert scope["logits"].shape == (2,)

    for code in re.findall(r"```python\n(.*?)```", README, flags=re.S):
        if "runs/quickstart" in code:
            exec(code, scope)
    np.testing.assert_allclose(
        scope["logits"], scope["run"].score(scope["history"], scope["candidates"], 1_700_007_200), atol=1e-5
    )
    assert scope["state"].num_seen == 3

    process, address = started([*demo, "--port", str(free_port())])
    try:
        assert "gradio" in answered(address).lower()
    finally:
        process.terminate()
        process.wait(20)

    port = str(free_port())
    process, address = started([port if word == "8000" else word for word in serve])
    try:
        body = curl[curl.index("-d") + 1]
        found = json.loads(answered(f"http://{curl[2].replace('8000', port)}", body.encode()))
        assert len(found["results"]) == 2
    finally:
        process.terminate()
        process.wait(20)

    with HubServer() as hub:
        own = "tester/first"
        words = [own if word == "user/name" else word for word in push[1:]]
        script = "import sys; from lmctr.cli.main import main; sys.exit(main(sys.argv[1:]))"
        done = client(hub.url, tmp_path, "-c", script, *words)
        assert done.returncode == 0, done.stderr[-3000:]
        (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
        done = client(hub.url, tmp_path, "-c", code.replace("user/name", own))
        assert done.returncode == 0, done.stderr[-3000:]
        answers = eval(done.stdout.splitlines()[-1])
    assert [set(answer) for answer in answers] == [{"score", "logit"}] * 2
    served = sorted(entry["relevance_score"] for entry in found["results"])
    assert len(served) == 2
    assert os.path.isdir("runs/quickstart")
