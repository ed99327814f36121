"""`lmctr.runs.load("user/name")` and the verbs that take a Hub id, against a stand-in of the Hub."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_server import HubServer, client
from tiny_run import make_batch

import lmctr
from lmctr.runs import load
from lmctr.runs.answers import predict_rows
from lmctr.runs.download import HubName, hub_name
from lmctr.runs.folder import MANIFEST, RunFolder, is_shared
from lmctr.utils.hub_calls import HubError, ask_hub
from lmctr.utils.integrity import sealed

TRY = """
import json, sys, time
from lmctr.runs import load

time.sleep = lambda seconds: None  # huggingface_hub asks a failing server again, behind half a minute in all
said = []
for words in json.loads(sys.argv[1]):
    try:
        run = load(**words)
        said.append([str(run.path), sorted(path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file())])
    except Exception as error:
        said.append([type(error).__name__, str(error)])
print(json.dumps(said))
"""
SCORE = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from tiny_run import make_batch
from lmctr.runs import load

run = load("tester/tiny")
with torch.no_grad():
    print([run.recipe, run.metrics, run.model(**make_batch(run.processor)).logits.tolist()])
"""
PIPELINE = """
import json, sys
import lmctr, transformers

pipe = transformers.pipeline("click-prediction", model="tester/tiny", device="cpu")
print(json.dumps(pipe(json.loads(sys.argv[1]))))
"""
CLI = "import sys; from lmctr.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def hub(finished_run):
    """A Hub that holds the run, and beside it what a careless push might leave there."""
    with HubServer() as server:
        path = finished_run[0]
        files = {
            name.relative_to(path).as_posix(): {"data": name.read_bytes(), "lfs": name.suffix == ".safetensors"}
            for name in path.rglob("*")
            if name.is_file()
        }
        server.repos["tester/tiny"] = {"private": False, "branches": {"main": "a" * 40}, "commits": {"a" * 40: files}}
        server.repos["tester/text"] = {
            "private": False,
            "branches": {"main": "b" * 40},
            "commits": {"b" * 40: {"README.md": {"data": b"x", "lfs": False}}},
        }
        server.repos["tester/mine"] = {**server.repos["tester/tiny"], "private": True}
        yield server


def tried(hub_url, tmp_path, *words, token=""):
    done = client(hub_url, tmp_path, "-c", TRY, json.dumps(words), token=token)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_model_of_the_hub_is_a_run(hub, finished_run, tmp_path):
    done = client(hub.url, tmp_path, "-c", SCORE, os.path.dirname(__file__))
    assert done.returncode == 0, done.stderr
    recipe, metrics, logits = eval(done.stdout.splitlines()[-1])
    assert (recipe, metrics) == (None, None)  # neither is shared
    _, model, processor = finished_run
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(logits), model(**make_batch(processor)).logits)


def test_a_pipeline_of_the_hub(hub, finished_run, tmp_path):
    history = [{"text": "Heat (Crime)", "time": 10, "feedback": "liked"}]
    request = {"history": history, "candidates": ["Casino (Crime)", "Toy Story"], "time": 30}
    done = client(hub.url, tmp_path, "-c", PIPELINE, json.dumps(request))
    assert done.returncode == 0, done.stderr
    _, model, processor = finished_run
    answers = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(
        [answer["logit"] for answer in answers], predict_rows(model, processor, [request]), atol=1e-5
    )


def test_only_what_is_shared_is_downloaded_and_what_is_wrong_is_said(hub, tmp_path):
    words = [
        {"path_or_hub_id": "tester/tiny"},
        {"path_or_hub_id": "tester/tiny", "revision": "a" * 40},
        {"path_or_hub_id": "tester/tiny", "revision": "no-such-branch"},
        {"path_or_hub_id": "runs/nothing"},
        {"path_or_hub_id": "tester/text"},
        {"path_or_hub_id": "tester/mine"},
        {"path_or_hub_id": "tester/mine", "token": "hf_reader"},
        {"path_or_hub_id": str(tmp_path), "revision": "main"},
        {"path_or_hub_id": str(tmp_path / "gone")},
    ]
    found = tried(hub.url, tmp_path, *words)
    for place, files in (found[0], found[1], found[6]):
        assert "config.json" in files
        assert all(is_shared(name) for name in files), (place, files)
    errors = [(kind, text) for kind, text in (found[2], found[3], found[4], found[5], found[7], found[8])]
    assert errors[0][0] == "HubError"
    assert "no such branch on the Hub" in errors[0][1]
    assert errors[1][0] == "FileNotFoundError"
    assert errors[1][1].startswith("runs/nothing is neither a folder here nor a model repository of the Hub")
    assert errors[2] == (
        "ValueError",
        "tester/text on the Hub has no config.json: it holds no model (there is no folder of this name here)",
    )
    assert errors[3][0] == "FileNotFoundError"
    assert "HF_TOKEN" in errors[3][1]
    assert "goes with a Hub id" in errors[4][1]
    assert "does not exist" in errors[5][1]


