"""`training.shard_tables` in a launch: the run of two processes is that of one."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from safetensors import safe_open

import lmctr

RECIPE = {
    "data": {"name": "synthetic_table", "options": {"num_rows": 3000, "vocab_size": 500}, "baselines": False},
    "model": {"family": "deepfm", "hidden_units": [16], "embedding_dim": 4},
    "training": {
        "epochs": 2,
        "per_device_train_batch_size": 128,
        "learning_rate": 0.01,
        "adam_epsilon": 1e-3,
        "embedding_optimizer": "lazy_adam",
        "shard_tables": True,
        "use_cpu": True,
    },
}


@pytest.mark.slow
def test_a_run_of_two_processes_is_that_of_one(tmp_path, lmctr_process, lmctr_launch):
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    lmctr_process("train", path, "--output_dir", tmp_path / "one")
    lmctr_launch("train", path, "--output_dir", tmp_path / "two", "--training.per_device_train_batch_size", "64")
    metrics = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two")]
    assert [found["num_processes"] for found in metrics] == [1, 2]
    assert metrics[0]["evaluations"][-1]["auc"] == pytest.approx(metrics[1]["evaluations"][-1]["auc"], abs=1e-4)
    files = [safe_open(tmp_path / name / "model.safetensors", framework="np") for name in ("one", "two")]
    assert sorted(files[0].keys()) == sorted(files[1].keys())
    for name in files[0].keys():  # noqa: SIM118
        np.testing.assert_allclose(files[1].get_tensor(name), files[0].get_tensor(name), atol=1e-5, err_msg=name)
    scores = [pq.read_table(tmp_path / name / "predictions" / "test.parquet") for name in ("one", "two")]
    np.testing.assert_allclose(*(table["logit"].to_numpy() for table in scores), atol=1e-4)
    evaluated = lmctr.runs.load(tmp_path / "two").evaluate("test")
    assert evaluated["auc"] == pytest.approx(metrics[0]["split metrics"]["test"]["auc"], abs=1e-4)
