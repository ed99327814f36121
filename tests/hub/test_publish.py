"""Pushing to a stand-in of the Hub and loading back from it. The client runs in processes of its own, since huggingface_hub reads
its endpoint when it is imported."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hub_server import HubServer, client
from safetensors.torch import load_file
from tiny_run import make_batch, write_json, write_run

import lmctr
from lmctr.hub.model_card import write_card
from lmctr.hub.publish import push_run
from lmctr.statistics import ItemStatistics

LOAD = """
import json, re, sys
import torch
from huggingface_hub import hf_hub_download
from safetensors.torch import load_file, save_file
import lmctr
from transformers import AutoConfig, AutoModel, AutoProcessor

repo, revision, out = sys.argv[1:4]
model = lmctr.AutoModelForCTR.from_pretrained(repo, revision=revision).eval()
base = AutoModel.from_pretrained(repo, revision=revision)
processor = AutoProcessor.from_pretrained(repo, revision=revision)
sys.path.insert(0, sys.argv[4])
from tiny_run import make_batch
with torch.no_grad():
    logits = model(**make_batch(processor)).logits
save_file({"logits": logits, "input_ids": make_batch(processor)["input_ids"]}, out)
scope = {}
card = open(hf_hub_download(repo, "README.md", revision=revision)).read()
if revision == "main":
    exec(re.search(r"```python\\n(.*?)```", card, re.DOTALL).group(1), scope)
print(json.dumps({
    "model": type(model).__name__, "base": type(base).__name__, "processor": type(processor).__name__,
    "config": type(AutoConfig.from_pretrained(repo, revision=revision)).__name__,
    "probability": float(scope["probability"]) if scope else None,
}))
"""

ERRORS = """
import json, sys
from lmctr.hub.model_card import write_card
from lmctr.hub.publish import push_run

said = []
for options in json.loads(sys.argv[2]):
    try:
        push_run(sys.argv[1], **options)
    except Exception as error:
        said.append([type(error).__name__, str(error)])
    else:
        said.append(["pushed", ""])