@pytest.mark.parametrize(
    ("status", "advice"), [(403, "the access token may not read it"), (500, "the server failed; load again later")]
)
def test_files_that_the_hub_refuses_are_told_as_refused(hub, tmp_path, monkeypatch, status, advice):
    """Its answer to a file, behind one that told of the repository, is no broken connection."""
    monkeypatch.setitem(hub.failures, "resolve", status)
    ((kind, text),) = tried(hub.url, tmp_path, {"path_or_hub_id": "tester/tiny"})
    assert kind == "HubError"
    assert text.startswith("load 'tester/tiny' from the Hub")
    assert f"the Hub answered {status}: {advice}" in text


def test_what_a_model_of_the_hub_lacks_is_told_of_its_id(hub, tmp_path):
    files = hub.repos["tester/tiny"]["commits"]["a" * 40]
    lacking = {
        name: file for name, file in files.items() if not name.startswith(("processor_config", "preprocessor_config"))
    }
    hub.repos["tester/bare"] = {"private": False, "branches": {"main": "c" * 40}, "commits": {"c" * 40: lacking}}
    alone = {"adapter_config.json": files["config.json"]}
    hub.repos["tester/adapter"] = {"private": False, "branches": {"main": "d" * 40}, "commits": {"d" * 40: alone}}
    (kind, text), of_adapters = tried(
        hub.url, tmp_path, {"path_or_hub_id": "tester/bare"}, {"path_or_hub_id": "tester/adapter"}
    )
    assert kind == "FileNotFoundError"
    assert text.startswith("tester/bare has no processor_config.json")
    assert of_adapters[0] == "ValueError"
    assert of_adapters[1].startswith("tester/adapter on the Hub has no config.json: it holds adapters of PEFT alone")
    done = client(hub.url, tmp_path, "-c", CLI, "export", "tester/bare", "--output", str(tmp_path / "graph"))
    assert done.returncode == 2
    assert "error: tester/bare has no processor_config.json" in done.stderr


UPDATE = """
import sys
import torch
import lmctr
from huggingface_hub import HfApi
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoProcessor

model = lmctr.AutoModelForCTR.from_pretrained("tester/mended")
processor = AutoProcessor.from_pretrained("tester/mended")
with torch.no_grad():
    for parameter in model.parameters():
        parameter.mul_(1.01)
model.config.soft_labels = True
model.push_to_hub("tester/mended")
processor.num_behaviors = 4
processor.push_to_hub("tester/mended")
model.push_to_hub("tester/mended", revision="newer")
for revision in ("main", "newer"):
    run = lmctr.runs.load("tester/mended", revision=revision)
    assert all(torch.equal(one, two) for one, two in zip(run.model.parameters(), model.parameters()))
    assert run.model.config.soft_labels and run.processor.num_behaviors == 4
AutoModelForSequenceClassification.from_pretrained("tester/mended", trust_remote_code=True)
model.config.push_to_hub("tester/mended")
lmctr.runs.load("tester/mended")
model.save_pretrained(sys.argv[1], push_to_hub=True, repo_id="tester/mended")
lmctr.runs.load("tester/mended")
model.push_to_hub("tester/fresh")
processor.push_to_hub("tester/fresh")
lmctr.runs.load("tester/fresh")
AutoModelForSequenceClassification.from_pretrained("tester/fresh", trust_remote_code=True)

with open(sys.argv[1] + "/config.json", "a") as file:
    file.write(" ")
HfApi().upload_file(path_or_fileobj=sys.argv[1] + "/config.json", path_in_repo="config.json", repo_id="tester/mended")
try:
    lmctr.runs.load("tester/mended")
except ValueError as error:
    print(error)
HfApi().delete_file("lmctr_manifest.json", repo_id="tester/mended")
lmctr.runs.load("tester/mended")
"""


