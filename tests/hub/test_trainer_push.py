"""CTRTrainer with push_to_hub: what lies on the Hub can be resumed from, and holds no pickle beside the model."""

import json

import pytest
from hub_server import HubServer, client

from lmctr.cli.main import main
from lmctr.training.checkpoints import MARKER, read_marker

TRAIN = """
import sys
import numpy as np
import datasets
from huggingface_hub import HfApi
import lmctr

begin = HfApi.upload_folder
def upload(self, **options):
    started = begin(self, **options)
    if options.get("run_as_future"):
        started.result()  # what is not on disk now would be missed by a fast upload
    return started
HfApi.upload_folder = upload

folder, repo, strategy, resume = sys.argv[1:5]
rng = np.random.default_rng(0)
topic, click = rng.integers(0, 4, 800), rng.integers(0, 2, 800)
rows = datasets.Dataset.from_dict({"topic": [f"t{code}" for code in topic], "price": rng.random(800), "click": click})
store = lmctr.data.TabularStore.build(lmctr.data.table_source(rows, label="click", fractions=(0.8, 0.1, 0.1), seed=0))
view = lmctr.data.TabularView(store)
parts = [lmctr.data.TabularDataset(view, np.flatnonzero(store.split == part)) for part in range(2)]
config = lmctr.DeepFMConfig(**store.processor.model_config_values(), embedding_dim=4, hidden_units=[8])
arguments = lmctr.CTRTrainingArguments(
    folder, stage2_epochs=6, per_device_train_batch_size=128, use_cpu=True, disable_tqdm=True, eval_strategy="steps", eval_steps=5,
    save_strategy="steps", save_steps=5, max_steps=12 if resume else 10, report_to=[], save_total_limit=1,
    **({} if resume else {"push_to_hub": True, "hub_model_id": repo, "hub_strategy": strategy}),
)
trainer = lmctr.CTRTrainer(
    lmctr.DeepFMForCTR(config), arguments, data_collator=lmctr.data.TabularCollator(view), train_dataset=parts[0], eval_dataset=parts[1],
    processing_class=store.processor,
)
trainer.train(resume_from_checkpoint=resume or None)
if not resume:
    trainer.save_model()
print(trainer.state.global_step)
"""


@pytest.mark.parametrize(
    ("strategy", "place"), [("checkpoint", "last-checkpoint"), ("all_checkpoints", "checkpoint-5")]
)
def test_what_was_pushed_while_training_can_be_resumed(strategy, place, tmp_path):
    out = tmp_path / "out"
    with HubServer() as hub:
        done = client(hub.url, tmp_path, "-c", TRAIN, str(out), "tester/trained", strategy, "")
        assert done.returncode == 0, done.stderr[-3000:]
        files = {name: file["data"] for name, file in hub.files("tester/trained").items()}
    assert {"config.json", "model.safetensors", "preprocessor_config.json", "tabular_vocabularies.parquet"} < set(
        files
    )
    assert [name for name in files if name.endswith(".bin") and "checkpoint" not in name] == []
    assert not (out / "training_args.bin").exists()
    assert main(["push", str(out), "tester/again", "--dry-run"]) == 0

    checkpoint = tmp_path / place
    for name, data in files.items():
        if name.startswith(f"{place}/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
    listed = read_marker(checkpoint)["files"]
    assert set(listed) == {path.name for path in checkpoint.iterdir()} - {MARKER}
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == (
        5 if place[-1] == "5" else 10
    )
    done = client("http://127.0.0.1:9", tmp_path, "-c", TRAIN, str(tmp_path / "more"), "", "", str(checkpoint))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "12"
