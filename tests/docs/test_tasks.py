"""Pages of docs/tasks: the commands and the Python of the pages, with a run of the recipe that they name."""

import os
import re
import shlex
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import warm

import lmctr
from lmctr.cli.main import main
from lmctr.models import families as table
from lmctr.serving import SplitRetrievalModel

PAGES = Path(__file__).resolve().parents[2] / "docs" / "tasks"
PAGE = (PAGES / "export.md").read_text()
# A log that goes on behind the fixed second that other pages ask at.
SHORT = [
    "--data.options",
    "{num_users: 10, num_items: 40, events_per_user: 40, start_time: 1700000000}",
    "--data.baselines",
    "false",
]
SHORT += ["--data.max_train_samples", "300", "--data.max_eval_samples", "100", "--training.stage2_epochs", "1"]
SHORT += ["--training.use_cpu", "true", "--training.boosting_share", "0"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_registry_of_operators")
def test_the_export_page_as_written(tmp_path, monkeypatch):
    onnxruntime = [pytest.importorskip(package) for package in ("onnx", "onnxscript", "onnxruntime")][-1]
    monkeypatch.chdir(tmp_path)
    (recipe,) = set(re.findall(r"recipes/\S+?\.yaml", PAGE))
    graph, vectors = re.findall(r"```bash\n(.*?)\n```", PAGE)
    assert main(["train", recipe, "--output_dir", "runs/din", *SHORT]) == 0
    assert main(shlex.split(graph)[1:]) == 0
    code, eight_bits, nearest, _ = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    exec(code, scope := {})
    exec(eight_bits)
    session = onnxruntime.InferenceSession("exported/model.int8.onnx")
    np.testing.assert_allclose(session.run(["logits"], scope["inputs"])[0], scope["logits"], atol=0.1)
    assert main(shlex.split(vectors)[1:]) == 0
    exec(nearest, found := {})
    assert len(found["nearest"]) == 5
    assert len(found["vectors"]) == len(lmctr.runs.load("runs/din").embeddings()["item"])
    assert scope["logits"].shape == (1, 2)
    assert np.isfinite(scope["logits"]).all()
    assert scope["time"] > 1_700_007_200


@pytest.mark.usefixtures("one_registry_of_operators")
def test_a_graph_without_lmctr_as_written(tmp_path, monkeypatch):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    short = ["--data.options.num_rows", "2000", "--data.baselines", "false", "--training.epochs", "1"]
    assert (
        main(["train", "deepfm/synthetic", "--output-dir", "runs/deepfm", *short, "--training.use_cpu", "true"]) == 0
    )
    assert main(["export", "runs/deepfm", "--format", "onnx", "--output", "exported"]) == 0
    *_, code = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    assert "lmctr" not in code
    exec(code, scope := {})
    run = lmctr.runs.load("runs/deepfm")
    row = dict.fromkeys(field.source_column for field in run.processor.fields) | scope["row"]
    np.testing.assert_allclose(scope["logits"], run.predict([row]), atol=1e-5)
    assert (scope["inputs"]["input_ids"] > 1).sum() == 2


def test_the_page_of_other_trainers_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ["--data.max_train_samples", "64", "--data.max_eval_samples", "64", "--training.stage1_epochs", "0"]
    short += ["--training.stage2_epochs", "1", "--training.boosting_share", "0", "--data.baselines", "false"]
    assert main(["train", "ctr_sink/quickstart", "--output-dir", "runs/quickstart", *short]) == 0
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / "trainers.md").read_text(), flags=re.S)
    exec(code, scope := {})
    assert len(scope["statistics"]) > 10
    assert (tmp_path / "out").is_dir()


def test_the_page_of_families_as_written(tmp_path, monkeypatch):
    """The family of the page trains, is loaded again, and is what its formula says."""
    page, before = (PAGES / "add_family.md").read_text(), list(table._FAMILIES)
    family, train = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    (tmp_path / "my_family.py").write_text(family)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lmctr.runs, "train", partial(_briefly, lmctr.runs.train))
    try:
        exec(train, scope := {})
        model = lmctr.runs.load("runs/mine").model.eval()
        ids = torch.randint(1, 4, (5, model.config.num_fields - model.config.num_numeric))
        numbers = torch.rand(5, model.config.num_numeric)
        with torch.no_grad():
            fields = model.model.embedding(ids, numbers)
            pairs = sum(fields[:, i] * fields[:, j] for i in range(fields.shape[1]) for j in range(i))
            expected = model.head(model.model.hidden(pairs).relu())
            found = model(input_ids=ids, numeric_values=numbers).logits
        torch.testing.assert_close(found, expected.reshape(5), atol=1e-5, rtol=1e-4)
        with pytest.raises(ValueError, match="hidden_size"):
            scope["my_family"].MineConfig(vocab_sizes=[5], hidden_size=0)
    finally:
        table._FAMILIES[:] = before


def _briefly(train, recipe, output_dir, overrides):
    short = {"data.options.num_rows": 2000, "data.baselines": False, "training.epochs": 1, "training.use_cpu": True}
    return train(recipe, output_dir=output_dir, overrides=overrides | short)


def test_the_page_of_retrieval_as_written(tmp_path, monkeypatch):
    page = (PAGES / "retrieve.md").read_text()
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"```bash\n(.*?)\n```", page)
    short = ["--data.options", "{num_impressions: 600}", "--data.baselines", "false", "--training.use_cpu", "true"]
    assert main([*shlex.split(command)[1:], *short]) == 0
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.S)), scope := {})
    run, index, ads = scope["run"], scope["index"], {ad["ad_id"]: ad for ad in scope["ads"]}
    assert len(index.keys) == 998
    scores = run.predict([{"user": scope["users"][0], "ads": [ads[key] for key in index.keys]}])
    np.testing.assert_allclose(scope["scores"][0], scores, atol=1e-5)
    assert scope["best"] == [index.keys[place] for place in np.argsort(-scores)[:10]]
    again = SplitRetrievalModel.from_pretrained("index")
    assert again.keys == index.keys


@pytest.mark.slow
def test_the_page_of_searches_as_written(tmp_path, monkeypatch, capsys):
    for package in ("tensorboard", "trackio", "optuna"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    page = (PAGES / "search.md").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    short = ["--data.options", "{num_rows: 1000}", "--data.baselines", "false", "--training.epochs", "2"]
    short += ["--training.use_cpu", "true", "--training.logging_steps", "1"]
    tracked, watched, search = (block.splitlines() for block in re.findall(r"```bash\n(.*?)\n```", page, flags=re.S))
    (code,), (space,) = (re.findall(rf"```{kind}\n(.*?)```", page, flags=re.S) for kind in ("python", "yaml"))
    (tmp_path / "watching.py").write_text(code)
    (tmp_path / "space.yaml").write_text(space)

    own = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}  # read when trackio is imported
    warm.run("-m", *shlex.split(tracked[0]), *short, environment=os.environ | own)
    folder = shlex.split(tracked[1])[-1]
    assert list((tmp_path / folder).glob("events.out.*"))
    assert list((tmp_path / "trackio").glob("clicks*"))

    capsys.readouterr()
    assert main([*shlex.split(watched[0])[2:], *short, "--overwrite"]) == 0
    assert re.search(r"step \d+: best AUC so far 0\.\d{4}", capsys.readouterr().out)

    words = ["2" if word == "20" else word for word in shlex.split(search[0])[1:]]
    assert main([*words, "--no-compare", *short]) == 0
    assert (tmp_path / "runs/search_synthetic/best.yaml").is_file()
    assert (tmp_path / "runs/search_synthetic/trials.csv").is_file()