def test_what_is_loaded_can_be_changed_and_pushed_back(run_dir, tmp_path):
    RunFolder(run_dir).seal()
    saved = tmp_path / "saved"
    with HubServer() as server:
        words = "import sys; from lmctr.cli.main import main; sys.exit(main(['push', sys.argv[1], 'tester/mended']))"
        assert client(server.url, tmp_path, "-c", words, str(run_dir)).returncode == 0
        before = json.loads(server.files("tester/mended")["config.json"]["data"])
        done = client(server.url, tmp_path, "-c", UPDATE, str(saved), fresh=True)
        assert done.returncode == 0, done.stderr[-3000:]
        files = server.files("tester/mended")
        newer = server.files("tester/mended", "newer")
        fresh = server.files("tester/fresh")
    assert json.loads(newer["config.json"]["data"])["auto_map"] == before["auto_map"]
    assert "lmctr_manifest.json" not in files
    assert "lmctr_manifest.json" not in fresh
    assert "auto_map" not in json.loads(fresh["config.json"]["data"])
    assert not {"lmctr_manifest.json", "lmctr_remote.py"} & {path.name for path in saved.iterdir()}
    said = done.stdout.splitlines()[-1]
    assert "config.json has " in said
    assert (
        "on the Hub, the files of tester/mended were changed after its lmctr_manifest.json: push the model again with `lmctr push`"
        in said
    )
    assert "or delete lmctr_manifest.json from that repository" in said


def test_a_name_may_hold_the_revision(hub, tmp_path, monkeypatch):
    words = ["tester/tiny@" + "a" * 40, "hf://tester/tiny@main", "hf://tester/tiny", "tester/tiny@gone"]
    found = tried(hub.url, tmp_path, *({"path_or_hub_id": word} for word in words))
    assert "config.json" in found[0][1]
    assert found[0] == found[1] == found[2]
    assert found[3][0] == "HubError"
    assert "'tester/tiny@gone'" in found[3][1]
    assert "no such branch on the Hub" in found[3][1]

    monkeypatch.chdir(tmp_path)
    (tmp_path / "here/run").mkdir(parents=True)
    (tmp_path / "here/run@v1").mkdir()
    assert hub_name("here/run") is hub_name("here/run@v1") is hub_name(Path("user/name")) is None
    assert hub_name("hf://here/run@v2") == HubName("here/run", "v2")
    assert hub_name("user/name@refs/pr/1", "refs/pr/1") == HubName("user/name", "refs/pr/1")
    assert hub_name("user/name", "v2") == HubName("user/name", "v2")


