"""`lmctr benchmark peers`: turns, ratios and the report, without any other library."""

import io
import json
import sys

import numpy as np
import pytest

from lmctr.benchmarks import peers
from lmctr.benchmarks.options import PEER_FAMILIES, PEERS, PeersBenchmark
from lmctr.benchmarks.peer_files import files_table, measure_files
from lmctr.benchmarks.peer_own import TurnsCallback, recipe
from lmctr.benchmarks.peer_side import LOOPS, Paced, Turns
from lmctr.benchmarks.peers import DENSE, LAZY, Loop, measure
from lmctr.cli.main import main
from lmctr.data import TabularStore, load_tabular
from lmctr.models.families import family_of
from lmctr.runs.recipe import load_recipe

SHARED = {"batch_size": 10, "threads": 1}
FAKE = """
import json, sys
task = json.load(open(sys.argv[1]))
def tell(**values):
    print(json.dumps(values), flush=True)
tell(ready=True, parameters=7)
for seconds in task["spent"]:
    sys.stdin.readline()
    tell(seconds=seconds, cpu_seconds=seconds * task["share"], steps=2)
sys.stdin.readline()
tell(auc=0.5)
"""


def fake(name, spent, share=0.5, program=FAKE):
    return Loop(name, (sys.executable, "-c", program), {"spent": spent, "share": share})


def test_turns_are_counted_and_waiting_is_not():
    told = io.StringIO()
    seen = list(Paced([1, 2, 3, 4, 5], Turns(2, io.StringIO("\n" * 4), told), parameters=3))
    lines = [json.loads(line) for line in told.getvalue().splitlines()]
    assert seen == [1, 2, 3, 4, 5]
    assert lines[0] == {"ready": True, "parameters": 3}
    assert [line["steps"] for line in lines[1:]] == [2, 2, 1]
    told = io.StringIO()
    assert list(Paced([1, 2, 3, 4, 5], Turns(2, io.StringIO("\n" * 4), told), 3)) == [1, 2, 3]
    assert [json.loads(line).get("steps") for line in told.getvalue().splitlines()] == [None, 2, 1]
    assert all(line["seconds"] >= 0 and line["cpu_seconds"] >= 0 for line in lines[1:])


def test_a_loop_ends_when_nobody_asks_any_more():
    with pytest.raises(SystemExit):
        list(Paced([1, 2, 3], Turns(1, io.StringIO("\n"), io.StringIO())))


def test_ratios_are_of_the_same_turn_and_leave_out_the_first_and_last(tmp_path):
    arms = [fake(DENSE, [9, 1, 2, 4, 9]), fake(LAZY, [9, 1, 1, 1, 9], share=1.0), fake("peer", [1, 2, 6, 4, 1])]
    dense, lazy, peer = measure(arms, SHARED, tmp_path)
    assert dense["against"][DENSE] == lazy["against"][LAZY] == 1
    assert peer["against"] == {DENSE: pytest.approx(2), LAZY: pytest.approx(4)}  # medians of 2, 3, 1 and of 2, 6, 4
    assert peer["against_cpu"] == {DENSE: pytest.approx(2), LAZY: pytest.approx(2)}
    assert peer["samples_per_second"] == pytest.approx(20 / 4)
    assert (peer["turns"], peer["parameters"], peer["auc"]) == (5, 7, 0.5)


def test_a_peer_that_fails_is_a_line_and_not_the_end(tmp_path):
    broken = fake(
        "broken", [], program="import sys; print('warm up', file=sys.stderr); raise ImportError('no such thing')"
    )
    half = fake("half", [1, 1], program=FAKE.replace("tell(auc=0.5)", "raise MemoryError('full')"))
    gone = "os.close(0)\ntell(ready=True, parameters=7)\nraise OSError('gone')\n"
    gone = fake("gone", [], program="import os" + FAKE.partition("tell(ready")[0] + gone)
    dense, one, other, last = measure([fake(DENSE, [1, 1]), broken, half, gone], SHARED, tmp_path)
    assert last == {"name": "gone", "error": "OSError: gone"}
    assert dense["auc"] == 0.5
    assert one == {"name": "broken", "error": "ImportError: no such thing"}
    assert other == {"name": "half", "error": "MemoryError: full"}
    settings = PeersBenchmark(families=["deepfm"]).settings() | {"failed": {"rechub": "no wheel"}, "versions": {}}
    about = dict.fromkeys(("python", "numpy", "pyarrow", "tokenizers", "torch", "transformers", "processor"), "")
    about |= {"cores": 2, "threads": 1, "platform": ""}
    text = peers.as_markdown({"settings": settings, "machine": about, "families": {"deepfm": [dense, one, other]}})
    assert "- deepfm, broken: ImportError: no such thing" in text
    assert "- Torch-RecHub could not be installed: no wheel" in text


