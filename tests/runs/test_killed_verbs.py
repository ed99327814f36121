"""A verb that was killed before a file operation: the same command line again ends as if nothing had happened.

The short form kills those verbs once that no other test kills; `pytest -m campaign tests/runs/test_killed_verbs.py` kills them 330 times in all, in about 25
minutes on two cores. The seed of each verb's operations is 0 in the short form and 1 in the campaign.
"""

import json
import os
from pathlib import Path

import pytest
import warm
import yaml
from test_same_folder import TABLE, TEXT

from lmctr.cli.main import main

LOG_OPTIONS = ["--option", "num_users=20", "--option", "events_per_user=20"]
DONE = ["holds a log already", "holds a store already", "nothing to resume"]  # the kill came after the last file
WORKERS = {"--training.dataloader_num_workers": "2", "--training.dataloader_persistent_workers": "true"}
VERBS = {
    "train text": ["train", "text.yaml", "--output-dir", "run", "--resume"],
    "train table": ["train", "table.yaml", "--output-dir", "run", "--resume"],
    "train with workers": ["train", "table.yaml", "--output-dir", "run", "--resume", *sum(WORKERS.items(), ())],
    "train over a run": ["train", "table.yaml", "--output-dir", "done", "--overwrite", "--training.seed", "5"],
    "prepare a log": ["data", "prepare", "synthetic", *LOG_OPTIONS, "--output", "prepared"],
    "prepare a table": ["data", "prepare", "synthetic_table", "--option", "num_rows=300", "--output", "prepared"],
    "init": ["init", "clicks.csv", "--yes", "--output", "clicks", "--overwrite"],
    "evaluate": ["evaluate", "done", "--predictions", "done/predictions/test.parquet", "--output", "found.json"],
    "predict": ["predict", "done", "--input", "rows.jsonl", "--output", "scores.jsonl"],
    "card": ["card", "done"],
    "report": ["report", "done", "--no-plots"],
    "export": ["export", "done", "--format", "torch", "--output", "exported"],
    "demo": ["demo", "done", "--space", "space"],
}
SHORT = ["prepare a log", "prepare a table", "init", "evaluate", "predict", "card", "report", "demo"]
TRIALS = {"train text": 80, "train table": 60, "train with workers": 40, "prepare a log": 30, "prepare a table": 30}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """What the verbs find: recipes, a file of clicks, a finished run and rows for it."""
    folder = tmp_path_factory.mktemp("given") / "given"
    folder.mkdir()
    table = {**TABLE, "data": {**TABLE["data"], "baselines": False}}
    text = {**TEXT, "data": {**TEXT["data"], "baselines": False}}
    for name, recipe in (("text", text), ("table", table)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    lines = [f"u{n % 7},i{n % 11},{1_600_000_000 + 977 * n},{int(n % 3 == 0)}" for n in range(200)]
    (folder / "clicks.csv").write_text("\n".join(["user,item,time,label", *lines]) + "\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["train", "table.yaml", "--output-dir", "done"]) == 0
    finally:
        os.chdir(before)
    settings = json.loads((folder / "done" / "preprocessor_config.json").read_text())
    row = {field["name"]: 1 if field["type"] == "numeric" else "a" for field in settings["fields"]}
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(5)))
    return folder


def kill(verbs, given, work, trials, seed):
    """Kills verbs, and gives the number of trials."""
    asked = {"verbs": {verb: VERBS[verb] for verb in verbs}, "given": str(given), "work": str(work)}
    asked |= {"trials": trials, "seed": seed, "again": DONE}
    ended = warm.start(Path(__file__).parent / "kills.py", json.dumps(asked))
    ended.wait(timeout=590)
    print(ended.out)
    assert ended.returncode == 0, ended
    found = [json.loads(line) for line in ended.out.splitlines()]
    assert [one["verb"] for one in found] == list(verbs)
    assert not [one for one in found if one["findings"]], found
    return sum(one["trials"] for one in found)


def test_killed_once_each(given, tmp_path):
    assert kill(SHORT, given, tmp_path, 1, seed=0) == len(SHORT)


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", VERBS)
def test_killed_wherever_it_writes(verb, given, tmp_path):
    """At operations drawn without repetition, the last one among them; about a third of the trials are killed twice."""
    assert kill([verb], given, tmp_path, TRIALS.get(verb, 20), seed=1) > 0
