"""`training.report_to`: what TensorBoard and Trackio hold after a training, read back by their own readers."""

import pytest

import lmctr
import lmctr.training.arguments
from lmctr.training.arguments import CTRTrainingArguments

RECIPE = {
    "data": {
        "name": "synthetic_table",
        "options": {"num_rows": 800, "num_categorical": 3, "num_numeric": 1, "num_pairs": 2, "vocab_size": 60},
        "baselines": False,
    },
    "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [8]},
    "training": {"epochs": 2, "per_device_train_batch_size": 128, "use_cpu": True, "logging_steps": 2},
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    overrides = {"training.report_to": ["tensorboard", "trackio"], "training.project": "clicks"}
    return lmctr.runs.train(RECIPE, output_dir=tmp_path / "tracked", overrides=overrides)


def test_both_trackers_hold_the_curves(run, tmp_path):
    evaluations, losses = run.metrics["evaluations"], run.metrics["losses"]
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("eval/auc")] == [entry["step"] for entry in evaluations]
    values = [event.value for event in events.Scalars("eval/auc")]
    assert values == pytest.approx([entry["auc"] for entry in evaluations])
    found = [event.value for event in events.Scalars("train/loss")]
    assert found == pytest.approx([entry["loss"] for entry in losses], abs=1e-4)

    pytest.importorskip("trackio")
    files = [path.name for path in (tmp_path / "trackio").rglob("*") if path.is_file()]
    assert any(name.startswith("clicks") for name in files), files


def test_a_missing_tracker_is_told_before_data_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(lmctr.training.arguments, "get_available_reporting_integrations", lambda: [])
    with pytest.raises(ValueError, match=r"trackio, which is not installed; pip install 'lmctr\[track\]'"):
        lmctr.runs.train(RECIPE, output_dir=tmp_path / "run", overrides={"training.report_to": "trackio"})
    assert not (tmp_path / "run").exists()


def test_trackio_stays_on_this_machine(tmp_path):
    assert CTRTrainingArguments(str(tmp_path)).trackio_space_id is None