def test_whole_processes_are_timed_from_start_to_end(tmp_path):
    """The second arm sleeps a quarter of a second more each time; the third one fails."""
    slow = FAKE.replace(
        "sys.stdin.readline()\ntell(auc", "sys.stdin.readline()\nimport time\ntime.sleep(0.25)\ntell(auc"
    )
    broken = "import sys; sys.stdin.readline(); raise ValueError('no such column')"
    arms = [fake(LAZY, []), fake("peer", [], program=slow), fake("broken", [], program=broken)]
    shared = SHARED | {"family": "dnn"}
    own, peer, other = measure_files(arms, shared, tmp_path, 3)
    assert (own["auc"], own["against"], len(own["seconds"])) == (0.5, 1, 3)
    assert min(peer["seconds"]) > 0.25
    assert peer["against"] == np.median([b / a for a, b in zip(own["seconds"], peer["seconds"])]) > 1
    assert other["error"] == "ValueError: no such column"
    assert "against" not in other
    text = files_table({"dnn": [own, peer, other]})
    assert f"| dnn | peer | {np.median(peer['seconds']):.1f} | {peer['against']:.2f} | 0.5000 |" in text
    assert "broken" not in text
    told = json.loads((tmp_path / "task_0.json").read_text())
    assert (told["csv"], told["steps"] > 1e9) == (str(tmp_path), True)


@pytest.mark.parametrize("family", PEER_FAMILIES)
def test_own_recipes_are_accepted(family):
    width = family_of(family).benchmark.get("embedding_dim", 16)
    task = {
        "family": family,
        "embedding_dim": width,
        "table": {"num_rows": 100},
        "batch_size": 8,
        "seed": 0,
        "most": None,
    }
    for arm, optimizer in (("dense", "dense"), ("lazy", "lazy_adam")):
        values = load_recipe(recipe({**task, "arm": arm, "hidden_units": [4]}), {}).resolved()
        assert values["training"]["embedding_optimizer"] == optimizer
        assert values["model"]["family"] == family
    assert set(PEER_FAMILIES[family]) <= set(PEERS)
    assert set(PEERS) == {*LOOPS, "authors"}  # whose code runs in FuxiCTR's loop
    assert TurnsCallback.turns is None


@pytest.mark.slow
@pytest.mark.usefixtures("warm_processes")
def test_own_arms_train_in_turns(tmp_path, capsys):
    out = tmp_path / "peers.json"
    words = [
        "--quick",
        "--families",
        "rank_elastor",
        "--folder",
        str(tmp_path / "kept"),
        "--threads",
        "1",
        "--output",
        str(out),
    ]
    assert main(["benchmark", "peers", *words]) == 0
    result = json.loads(out.read_text())
    dense, lazy = result["families"]["rank_elastor"]
    assert (dense["name"], lazy["name"]) == (DENSE, LAZY)
    assert dense["parameters"] == lazy["parameters"] > 0
    assert dense["turns"] == lazy["turns"] == 5  # 600 rows, batches of 64, turns of two steps
    assert 0 < dense["auc"] < 1
    assert dense["auc"] == pytest.approx(lazy["auc"], abs=0.1)
    assert "give its folder by --rank-elastor" in capsys.readouterr().out
    assert not (tmp_path / "kept" / "venv").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("warm_processes")
def test_own_arms_from_csv_files(tmp_path, capsys):
    """Trained on the files as on the table that they were written from, but for the numbers' scale."""
    out = tmp_path / "peers.json"
    words = ["--quick", "--families", "rank_elastor", "--folder", str(tmp_path), "--threads", "1", "--from-csv", "1"]
    assert main(["benchmark", "peers", *words, "--output", str(out)]) == 0
    dense, lazy = json.loads(out.read_text())["families"]["rank_elastor"]
    assert (dense["name"], lazy["name"], lazy["against"]) == (DENSE, LAZY, 1)
    assert 0 < dense["auc"] < 1
    store = TabularStore.build(load_tabular(tmp_path / "table" / "table.yaml"))
    assert [len(store.splits[part]) for part in ("train", "validation", "test")] == [600, 75, 75]
    assert store.processor.model_config_values()["num_numeric"] == 13
    assert "| rank_elastor | lmctr, Adam |" in capsys.readouterr().out
