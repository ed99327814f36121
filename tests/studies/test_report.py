"""`lmctr report RUN ...`: the page against what the runs hold, parsed by the standard library's reader of HTML."""

import base64
import csv
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

import lmctr
from lmctr.analysis.plots_report import wilson_interval
from lmctr.cli.main import main
from lmctr.evaluation.metrics import calibration_curve, expected_calibration_error
from lmctr.evaluation.significance import delong_test
from lmctr.evaluation.slices import slice_metrics
from lmctr.runs.training import _thinned
from lmctr.utils.tables import write_csv

RECIPE = {
    "data": {
        "name": "synthetic_table",
        "options": {"num_rows": 1500, "num_categorical": 4, "num_numeric": 2, "num_pairs": 3, "vocab_size": 200},
    },
    "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [16]},
    "training": {
        "epochs": 1,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 128,
        "use_cpu": True,
        "logging_steps": 2,
    },
}


class Page(HTMLParser):
    """Tables as lists of lines of cells, attributes of all tags, and all text."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.tags, self.words, self._cell = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self._cell)
            self._cell = None

    def handle_data(self, data):
        self.words.append(data)
        if self._cell is not None:
            self._cell += data

    @property
    def text(self):
        return "".join(self.words)

    def table(self, *head):
        """The tables whose heads start so."""
        return [table for table in self.tables if tuple(table[0][: len(head)]) == head]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of two learning rates. Read them only."""
    folder = tmp_path_factory.mktemp("runs")
    for name, rate in (("fast", 1e-2), ("slow", 1e-4)):
        for seed in (0, 1):
            overrides = {"training.learning_rate": rate, "training.seed": seed}
            lmctr.runs.train(RECIPE, output_dir=folder / f"{name}-{seed}", overrides=overrides)
    return folder


def page_of(*words):
    if "--no-plots" not in words:
        pytest.importorskip("matplotlib")
    assert main(["report", *map(str, words)]) == 0
    return Page(words[words.index("--output") + 1].read_text(encoding="utf-8"))


def test_the_page_shows_what_the_runs_hold(runs, tmp_path):
    folders = [runs / name for name in ("fast-0", "fast-1", "slow-0", "slow-1")]
    page = page_of(*folders, "--output", tmp_path / "page.html", "--resamples", "100")
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in folders]

    test, validation = page.table("", "seed")
    auc = test[0].index("AUC")
    values = [entry["split metrics"]["test"]["auc"] for entry in metrics]
    assert [line[auc] for line in test[1:3]] == [f"{value:.4f}" for value in values[:2]]
    mean, spread = np.mean(values[:2]), np.std(values[:2], ddof=1)
    assert test[3][0] == "mean of fast-0 to fast-1"
    assert test[3][auc] == f"{mean:.4f} ± {spread:.4f}"
    counted = np.mean([entry["baselines"]["field_counting"]["test"]["auc"] for entry in metrics[:2]])
    (baseline,) = [line for line in test if line[0] == "baseline: field counting"]
    assert baseline[auc].startswith(f"{counted:.4f}")
    assert validation[1][auc] == f"{metrics[0]['split metrics']['validation']['auc']:.4f}"

    (tests,) = page.table("metric", "test")
    scores = [pq.read_table(folder / "predictions" / "test.parquet").sort_by("event") for folder in folders]
    labels, first, second = scores[0]["label"], scores[0]["logit"], scores[2]["logit"]
    expected = delong_test(labels.to_numpy(), first.to_numpy(), second.to_numpy())
    (line,) = [line for line in tests if line[0] == "AUC" and "DeLong" in line[1] and line[2] == "0"]
    assert line[5] == f"{expected.difference:+.4f}"
    assert line[7] == f"{expected.p_value:.2g}"

    assert (
        "DeLong takes the samples of test as independent; the bootstrap draws samples; the paired t test" in page.text
    )

    (differing,) = page.table("key", "first", "second")
    assert differing[1:] == [["training.learning_rate", "0.01", "0.0001"]]
    for entry in metrics:
        assert entry["verdict"] in page.text
    assert "hidden_units" in page.text
    assert "lmctr report" in page.text
    assert str(runs) not in page.text


