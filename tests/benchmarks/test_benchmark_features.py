"""The benchmark of features through the command line, at a tiny size."""

import json

import pytest

from lmctr.benchmarks import features
from lmctr.benchmarks.options import FeaturesBenchmark
from lmctr.cli.main import main


@pytest.mark.slow
@pytest.mark.usefixtures("warm_processes")
def test_features_are_measured(tmp_path, capsys):
    argv = ["benchmark", "features", "--rows", "3000", "--categorical", "3", "--numeric", "2", "--vocab-size", "200"]
    argv += ["--repeats", "1", "--batch-size", "512", "--output", str(tmp_path / "out.json")]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "| fit and transform |" in shown
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["file"]["rows"] == 3000
    assert set(result["rows_per_second"]) == {"fit", "transform and write", "shuffled batches", "fit and transform"}
    assert all(rate > 0 for rate in result["rows_per_second"].values())
    assert result["memory"]["before_bytes"] > 1 << 20


def test_memory_that_the_system_does_not_tell(monkeypatch):
    untold = {"before_bytes": None, "growth_bytes": None, "vocabulary_bytes": 1 << 20}
    monkeypatch.setattr(features, "in_own_process", lambda *_: dict(untold))
    options = FeaturesBenchmark(rows=300, categorical=2, numeric=1, vocab_size=50, batch_size=64, repeats=1)
    text = features.as_markdown(features.benchmark_features(options))
    assert "Peak memory of fit and transform: not told by this system, with a limit of 128 MiB" in text


@pytest.mark.parametrize(("option", "value"), [("--rows", "0"), ("--memory-limit", "3"), ("--output", "x.txt")])
def test_bad_options(option, value, capsys):
    assert main(["benchmark", "features", option, value]) != 0
    assert option in capsys.readouterr().err
