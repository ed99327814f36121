"""Stored scores of views that know more or less of their samples: with users, with users of other numbers, without."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmctr.evaluation.comparison import compare_groups, read_predictions
from lmctr.evaluation.significance import cluster_bootstrap_test

RANDOM = np.random.default_rng(0)
SAMPLES = 200
LABELS = (RANDOM.random(SAMPLES) < 0.5).astype("int8")
USERS = RANDOM.integers(0, 20, SAMPLES)


def run_folder(root, name, seed=0, noise=1.0, **columns):
    folder = root / name
    (folder / "predictions").mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps({"seed": seed}))
    logit = LABELS + noise * np.random.default_rng([seed, len(name)]).normal(size=SAMPLES)
    table = {"event": np.arange(SAMPLES), "label": LABELS, "logit": logit.astype("float32"), **columns}
    pq.write_table(pa.table(table), folder / "predictions" / "test.parquet")
    return read_predictions(folder)


def test_samples_without_users(tmp_path):
    run, other = run_folder(tmp_path, "a"), run_folder(tmp_path, "other")
    assert run.users is None
    assert "grouped_auc" not in run.metrics
    assert run.count_samples() == "200 samples"
    tests = compare_groups([run], [other], num_resamples=100, names=("auc", "log_loss", "grouped_auc"))
    assert [(entry.metric, entry.test.method) for entry in tests] == [
        ("auc", "DeLong"),
        ("auc", "bootstrap"),
        ("log_loss", "bootstrap"),
    ]
    logits = [np.asarray(entry.columns["logit"]) for entry in (run, other)]
    expected = cluster_bootstrap_test(LABELS, *logits, np.arange(SAMPLES), num_resamples=100)
    assert tests[1].test.p_value == expected.p_value


def test_users_may_have_other_numbers_but_not_other_samples(tmp_path):
    run = run_folder(tmp_path, "a", user=USERS)
    renamed = run_folder(tmp_path, "renamed", user=[f"user {97 - number}" for number in USERS])
    assert run.count_samples() == f"200 samples of {len(set(USERS))} users"
    assert run.metrics["grouped_auc"] > 0.5
    assert any(entry.test.method == "cluster bootstrap" for entry in compare_groups([run], [renamed], 100))
    merged = run_folder(tmp_path, "merged", user=USERS // 2)
    with pytest.raises(
        ValueError, match=r"a and .*merged were not scored on the same samples: they part the same events"
    ):
        compare_groups([run], [merged], 100)
    shuffled = run_folder(tmp_path, "shuffled", user=np.roll(USERS, 1))
    with pytest.raises(ValueError, match="they part the same events into other users"):
        compare_groups([run], [shuffled], 100)
    with pytest.raises(ValueError, match="a has users, the other run has none"):
        compare_groups([run], [run_folder(tmp_path, "none")], 100)


def test_items_times_and_weights_must_agree_where_both_have_them(tmp_path):
    times = np.arange(SAMPLES)
    run, other = run_folder(tmp_path, "a", time=times), run_folder(tmp_path, "other", item=times)
    assert compare_groups([run], [other], 100, names=("auc",))
    late = run_folder(tmp_path, "late", time=times + (times == 7))
    with pytest.raises(ValueError, match="event 7 has the time 7 in the first and 8 in the second"):
        compare_groups([run], [late], 100)
    weighted = run_folder(tmp_path, "weighted", weight=np.ones(SAMPLES, "float32"))
    with pytest.raises(ValueError, match="weighted has sample weights, the other run has none"):
        compare_groups([run], [weighted], 100)


def test_samples_that_another_log_numbers_otherwise_are_known_by_user_item_and_time(tmp_path):
    """A log with tags holds more events than one of ratings alone, so that the same ratings have other numbers in it."""
    known = {"user": USERS, "item": np.arange(SAMPLES) % 7, "time": np.arange(SAMPLES) // 3}
    run, later = run_folder(tmp_path, "a", **known), np.arange(SAMPLES) + np.arange(SAMPLES) // 10
    tagged = run_folder(tmp_path, "tagged", **known, event=later)
    plain = run_folder(tmp_path, "tagged_", **known)
    plain.columns["logit"] = tagged.columns["logit"]
    assert compare_groups([run], [tagged], 100) == compare_groups([run], [plain], 100)
    wrong = [
        known | {"item": np.roll(known["item"], 1)},  # other samples
        {"user": USERS, "time": known["time"]},  # nothing tells them
        {"user": USERS, "item": known["item"], "time": np.zeros(SAMPLES, "int64")},  # some look alike
    ]
    for number, columns in enumerate(wrong):
        same = run_folder(tmp_path, f"same{number}", **columns)
        other = run_folder(tmp_path, f"other{number}", **columns, event=later)
        with pytest.raises(ValueError, match="events are only in the first"):
            compare_groups([run if number == 0 else same], [other], 100)
    merged = run_folder(tmp_path, "merged", **known | {"user": USERS // 2}, event=later)
    with pytest.raises(ValueError, match="they part the same events into other users"):
        compare_groups([run], [merged], 100)


def test_a_file_beside_the_runs_of_a_grid_is_told(tmp_path):
    (tmp_path / "seed-0.log").write_text("trained")
    with pytest.raises(FileNotFoundError, match=r"seed-0\.log is a file; of a grid's folder seed-\*/ names the runs"):
        read_predictions(tmp_path / "seed-0.log")
    with pytest.raises(FileNotFoundError, match="seed-1 does not exist"):
        read_predictions(tmp_path / "seed-1")