def test_pictures_are_inside_and_told_in_words(runs, tmp_path):
    page = page_of(runs / "fast-0", "--output", tmp_path / "page.html")
    pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) == 3  # AUC, loss, calibration
    for picture in pictures:
        kind, content = picture["src"].split(",", 1)
        assert kind == "data:image/svg+xml;base64"
        assert ElementTree.fromstring(base64.b64decode(content)).tag.endswith("svg")
    found = json.loads((runs / "fast-0" / "metrics.json").read_text())
    assert pictures[0]["alt"].endswith(
        f" fast-0: {found['evaluations'][-1]['auc']:.4f} at step {found['steps']}."
    )  # one
    assert f"from {found['losses'][0]['loss']:.4f} at step 2" in pictures[1]["alt"]
    assert len(found["losses"]) == found["steps"] // 2
    assert "largest gap" in pictures[2]["alt"]
    assert "nothing to test against" in page.text


def test_the_page_needs_no_network_and_runs_nothing(runs, tmp_path):
    page = page_of(runs / "fast-0", "--output", tmp_path / "page.html")
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "base"}
    links = [value for _, found in page.tags for key, value in found.items() if key in ("src", "href", "action")]
    assert all(link.startswith("data:") for link in links)
    (policy,) = [found["content"] for tag, found in page.tags if found.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "@import" not in page.text
    assert not re.search(r"url\(", page.text)


def test_what_a_run_says_is_text(runs, tmp_path):
    folder = tmp_path / "<b>bold"
    shutil.copytree(runs / "fast-0", folder)
    metrics = json.loads((folder / "metrics.json").read_text())
    evil = "<script>alert('x')</script>"
    told = {"verdict": evil, "command": f"lmctr train {evil}", "commit": {"id": "1a2b3c", "is_changed": True}}
    (folder / "metrics.json").write_text(json.dumps(metrics | told))
    (folder / "lmctr_manifest.json").unlink()
    page = page_of(folder, "--output", tmp_path / "page.html", "--no-plots")
    assert not [tag for tag, _ in page.tags if tag in ("script", "b", "img")]
    assert page.text.count(evil) == 2
    assert "<b>bold" in page.text
    assert "# commit 1a2b3c, with changes" in page.text


def test_slices_stand_as_they_were_measured(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "fast-0", folder)
    random = np.random.default_rng(0)
    labels, codes = random.integers(0, 2, 200), random.integers(0, 2, 200)
    labels[codes == 1] = 1  # one class: no AUC
    scores = {"model": random.random(200), "gradient_boosting": random.random(200)}
    rows = slice_metrics({"item": (codes, ["seen in training", "new"])}, labels, scores, random.integers(0, 9, 200))
    write_csv(folder / "slices.csv", [{"split": "test"} | row for row in rows])
    page = page_of(folder, "--output", tmp_path / "page.html")
    (table,) = page.table("slice", "", "samples")
    assert table[0][3:] == [
        "mean label",
        *(f"{name} {what}" for name in ("model", "gradient boosting") for what in ("AUC", "gAUC", "mean")),
    ]
    assert table[1][:3] == ["item", "seen in training", f"{(codes == 0).sum()}"]
    assert table[1][4] == f"{rows[0]['model_auc']:.4f}"
    assert table[2][4] == "-"
    alts = [found["alt"] for tag, found in page.tags if tag == "img" and "slice" in found["alt"]]
    assert f"item seen in training: {rows[0]['model_auc']:.3f}" in alts[0]
    with (folder / "slices.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2


def test_runs_of_several_data_sets_and_baselines(runs, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(runs / "slow-0", other)
    data, metrics = (json.loads((other / name).read_text()) for name in ("data.json", "metrics.json"))
    data["info"]["name"] = "shop"
    metrics["best_auc"] = 0.9
    metrics["baselines"] = {"counting": metrics["baselines"]["field_counting"]}
    (other / "lmctr_manifest.json").unlink()
    (other / "data.json").write_text(json.dumps(data))
    (other / "metrics.json").write_text(json.dumps(metrics))
    page = page_of(runs / "fast-0", other, "--output", tmp_path / "page.html", "--no-plots")
    assert "DNN on synthetic-table, shop" in page.text
    assert "The data of other are generated; the best reachable test AUC is 0.9000." in page.text
    names = [line[0] for line in page.table("", "seed")[0]]
    assert names.count("baseline: field counting of fast-0") == names.count("baseline: counting of other") == 1
    assert "Not measured on the same samples" not in page.text  # another name of the same ones


def test_numbers_of_other_samples_are_told_apart(runs, tmp_path):
    overrides = {"data.options.num_rows": 1200, "model.family": "deepfm"}
    lmctr.runs.train(RECIPE, output_dir=tmp_path / "small", overrides=overrides)
    data, metrics = (json.loads((tmp_path / "small" / name).read_text()) for name in ("data.json", "metrics.json"))
    data["info"]["name"] = "shop"
    (tmp_path / "small" / "lmctr_manifest.json").unlink()
    (tmp_path / "small" / "data.json").write_text(json.dumps(data))
    words = ("--output", tmp_path / "page.html", "--no-plots")
    page = page_of(runs / "fast-0", runs / "fast-1", tmp_path / "small", runs / "slow-0", *words)
    assert "DNN on synthetic-table; DeepFM on shop" in page.text
    told = "fast-0 to fast-1, slow-0 (data synthetic-table); small (data shop). Compare numbers within each only."
    assert f"Not measured on the same samples by the same metrics: {told}" in page.text
    assert "fast-0 to fast-1 against small: not tested: " in page.text
    # a part that the first run lacks is shown
    del metrics["split metrics"]["test"]
    (tmp_path / "small" / "metrics.json").write_text(json.dumps(metrics))
    page = page_of(tmp_path / "small", runs / "fast-0", *words)
    first, second = page.table("", "seed")
    assert [line[0] for line in first[1:3]] == [line[0] for line in second[1:3]] == ["small", "fast-0"]
    assert set(first[1][2:]) == {"-"}


def test_what_a_run_lacks_and_what_is_damaged(runs, tmp_path, capsys):
    folder, words = tmp_path / "old", ["--no-plots", "--output", str(tmp_path / "page.html")]
    shutil.copytree(runs / "fast-0", folder)
    (folder / "lmctr_manifest.json").unlink()
    metrics = json.loads((folder / "metrics.json").read_text())
    kept = {key: metrics[key] for key in ("split metrics", "seed")}
    (folder / "metrics.json").write_text(json.dumps(kept | {"training_samples": None, "evaluations": None}))
    page = page_of(folder, "--no-plots", "--output", tmp_path / "page.html")
    assert page.table("", "seed")[0][1][2] == f"{metrics['split metrics']['test']['auc']:.4f}"
    scores = pq.read_table(folder / "predictions" / "test.parquet").to_pandas()
    scores.loc[0, "logit"] = np.inf
    scores.to_parquet(folder / "predictions" / "test.parquet", index=False)
    assert main(["report", str(folder), *words]) == 2
    assert f"error: {folder}: logits must be finite, got inf at row " in capsys.readouterr().err
    assert main(["evaluate", str(folder), str(runs / "fast-1")]) == 2
    assert f"error: {folder}: logits must be finite" in capsys.readouterr().err
    (folder / "metrics.json").write_text(json.dumps({"seed": 0}))
    assert main(["report", str(folder), *words]) == 2
    assert "metrics.json has no 'split metrics', the metrics of each part" in capsys.readouterr().err
    test = metrics["split metrics"]["test"] | {"auc": None}
    for damage, says in (
        ({"baselines": []}, "baselines: got [] (list), accepted: an object with a baseline for each key"),
        (
            {"baselines": {"counting": {"test": 3}}},
            "baselines, counting, test: got 3 (a whole number), accepted: an object with a",
        ),
        ({"split metrics": {"test": test}}, "split metrics, test, auc: got null, accepted: a number"),
    ):
        (folder / "metrics.json").write_text(json.dumps(metrics | damage))
        for verb in (["report", str(folder), *words], ["card", str(folder), "--print"]):
            assert main(verb) == 2
            assert f"error: {folder / 'metrics.json'}: {says}" in capsys.readouterr().err


def test_only_other_seeds_on_the_same_data_are_a_mean(runs, tmp_path):
    again, moved, mixed = tmp_path / "again", tmp_path / "moved", tmp_path / "mixed"
    for folder in (again, moved, mixed):
        shutil.copytree(runs / "fast-1", folder)
    for folder, key in ((moved, "fingerprint"), (mixed, "inputs_fingerprint")):
        data = json.loads((folder / "data.json").read_text())
        (folder / "data.json").write_text(json.dumps(data | {key: "another"}))
        (folder / "lmctr_manifest.json").unlink()
    page = page_of(
        runs / "fast-0", mixed, runs / "fast-1", again, moved, "--output", tmp_path / "page.html", "--no-plots"
    )
    names = [line[0] for line in page.table("", "seed")[0]]
    assert names[1:7] == ["fast-0", "fast-1", "mean of fast-0 to fast-1", "mixed", "again", "moved"]
    assert "fast-0 to fast-1 and again differ in no key" in page.text


def test_runs_of_other_metrics_have_a_picture_each(runs, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(runs / "slow-0", other)
    metrics = json.loads((other / "metrics.json").read_text())
    metrics["evaluations"] = [{"step": 4, "revenue_ratio": 0.25}]
    (other / "lmctr_manifest.json").unlink()
    (other / "metrics.json").write_text(json.dumps(metrics))
    page = page_of(runs / "fast-0", other, "--output", tmp_path / "page.html")
    told = [attributes["alt"] for tag, attributes in page.tags if tag == "img" and "Validation" in attributes["alt"]]
    assert [alt.partition(".")[0] for alt in told] == ["Validation R/R* by step", "Validation AUC by step"]
    assert told[0].endswith(" other: 0.2500 at step 4.")
    assert "fast-0" in told[1]


def test_runs_that_cannot_be_tested_say_why(runs, tmp_path):
    page = page_of(runs / "fast-0", runs / "slow-1", "--output", tmp_path / "page.html", "--no-plots")
    assert "not tested: the runs have the seeds 0, those to compare with 1" in page.text


def test_the_page_lies_in_the_run_and_goes_with_it(runs, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(runs / "fast-0", folder)
    assert main(["report", str(folder), "--no-plots"]) == 0
    assert "wrote" in capsys.readouterr().out
    assert (folder / "analysis" / "report.html").is_file()
    assert not [path for path in lmctr.runs.load(folder).folder.upload_files() if "report" in path.name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "page.pdf"], "give a name that ends in .html"),
        (["--resamples", "50"], "--resamples must be at least 100, got 50"),
    ],
)
def test_wrong_words(runs, capsys, words, message):
    assert main(["report", str(runs / "fast-0"), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_place_that_may_not_be_written_is_told_before_the_page_is_made(runs, tmp_path, monkeypatch, capsys):
    def refused(path, *more):
        raise PermissionError(30, "Read-only file system", str(path))

    monkeypatch.setattr("lmctr.studies.report.build_report", None)  # not called
    monkeypatch.setattr("lmctr.utils.lock.os.open", refused)
    assert main(["report", str(runs / "fast-0"), "--output", str(tmp_path / "new" / "page.html")]) == 2
    assert "may not be written (Read-only file system); name another place by --output" in capsys.readouterr().err


def test_no_run(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    assert main(["report", str(tmp_path)]) == 2
    assert "is not finished" in capsys.readouterr().err
    assert main(["report", "user/name"]) == 2
    assert "a model of the Hub comes without" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none")]) == 2
    assert not (tmp_path / "none").exists()


def test_calibration_curve_against_a_loop():
    random = np.random.default_rng(1)
    probabilities = np.r_[random.random(300).round(2), 0.5, 0.5]
    labels, weight = random.integers(0, 2, 302), random.random(302)
    weight[:5] = 0
    mean, rate, count = calibration_curve(labels, probabilities, 7, "uniform", sample_weight=weight)
    for bin_number in range(7):
        low, high = bin_number / 7, (bin_number + 1) / 7
        own = [i for i in range(302) if low <= probabilities[i] < high or (bin_number == 6 and probabilities[i] == 1)]
        total = sum(weight[i] for i in own)
        assert mean[bin_number] == pytest.approx(sum(weight[i] * probabilities[i] for i in own) / total)
        assert rate[bin_number] == pytest.approx(sum(weight[i] * labels[i] for i in own) / total)
        assert count[bin_number] == sum(weight[i] > 0 for i in own)
    mean, rate, count = calibration_curve(labels, probabilities, 5)
    gap = (count * abs(mean - rate)).sum() / count.sum()
    assert gap == pytest.approx(expected_calibration_error(labels, probabilities, 5, "quantile"))


def test_wilson_interval_solves_its_equation():
    rate, count = np.array([0.0, 0.1, 0.5]), np.array([10, 50, 1000])
    for bound in wilson_interval(rate, count):
        assert abs(rate - bound) == pytest.approx(1.959964 * np.sqrt(bound * (1 - bound) / count), abs=1e-9)


def test_losses_of_a_long_training_are_means_of_neighbours():
    entries = [{"step": step, "loss": float(step)} for step in range(1, 451)]
    found = _thinned(entries)
    assert len(found) == 150
    assert found[0] == {"step": 3, "loss": 2.0}
    assert _thinned(entries[:3]) == entries[:3]
