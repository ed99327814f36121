"""docs/tasks/scaling_laws.md: its commands and its Python, on runs as `lmctr scaling ladder` leaves them."""

import csv
import re
import shlex
from pathlib import Path

import pytest
import torch

import lmctr
from lmctr.cli.main import main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tasks" / "scaling_laws.md").read_text()
WIDTHS = {"w2": [2], "w4": [4], "w8": [8, 4], "w16": [16, 8], "w32": [32, 16], "w64": [64, 32], "w128": [128, 64], "w256": [256, 128]}  # fmt: skip
# The page's measurements, cut short and under a limit that any machine meets.
SHORT = "--window-seconds 0.1 --warmup-seconds 0.05 --windows 2 --min-calls 30 --confidence 0.2 --max-concurrency 1 --max-seconds 3 --no-cache"
SHORT_PYTHON = "latency_limit=5.0, window_seconds=0.1, warmup_seconds=0.05, num_windows=2, min_calls=30, confidence=0.2, max_concurrency=1, max_seconds=3"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Saved models of the shipped sizes, and points of a law."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for name, units in WIDTHS.items():
        torch.manual_seed(0)
        config = lmctr.DNNConfig(vocab_sizes=[9] * 26, num_numeric=13, embedding_dim=8, hidden_units=units)
        lmctr.DNNForCTR(config).save_pretrained(f"runs/ladder_dnn/runs/{name}/seed-0")
        flops = 2 * sum(a * b for a, b in zip([312, *units], [*units, 1]))
        rows.append({"flops_per_sample": flops, "auc": 1 - 0.5 * flops**-0.05 * (1 + 0.001 * (-1) ** len(rows))})
    with open("runs/ladder_dnn/points.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    names = re.findall(r"`(\w+\.csv)`[^`]*```text", PAGE)
    assert names == ["pairs.csv", "sizes.csv", "candidates.csv"]
    for name, content in zip(names, re.findall(r"```text\n(.*?)```", PAGE, flags=re.S)):
        Path(name).write_text(content)


@pytest.mark.filterwarnings("ignore::lmctr.scaling.fits.OverfitWarning")
def test_the_commands(runs, capsys):
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.S)
    commands = [shlex.split(line)[1:] for block in blocks for line in block.strip().splitlines()]
    assert [words[1] for words in commands] == ["ladder", "cost", "fit", "revenue", "design", "allocate"]
    for words in commands[1:]:
        if words[1] == "cost":
            words = [*words, *shlex.split(SHORT)]
            words[words.index("--latency-ms") + 1] = "5000"
        assert main(words) in ((0, 3) if words[1] == "design" else (0,)), words  # costs are this machine's own
    said = capsys.readouterr().out
    assert "3 designs, " in said
    assert "gain 139 for 19 of the budget of 20" in said
    for name in ("cost.json", "law/fit.json", "worth/revenue.json", "design/design.json"):
        assert Path(name).is_file()


def test_the_python(runs, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    assert "latency_limit=0.025" in block
    scope = {}
    exec(compile(block.replace("latency_limit=0.025", SHORT_PYTHON), "scaling_laws.md", "exec"), scope)
    assert scope["law"].predict(1e4) == pytest.approx(1 - 0.5 * 1e4**-0.05, abs=1e-3)
    assert scope["costs"][0] == pytest.approx(10)
    assert scope["found"].best.sizes in scope["sizes"].values()
    assert len(scope["rates"]) == 3
    assert "feed" in capsys.readouterr().out
