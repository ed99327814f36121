"""`lmctr analyze rank`, `fields` and `bound`, with tiny runs of tables."""

import csv
import json
import shutil
import sys

import numpy as np
import pytest
import torch
import yaml
from cli_helpers import error_of
from test_tabular_runs import TINY_TABLE

from lmctr.analysis.effective_rank import measure_effective_rank
from lmctr.analysis.field_interactions import field_interactions
from lmctr.cli.main import main
from lmctr.runs.folder import is_shared
from lmctr.runs.loading import load_run
from lmctr.studies.analyses.options import RankOptions
from lmctr.studies.analyses.tabular import analyze_rank

MODELS = {
    "fat": {"hidden_size": 8, "num_attention_heads": 2, "num_bases": 4, "top_k": 2, "meta_dim": 4},
    "rank_mixer": {"num_tokens": 3, "token_dim": 6},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Finished runs by family. Read them only."""
    folder = tmp_path_factory.mktemp("runs")
    for family, values in MODELS.items():
        model = {"family": family, "embedding_dim": 4, **values}
        recipe = TINY_TABLE | {"model": model, "training": TINY_TABLE["training"] | {"stage2_epochs": 1}}
        path = folder / f"{family}.yaml"
        path.write_text(yaml.safe_dump(recipe))
        assert main(["train", str(path), "--output_dir", str(folder / family)]) == 0
    return {family: folder / family for family in MODELS}


@pytest.fixture
def copies(trained, tmp_path):
    """The runs, to be written to."""
    ignore = shutil.ignore_patterns("checkpoints")
    return {family: shutil.copytree(path, tmp_path / family, ignore=ignore) for family, path in trained.items()}


def analyze(*words):
    return main(["analyze", *map(str, words)])


def read(path):
    return json.loads(path.read_text())


def test_rank_of_one_run(copies, capsys):
    run = copies["rank_mixer"]
    assert analyze("rank", run, "--num-samples", 60, "--batch-size", 25) == 0
    printed = capsys.readouterr().out
    folder = run / "analysis"
    names = {"rank.json", "rank.csv", "rank.png", "rank_distributions.png"}
    assert {path.name for path in folder.iterdir()} == names
    (entry,) = read(folder / "rank.json")["runs"]
    stages = ["embedding", "tokens", "mixing_1", "ffn_1", "mixing_2", "ffn_2"]
    assert [row["stage"] for row in entry["stages"]] == stages
    assert entry["num_samples"] == 60
    for number, row in enumerate(entry["stages"]):
        for kind in ("stable", "entropy"):
            assert np.isclose(row[kind], np.mean(entry["samples"][kind][number]))
            assert np.isclose(row[f"{kind}_normalized"], row[kind] / min(row["tokens"], row["size"]))
        assert f"{row['stable']:7.3f}" in printed
    with open(folder / "rank.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["stage"] for row in rows] == stages


def test_the_measured_samples_are_those_of_the_split(copies):
    """All samples of a part, against the model and the part read without the verb."""
    run = copies["rank_mixer"]
    assert analyze("rank", run, "--split", "validation", "--no-plots") == 0
    (entry,) = read(run / "analysis" / "rank.json")["runs"]
    from lmctr.runs.inputs import input_of
    from lmctr.runs.inputs.base import RunContext
    from lmctr.runs.recipe import load_recipe

    view = input_of(load_recipe(run / "recipe.yaml"))
    view.load()
    model, processor = load_run(run)
    view.open(processor, ("validation",), RunContext(run))
    dataset = view.dataset("validation")
    batch = view.collator(False)(dataset.__getitems__(list(range(len(dataset)))))
    found = measure_effective_rank(model, [batch])
    assert entry["num_samples"] == found.num_samples == 200
    for kind in ("stable", "entropy"):
        np.testing.assert_allclose(entry["samples"][kind], found.samples(kind), rtol=1e-4)


def test_rank_of_several_runs(copies, tmp_path, capsys):
    words = ("--num-samples", 40, "--kind", "entropy", "--normalized", "--output", tmp_path / "out")
    assert analyze("rank", copies["fat"], copies["rank_mixer"], *words) == 0
    assert "entropy effective rank / min(T, D) of 40 samples" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {f"rank_comparison_distributions_{family}.png" for family in MODELS} | {"rank_comparison.png"}
    assert names == pictures | {"rank_comparison.json", "rank_comparison.csv"}
    entries = read(tmp_path / "out" / "rank_comparison.json")["runs"]
    assert [entry["name"] for entry in entries] == ["fat", "rank_mixer"]
    assert not (copies["fat"] / "analysis").exists()


def test_fields(copies, capsys):
    run = copies["fat"]
    model = load_run(run)[0]
    with torch.no_grad():  # weights that stand out
        model.model.layers[1].attention.modulation.weight[:, 2, 4] += 1.0
    model.save_pretrained(run)
    assert analyze("fields", run, "--top", 1) == 0
    printed = capsys.readouterr().out
    found = field_interactions(model)
    query, key = found.field_names[2], found.field_names[4]
    assert printed.count(f"{query} <- {key}") == 2  # the largest weight, and the most different direction
    folder = run / "analysis"
    pictures = {"fields.png", "fields_layer_1.png", "fields_layer_2.png"}
    assert {path.name for path in folder.iterdir()} == pictures | {"fields.json", "fields.csv"}
    content = read(folder / "fields.json")
    np.testing.assert_allclose(content["matrix"], found.matrix())
    np.testing.assert_allclose(content["layers"][1], found.matrix(1))
    assert content["asymmetry"][0]["query"] == query
    with open(folder / "fields.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["query"], rows[0]["key"], float(rows[0]["scaled"])) == (query, key, 1.0)
    assert len(rows) == 36
    assert analyze("fields", run, "--layer", 0, "--no-plots") == 0
    np.testing.assert_allclose(read(folder / "fields.json")["matrix"], found.matrix(0))


def test_bound(copies, capsys):
    run = copies["fat"]
    assert analyze("bound", run, "--num-samples", 50) == 0
    assert "m = 1600 training samples" in capsys.readouterr().out
    content = read(run / "analysis" / "bound.json")
    assert [row["layer"] for row in content["layers"]] == [1, 2]
    for row in content["layers"]:
        assert row["num_samples"] == 1600
        assert np.isclose(row["bound"], row["capacity"] / 40 * (row["score_term"] + row["value_term"]))
    assert content["projection_parameters"]["pair"] == 3 * 36 * 64


def test_bad_input(copies, tiny_run, capsys):
    mixer, fat = copies["rank_mixer"], copies["fat"]
    assert f"{mixer}: RankMixerForCTR has no field interactions" in error_of(capsys, "analyze", "fields", mixer)
    assert "layer: 2 is not there" in error_of(capsys, "analyze", "fields", fat, "--layer", 2)
    assert "--top" in error_of(capsys, "analyze", "fields", fat, "--top", 0)
    assert "no effect" in error_of(capsys, "analyze", "fields", fat, "--data.seed", 1)
    assert f"{mixer}: RankMixerForCTR is no FAT model" in error_of(capsys, "analyze", "bound", mixer)
    assert "--num-samples" in error_of(capsys, "analyze", "rank", fat, "--num-samples", 0)
    assert "'ctr_sink' reads no tables" in error_of(capsys, "analyze", "rank", tiny_run)
    assert "'fat' reads no texts" in error_of(capsys, "analyze", "attention", fat)
    assert "'fat' has no event sequences" in error_of(capsys, "analyze", "behaviors", fat)
    assert "model.top_k" in error_of(capsys, "analyze", "rank", fat, "--model.top_k", 1)


def test_the_family_is_checked_before_the_plots_extra(copies, tiny_run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "'ctr_sink' reads no tables" in error_of(capsys, "analyze", "rank", tiny_run)
    assert "'fat' reads no texts" in error_of(capsys, "analyze", "attention", copies["fat"])
    assert "no field interactions" in error_of(capsys, "analyze", "fields", copies["rank_mixer"])
    assert "pip install 'lmctr[plots]'" in error_of(capsys, "analyze", "fields", copies["fat"])


def test_in_python(copies, tmp_path):
    """The functions behind the verb give what they found, and print where they are told to."""
    printed = []
    options = RankOptions(runs=[str(copies["rank_mixer"])], num_samples=20, output=str(tmp_path / "o"), no_plots=True)
    found = analyze_rank(options, printed.append)
    assert found.results["rank_mixer"].num_samples == 20
    assert found.written == [tmp_path / "o" / "rank.json", tmp_path / "o" / "rank.csv"]
    assert read(tmp_path / "o" / "rank.json") == found.content
    assert len(printed) == 2


def test_a_model_without_a_run(trained, tmp_path, capsys):
    """What a push shares: weights tell field pairs, other measures need the data beside them."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in trained["fat"].iterdir():
        if is_shared(path.name):
            shutil.copy(path, bare)
    run, words = trained["fat"], ("--no-plots", "--output")
    assert analyze("fields", run, *words, tmp_path / "a") == analyze("fields", bare, *words, tmp_path / "b") == 0
    assert read(tmp_path / "a/fields.json")["matrix"] == read(tmp_path / "b/fields.json")["matrix"]
    capsys.readouterr()
    error = error_of(capsys, "analyze", "rank", bare, *words, tmp_path / "c")
    assert f"{bare} is no run folder: it has no recipe.yaml" in error
    assert "--data.name NAME" in error
    data = [f"--data.{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in TINY_TABLE["data"].items()]  # fmt: skip
    assert analyze("rank", bare, *words, tmp_path / "c", *data) == 0
    assert analyze("rank", run, *words, tmp_path / "d") == 0
    (one,), (other,) = (read(tmp_path / name / "rank.json")["runs"] for name in "cd")
    assert {key: value for key, value in one.items() if key not in ("name", "run")} == {
        key: value for key, value in other.items() if key not in ("name", "run")
    }
    error = error_of(capsys, "analyze", "rank", bare, *data, "--training.use_cpu", "true")
    assert "--training.use_cpu has no effect on an analysis" in error
    error = error_of(capsys, "analyze", "behaviors", bare)
    assert f"{bare}: a run of the family 'fat' has no event sequences" in error


def test_what_the_answers_hang_on(copies, capsys):
    run = copies["rank_mixer"]
    assert analyze("importance", run, "--num-samples", 60, "--no-plots") == 0
    names = load_run(run)[1].field_names
    (entry,) = read(run / "analysis" / "importance.json")["runs"]
    assert {loss["column"] for loss in entry["losses"]} == {*names}
    assert {path.name for path in (run / "analysis").iterdir()} == {"importance.json", "importance.csv"}
    assert "--top must be at least 1" in error_of(capsys, "analyze", "importance", run, "--top", 0)