@pytest.mark.parametrize(
    ("name", "revision", "said"),
    [
        ("user/name@v1", "v2", "'user/name@v1' and revision='v2' name two revisions; give one"),
        ("user/name@", None, "no revision behind the @"),
        ("hf://name", None, "expected hf://user/name or hf://user/name@revision"),
        ("https://huggingface.co/user/name", None, "is the address of a page; write user/name$"),
        ("https://huggingface.co/user/name/tree/v2", None, "is the address of a page; write user/name@v2$"),
        ("https://example.org/user/name", None, "is an address; accepted: a folder, or user/name of the Hub"),
        ("here/run@v2", None, "here/run is a folder here; hf://here/run@v2 means the Hub"),
    ],
)
def test_names_that_say_too_much_or_too_little(name, revision, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here/run").mkdir(parents=True)
    with pytest.raises(ValueError, match=said):
        load(name, revision=revision)


@pytest.mark.parametrize("name", ["a" * 300, "a/" + "b" * 300, "x\0y"])
def test_a_name_that_no_path_can_have_is_not_there(name):
    with pytest.raises(FileNotFoundError, match="does not exist; give the folder that `lmctr train` wrote"):
        load(name)


@pytest.mark.parametrize(
    "name", ["runs/dim", "runs/dim@v1", "/nowhere/dim", "./dim", "~/dim", "some/runs/dim", "dim", "runs/file"]
)
def test_a_place_on_this_machine_is_not_asked_of_the_hub(name, tmp_path, monkeypatch):
    """Nothing listens there: whoever asks the Hub gets a HubError."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/din").mkdir(parents=True)
    (tmp_path / "runs/file").touch()
    with pytest.raises(FileNotFoundError) as told:
        load(name)
    assert f"run folder {str(Path(name))!r} {'is a file' if 'file' in name else 'does not exist'};" in str(told.value)
    assert ("Did you mean 'din'?" in str(told.value)) == (name == "runs/dim")
    assert hub_name("user/dim") == HubName("user/dim")
    assert hub_name("hf://runs/dim") == HubName("runs/dim")


def test_downloads_that_may_not_be_written_name_what_says_where_they_go(tmp_path):
    def refused():
        raise PermissionError(13, "Permission denied", str(tmp_path))

    told = rf"^load 'a/b': {tmp_path}, where downloads are kept, may not be written \(Permission denied\); set HF_HOME"
    with pytest.raises(HubError, match=told):
        ask_hub("load 'a/b'", refused)
    with pytest.raises(PermissionError):
        ask_hub("push to 'a/b'", refused)


def test_without_a_connection_earlier_downloads_are_used(hub, tmp_path):
    (first,) = tried(hub.url, tmp_path, {"path_or_hub_id": "tester/tiny"})
    nowhere = "http://127.0.0.1:9"
    again, other = tried(nowhere, tmp_path, {"path_or_hub_id": "tester/tiny"}, {"path_or_hub_id": "tester/mine"})
    assert again == first
    assert other[0] == "HubError"
    assert "there is no folder of this name here" in other[1]
    assert f"the Hub at {nowhere} was not reached" in other[1]


@pytest.mark.parametrize(
    ("first", "lacking"),
    [
        ("AutoConfig", "model.safetensors, processor_config.json"),
        ("AutoModel AutoProcessor", "item_statistics.parquet"),
        ("AutoModel AutoProcessor manifest", "vocab.txt"),
    ],
)
def test_without_a_connection_a_part_of_a_download_is_told(hub, tmp_path, first, lacking):
    files = dict(hub.files("tester/tiny"))
    reader = {"names": ["user_count"]}  # as a processor of statistics says
    values = json.loads(files["processor_config.json"]["data"]) | {"statistics_reader": reader}
    listed = {"files": {key: {"size": 1, "sha256": ""} for key in ("config.json", "vocab.txt")}}
    (tmp_path / "manifest.json").write_text(json.dumps(sealed(listed)))
    kinds = first.split()
    get = [f"transformers.{kind}.from_pretrained('tester/part')" for kind in kinds if kind.startswith("Auto")]
    if "manifest" in kinds:
        files[MANIFEST] = {"data": (tmp_path / "manifest.json").read_bytes(), "lfs": False}
        get.append(f"huggingface_hub.hf_hub_download('tester/part', '{MANIFEST}')")
    hub.repos["tester/part"] = {"private": False, "branches": {"main": "d" * 40}, "commits": {"d" * 40: files}}
    done = client(hub.url, tmp_path, "-c", "; ".join(["import lmctr, transformers, huggingface_hub", *get]))
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "hf_home").rglob("snapshots/*/processor_config.json"):
        path.unlink()
        path.write_text(json.dumps(values))
    ((kind, said),) = tried("http://127.0.0.1:9", tmp_path, {"path_or_hub_id": "tester/part"})
    assert kind == "HubError"
    assert "was not reached" in said
    assert f"only a part is here, {tmp_path}" in said
    assert f"lacks {lacking}: load it once with a connection (and without HF_HUB_OFFLINE)" in said


def test_card_of_a_hub_id(hub, tmp_path):
    done = client(hub.url, tmp_path, "-c", CLI, "card", "tester/tiny", "--licence", "mit")
    assert done.returncode == 0, done.stderr
    assert "license: mit" in done.stdout
    assert 'from_pretrained("tester/tiny")' in done.stdout
    done = client(hub.url, tmp_path, "-c", CLI, "card", "runs/nothing")
    assert done.returncode == 2
    assert done.stderr.startswith("error: runs/nothing is neither a folder here nor a model repository")


def test_the_card_of_a_hub_id_is_its_own(hub, tmp_path):
    own = "---\nlicense: mit\n---\n\n# By hand — and no end of line"
    files = {**hub.files("tester/tiny"), "README.md": {"data": own.encode(), "lfs": False}}
    hub.repos["tester/carded"] = {"private": False, "branches": {"main": "e" * 40}, "commits": {"e" * 40: files}}
    done = client(hub.url, tmp_path, "-c", CLI, "card", "tester/carded@main")
    assert done.returncode == 0, done.stderr
    assert done.stdout == own
    done = client(hub.url, tmp_path, "-c", CLI, "card", "tester/carded", "--licence", "mit")
    assert done.returncode == 2
    assert "error: --licence: of tester/carded the card that it has on the Hub is printed" in done.stderr
    done = client("http://127.0.0.1:9", tmp_path, "-c", CLI, "card", "tester/carded")  # it was downloaded
    assert done.stdout == own


def test_export_of_a_hub_id_goes_to_the_working_directory(hub, tmp_path):
    """Of a model whose graph is small: where it goes is asked before a model is looked at."""
    fields = [{"name": name, "type": "categorical"} for name in "ab"]
    processor = lmctr.TabularFeatureProcessor(fields, label=None).fit({name: ["x", "y", "z"] for name in "ab"})
    processor.save_pretrained(tmp_path / "dnn")
    config = lmctr.DNNConfig(**processor.model_config_values(), embedding_dim=4, hidden_units=[4])
    lmctr.DNNForCTR(config).save_pretrained(tmp_path / "dnn")
    files = {path.name: {"data": path.read_bytes(), "lfs": False} for path in (tmp_path / "dnn").iterdir()}
    hub.repos["tester/dnn"] = {"private": False, "branches": {"main": "d" * 40}, "commits": {"d" * 40: files}}
    words = ("export", "tester/dnn@main", "--format", "torch")
    done = client(hub.url, tmp_path, "-c", CLI, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"wrote {Path('dnn-export-torch/model.pt2')}")
    assert (tmp_path / "dnn-export-torch/export.json").is_file()
    assert not list((tmp_path / "hf_home").rglob("export*"))


def test_what_counts_and_looks_into_models_takes_hub_ids(hub, tmp_path):
    config = lmctr.FATConfig(
        vocab_sizes=[5, 5],
        embedding_dim=4,
        hidden_size=8,
        num_attention_heads=2,
        num_bases=4,
        top_k=2,
        field_names=["a", "b"],
    )
    lmctr.FATForCTR(config).save_pretrained(tmp_path / "fat")
    fields = [{"name": name, "type": "categorical"} for name in "ab"]
    processor = lmctr.TabularFeatureProcessor(fields, label=None).fit({name: ["x", "y", "z"] for name in "ab"})
    processor.save_pretrained(tmp_path / "fat")
    files = {path.name: {"data": path.read_bytes(), "lfs": False} for path in (tmp_path / "fat").iterdir()}
    hub.repos["tester/fat"] = {"private": False, "branches": {"main": "f" * 40}, "commits": {"f" * 40: files}}
    script = (
        "from lmctr.cli.main import main\n"
        "assert main('analyze fields tester/fat@main --no-plots'.split()) == 0\n"
        "assert main('scaling flops tester/fat hf://tester/tiny'.split()) == 0\n"
        "for words in ('scaling flops deepfm/sinthetic', 'analyze attention tester/tiny', 'evaluate tester/tiny@main'):\n"
        "    assert main(words.split()) == 2\n"
    )
    done = client(hub.url, tmp_path, "-c", script)
    assert done.returncode == 0, done.stderr
    assert "wrote fat-analysis/fields.json, fat-analysis/fields.csv" in done.stdout
    assert json.loads((tmp_path / "fat-analysis/fields.json").read_text())["field_names"] == ["a", "b"]
    assert [line.split()[:2] for line in done.stdout.splitlines()[-2:]] == [
        ["tester/fat", "fat"],
        ["hf://tester/tiny", "ctr_sink"],
    ]
    recipe, analysis, measured = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "did you mean 'deepfm/synthetic'" in recipe
    assert analysis.startswith("error: tester/tiny is no run folder: it has no recipe.yaml")
    assert measured.startswith("error: tester/tiny@main is no run folder: it has no recipe.yaml")


def test_predict_of_a_hub_id(hub, finished_run, tmp_path):
    _, model, processor = finished_run
    history = [{"text": "Heat (Crime)", "time": 10, "feedback": "liked"}]
    rows = [{"history": history, "candidates": ["Casino", "Toy Story"], "time": 20}]
    (tmp_path / "in.jsonl").write_text(json.dumps(rows[0]))
    done = client(hub.url, tmp_path, "-c", CLI, "predict", "tester/tiny", "--input", str(tmp_path / "in.jsonl"))
    assert done.returncode == 0, done.stderr
    (answer,) = map(json.loads, done.stdout.splitlines())
    assert answer["logits"] == pytest.approx(predict_rows(model, processor, rows).tolist(), abs=1e-5)


def test_rows_of_a_log_need_the_run_folder(hub, tmp_path):
    (tmp_path / "rows.csv").write_text("user,item,time\n1,2,30\n")
    words = ("predict", "tester/tiny", "--input", str(tmp_path / "rows.csv"), "--log", str(tmp_path / "schema.yaml"))
    done = client(hub.url, tmp_path, "-c", CLI, *words)
    assert done.returncode == 2
    for part in (
        "error: tester/tiny has no recipe.yaml",
        "lmctr push keeps it back",
        "the run folder that lmctr train wrote",
        "as JSON lines",
    ):
        assert part in done.stderr
    done = client(
        hub.url, tmp_path, "-c", "import lmctr; lmctr.runs.load('tester/tiny').predict({'user': [1]}, log='x')"
    )
    assert done.stderr.splitlines()[-1].startswith("FileNotFoundError: tester/tiny has no recipe.yaml")