print(json.dumps(said))
"""


@pytest.fixture
def hub():
    with HubServer() as server:
        yield server


def load_back(hub, tmp_path, repo, revision="main"):
    out = tmp_path / "loaded.safetensors"
    here = os.path.dirname(__file__)
    done = client(hub.url, tmp_path, "-c", LOAD, repo, revision, str(out), here)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), load_file(out)


@pytest.mark.slow
def test_push_and_load_back(hub, finished_run, run_dir, tmp_path):
    _, model, processor = finished_run
    arguments = ["--private", "--commit-message", "First seed", "--licence", "mit"]
    done = client(hub.url, tmp_path, "-m", "lmctr", "push", str(run_dir), "tester/ctr-sink-tiny", *arguments)
    assert done.returncode == 0, done.stderr
    assert "ok: logits of 2 reference rows are the run's own" in done.stdout
    assert f"{hub.url}/tester/ctr-sink-tiny/commit/" in done.stdout

    repo = hub.repos["tester/ctr-sink-tiny"]
    assert repo["private"]
    assert repo["message"] == "First seed"
    files = hub.files("tester/ctr-sink-tiny")
    model_files = {
        "config.json",
        "model.safetensors",
        "processor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert set(files) == model_files | {"README.md", ".gitattributes", "lmctr_remote.py"}
    assert files["model.safetensors"]["lfs"]  # went through the LFS path
    assert {"batch", "upload", "verify"} <= set(hub.log)
    assert not files["config.json"]["lfs"]
    assert b"license: mit" in files["README.md"]["data"]
    assert files["README.md"]["data"] == (run_dir / "README.md").read_bytes()

    types, loaded = load_back(hub, tmp_path, "tester/ctr-sink-tiny")
    batch = make_batch(processor)
    assert torch.equal(loaded["input_ids"], batch["input_ids"])
    with torch.no_grad():
        torch.testing.assert_close(loaded["logits"], model(**batch).logits, rtol=0, atol=1e-6)
    probability = types.pop("probability")
    assert types == {
        "model": "CTRSinkForCTR",
        "base": "CTRSinkModel",
        "processor": "CTRSinkProcessor",
        "config": "CTRSinkConfig",
    }
    assert 0 < probability < 1  # the card's own lines, with the repository's name in them


@pytest.mark.slow
def test_a_branch_holds_its_own_model_and_old_shards_go(hub, finished_run, run_dir, tmp_path):
    """First a sharded model, then one in a single file on a branch: what is left of the shards is deleted there."""
    _, model, _ = finished_run
    (run_dir / "model.safetensors").unlink()
    model.save_pretrained(run_dir, max_shard_size="60KB")
    assert len(list(run_dir.glob("model-*.safetensors"))) > 1
    other = tmp_path / "other"
    other.mkdir()
    second, processor = write_run(other, seed=5)
    done = client(hub.url, tmp_path, "-m", "lmctr", "push", str(run_dir), "tester/two")
    assert done.returncode == 0, done.stderr
    sharded = {name for name in hub.files("tester/two") if name.startswith("model")}
    assert len(sharded) > 2
    done = client(hub.url, tmp_path, "-m", "lmctr", "push", str(other), "tester/two", "--revision", "seed-5")
    assert done.returncode == 0, done.stderr
    assert "deleted there, left by an earlier push: model-00001-of" in done.stdout
    assert {name for name in hub.files("tester/two") if name.startswith("model")} == sharded  # main is as it was
    assert {name for name in hub.files("tester/two", "seed-5") if name.startswith("model")} == {"model.safetensors"}

    repo = hub.repos["tester/two"]
    repo["branches"]["refs/pr/1"] = repo["branches"]["main"]
    done = client(hub.url, tmp_path, "-m", "lmctr", "push", str(other), "tester/two", "--revision", "refs/pr/1")
    assert done.returncode == 0, done.stderr
    assert hub.files("tester/two", "refs/pr/1") == hub.files("tester/two", "seed-5") != hub.files("tester/two")

    _, loaded = load_back(hub, tmp_path, "tester/two", "refs/pr/1")
    with torch.no_grad():
        torch.testing.assert_close(loaded["logits"], second(**make_batch(processor)).logits, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_hubs_refusals_are_explained(hub, run_dir, tmp_path):
    attempts = [
        {"repo_id": "tester/x", "token": "hf_wrong"},
        {"repo_id": "tester/x", "token": "hf_reader"},
        {"repo_id": "somebody-else/x", "token": "hf_writer"},
    ]
    done = client(hub.url, tmp_path, "-c", ERRORS, str(run_dir), json.dumps(attempts))
    said = json.loads(done.stdout.splitlines()[-1])
    assert [kind for kind, _ in said] == ["HubError"] * 3, said
    assert "push to 'tester/x'" in said[0][1]
    assert "answered 401" in said[0][1]
    assert "run `hf auth login` or set HF_TOKEN" in said[0][1]
    assert "answered 403" in said[1][1]
    assert "may not write there" in said[1][1]
    assert "answered 403" in said[2][1]
    assert "commit" not in hub.log

    hub.failures = {"commit": 500}
    done = client(hub.url, tmp_path, "-m", "lmctr", "push", str(run_dir), "tester/x")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: push to 'tester/x': the Hub answered 500")
    assert "the server failed; push again later" in done.stderr
    assert "Traceback" not in done.stderr
    hub.failures = {}
    done = client("http://127.0.0.1:9", tmp_path, "-c", ERRORS, str(run_dir), json.dumps(attempts[:1]))
    kind, text = json.loads(done.stdout.splitlines()[-1])[0]
    assert kind == "HubError"
    assert "the Hub at http://127.0.0.1:9 was not reached" in text


def test_an_edited_card_names_the_repository_and_is_else_as_it_was_written(hub, run_dir, tmp_path):
    path, _ = write_card(run_dir)
    note = "Do not feed after midnight, nor load by from_pretrained('.').\n- name: tiny\n"
    edited = path.read_text() + note
    path.write_text(edited)
    done = client(hub.url, tmp_path, "-m", "lmctr", "push", str(run_dir), "tester/renamed")
    assert done.returncode == 0, done.stderr
    assert path.read_text() == edited
    named = (
        ('from_pretrained(".").eval()  # this folder', 'from_pretrained("tester/renamed").eval()'),
        ('AutoProcessor.from_pretrained(".")', 'AutoProcessor.from_pretrained("tester/renamed")'),
        ("model-index:\n- name: tiny\n", "model-index:\n- name: renamed\n"),
    )
    for ours, theirs in named:
        assert ours in edited
        edited = edited.replace(ours, theirs)
    assert hub.files("tester/renamed")["README.md"]["data"].decode() == edited


def test_tables_of_a_model_are_no_reason_for_a_warning(hub, run_dir, tmp_path):
    pq.write_table(pa.table({"item_id": [1, 2]}), run_dir / "sequence_items.parquet")
    done = client(hub.url, tmp_path, "-m", "lmctr", "push", str(run_dir), "tester/tables")
    assert done.returncode == 0, done.stderr
    assert "sequence_items.parquet" in hub.files("tester/tables")
    assert "UserWarning" not in done.stderr


@pytest.mark.slow
def test_what_item_statistics_tell_of_events_is_said_and_may_be_coarse(hub, tmp_path):
    options = {"num_users": 40, "num_items": 60, "events_per_user": 30}
    data = {"name": "synthetic", "options": options, "statistics": "full", "baselines": False}
    recipe = {"data": data, "model": {"family": "din"}, "training": {"epochs": 1, "use_cpu": True}}
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    whole = ItemStatistics.load(run.folder.path / "item_statistics.parquet")
    words = ["-m", "lmctr", "push", str(run.folder.path), "tester/coarse"]
    done = client(hub.url, tmp_path, *words)
    assert f"second and the label of {whole.num_told:,} events by item, of no users" in done.stdout, done.stderr
    assert (
        hub.files("tester/coarse")["item_statistics.parquet"]["data"]
        == (run.folder.path / "item_statistics.parquet").read_bytes()
    )
    again = client(hub.url, tmp_path, *words)
    assert (
        f"nothing to upload: tester/coarse holds the {len(hub.files('tester/coarse')) - 1} files as they"
        in again.stdout
    )
    assert [line for line in again.stdout.splitlines() if line.startswith("http")] == [done.stdout.splitlines()[-1]]
    done = client(hub.url, tmp_path, *words, "--coarse-statistics", "10")
    assert "second and the label" not in done.stdout
    assert "uploaded " in done.stdout
    commits = len(hub.repos["tester/coarse"]["commits"])
    assert "nothing to upload: " in client(hub.url, tmp_path, *words, "--coarse-statistics", "10").stdout
    assert len(hub.repos["tester/coarse"]["commits"]) == commits == 3
    (tmp_path / "shared.parquet").write_bytes(hub.files("tester/coarse")["item_statistics.parquet"]["data"])
    assert 0 < ItemStatistics.load(tmp_path / "shared.parquet").num_told <= whole.num_told / 10 + len(whole)
    history = [{"item": 3, "behavior": "positive", "time": 1_600_000_000}]
    request = json.dumps([{"history": history, "candidates": [5, 9], "time": whole.time + 50}])
    code = "import json, sys, lmctr; print(lmctr.runs.load(sys.argv[1]).predict(json.loads(sys.argv[2])).tolist())"
    done = client(hub.url, tmp_path, "-c", code, "tester/coarse", request, fresh=True)
    assert len(json.loads(done.stdout.splitlines()[-1])) == 2, (
        done.stderr
    )  # its checksums are those of the shared table
    with pytest.raises(ValueError, match=r"every: got 1, accepted: a whole number from 2"):
        push_run(run.folder.path, "tester/coarse", coarse_statistics=1, dry_run=True)


SAVED = """
import sys
from lmctr import TabularFeatureProcessor
processor = TabularFeatureProcessor([{"name": "ad", "type": "categorical"}], label="click")
processor.fit([{"ad": f"a{number % 3}", "click": number % 2} for number in range(30)])
processor.save_pretrained(sys.argv[1], push_to_hub=True, repo_id="tester/rows")
assert TabularFeatureProcessor.from_pretrained("tester/rows").fingerprint == processor.fingerprint
"""


def test_a_processor_that_is_saved_and_pushed_at_once_is_whole(hub, tmp_path):
    done = client(hub.url, tmp_path, "-c", SAVED, str(tmp_path / "saved"))
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert "tabular_vocabularies.parquet" in names
    assert names <= {*hub.files("tester/rows")}


def test_only_runs_with_statistics_can_be_coarse(run_dir):
    with pytest.raises(ValueError, match=r"coarse_statistics: .* has no item_statistics.parquet"):
        push_run(run_dir, "tester/coarse", coarse_statistics=5, dry_run=True)


def test_private_is_no_wish_that_a_public_repository_grants(hub, run_dir, tmp_path):
    first = {".gitattributes": {"data": b"", "lfs": False}}
    repo = {"private": False, "branches": {"main": "a" * 40}, "commits": {"a" * 40: first}}
    hub.repos |= {"tester/open": repo, "tester/closed": {**repo, "private": True, "branches": {"main": "a" * 40}}}
    wishes = [{"repo_id": f"tester/{name}", "private": True} for name in ("open", "closed", "new")]
    done = client(hub.url, tmp_path, "-c", ERRORS, str(run_dir), json.dumps(wishes))
    refused, *pushed = json.loads(done.stdout.splitlines()[-1])
    assert refused[0] == "ValueError"
    assert (
        "repository 'tester/open' is there and public, nothing was uploaded: make it private in its settings"
        in refused[1]
    )
    assert "leave out --private" in refused[1]
    assert hub.files("tester/open") == first
    assert pushed == [["pushed", ""]] * 2
    assert hub.repos["tester/new"]["private"]


def test_a_missing_repository_is_a_clear_error_on_load(hub, tmp_path):
    script = "import lmctr, sys\ntry:\n    lmctr.AutoModelForCTR.from_pretrained(sys.argv[1])\nexcept Exception as error:\n    print(type(error).__name__, error)"
    done = client(hub.url, tmp_path, "-c", script, "tester/nothing-here")
    assert done.stdout.startswith("OSError"), done.stderr
    assert "tester/nothing-here is not a local folder and is not a valid model identifier" in done.stdout


def test_dry_run_writes_and_sends_nothing(run_dir):
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    result = push_run(run_dir, "tester/tiny", dry_run=True)  # this process has no stand-in: a request would fail
    assert result.url is None
    assert result.card_written
    assert {"config.json", "model.safetensors", "README.md"} <= set(result.files)
    assert not any("checkpoint" in name or "predictions" in name or "reference" in name for name in result.files)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == before
    (run_dir / "README.md").write_text("# By hand\n")
    assert not push_run(run_dir, "tester/tiny", dry_run=True).card_written


def test_nothing_is_sent_where_the_run_is_not_sound(run_dir):
    write_json(run_dir / "config.json", {"model_type": "bert"})
    with pytest.raises(ValueError, match="no CTR model of lmctr"):
        push_run(run_dir, "tester/tiny")


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "tester/", "tester/-x", ""])
def test_names_that_are_no_repository(name, run_dir):
    with pytest.raises(ValueError, match="repository"):
        push_run(run_dir, name, dry_run=True)
