"""validate_run: a good run passes with the checks it says, a broken one fails with the file's name."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_run import make_batch, make_model, write_json

from lmctr.cli.main import main
from lmctr.data import InteractionLog
from lmctr.evaluation.evaluator import evaluate_predictions
from lmctr.hub.checks import validate_run
from lmctr.hub.demo.running import write_space
from lmctr.models.families import add_family, drop_family, family_of
from lmctr.runs import loading
from lmctr.runs.folder import open_run
from lmctr.runs.reference import compare_with_reference, write_reference
from lmctr.statistics import ItemStatistics, StatisticsReader
from lmctr.utils.integrity import MANIFEST, read_sealed


def edit_json(path, **values):
    write_json(path, json.loads(path.read_text()) | values)


def test_a_good_run_passes_every_check(finished_run):
    report = validate_run(finished_run[0])
    text = "\n".join(report.lines)
    assert "model.safetensors: 20,978 parameters" in text
    assert "AutoModelForCTR loads CTRSinkForCTR, AutoProcessor loads CTRSinkProcessor" in text
    assert "logits of 2 reference rows are the run's own" in text  # the third row is a filler
    assert "test metrics are those of predictions/test.parquet" in text
    assert sum(report.folder.num_parameters.values()) == sum(p.numel() for p in finished_run[1].parameters())


def test_a_folder_of_runs_is_told_with_one_of_them(finished_run, tmp_path, capsys):
    """Of a search (best-1), of a grid (point/seed-0) and of a ladder."""
    for place in ("best-1", "point/seed-0", "runs/w2/seed-0"):
        folder = tmp_path / Path(place).parts[0]
        shutil.copytree(finished_run[0], folder / place)
        assert main(["push", str(folder), "user/name", "--dry-run"]) == 2
        told = f"it is no run folder, nor one of a saved model; give a run in it, such as {folder / place}"
        assert told in capsys.readouterr().err
        assert main(["evaluate", str(folder)]) == 2
        told = f"is no run folder: it has no recipe.yaml (train one with `lmctr train RECIPE`); give a run in it, such as {folder / place}"
        assert told in capsys.readouterr().err


def test_only_the_models_files_are_shared(finished_run):
    names = {path.as_posix() for path in open_run(finished_run[0], "model").upload_files()}
    assert names == {
        "config.json",
        "model.safetensors",
        "processor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_what_users_put_into_the_folder_stays_there(run_dir, tmp_path, capsys):
    strays = (
        "scores.parquet",
        "my_raw_rows.parquet",
        "embeddings.safetensors",
        "clicks.model",
        "my_tabular_vocabularies.parquet",
    )
    for name in strays:
        (run_dir / name).write_bytes(b"rows of users")
    written = {
        "model.fp16.safetensors",
        "item_statistics.parquet",
        "sequence_items.parquet",
        "user_tabular_numbers.safetensors",
    }
    written |= {"spiece.model", "model.fp16-00001-of-00002.safetensors"}
    for name in written:
        (run_dir / name).write_bytes(b"a model's own")
    for name in written:
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"item_id": [1, 2, 3]}), run_dir / name)
    log = InteractionLog.from_columns([1, 1, 2], [1, 2, 3], [10, 20, 30], [0, 1, 0])
    ItemStatistics.from_log(log, StatisticsReader.fit(log, np.arange(3), "basic")).save(
        run_dir / "item_statistics.parquet"
    )
    folder = open_run(run_dir, "model")
    names = {path.as_posix() for path in folder.upload_files()}
    assert not names & set(strays)
    assert written < names
    capsys.readouterr()
    assert main(["push", str(run_dir), "tester/tiny", "--dry-run"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("not uploaded: "))
    kept = [
        "checkpoints/",
        "data.json",
        "metrics.json",
        "notes.txt",
        "predictions/",
        "recipe.yaml",
        "reference.safetensors",
    ]
    assert line == f"not uploaded: {', '.join(sorted([*kept, *strays]))}"
    pytest.importorskip("gradio")
    write_space(str(run_dir), tmp_path / "space")
    assert not {path.name for path in (tmp_path / "space" / "model").iterdir()} & set(strays)


def test_a_family_of_another_package_names_its_further_files(run_dir):
    (run_dir / "tables_of_mine.safetensors").write_bytes(b"of save_beside")
    family = replace(family_of("din"), model_type="mine", stem="Mine", files=("tables_of_mine.safetensors",))
    assert "tables_of_mine.safetensors" in open_run(run_dir, "model").kept_files()
    add_family(family)
    try:
        folder = open_run(run_dir, "model")
        assert "tables_of_mine.safetensors" in {path.as_posix() for path in folder.upload_files()}
        folder.seal()
        assert "tables_of_mine.safetensors" in read_sealed(run_dir / MANIFEST)["files"]
    finally:
        drop_family(family)


def test_weights_of_foreign_names_are_not_left_out_in_silence(run_dir):
    (run_dir / "model.safetensors").rename(run_dir / "part.safetensors")
    names = dict.fromkeys(load_file(run_dir / "part.safetensors"), "part.safetensors")
    write_json(run_dir / "model.safetensors.index.json", {"weight_map": names})
    with pytest.raises(
        ValueError, match=r"names .part\.safetensors.; shared are weights by the names that save_pretrained"
    ):
        open_run(run_dir, "model").upload_files()


def test_a_saved_retriever_is_shared_its_caches_are_not(run_dir):
    shared = ("retriever.json", "retriever.safetensors", "encoder/config.json", "encoder/model.safetensors")
    caches = ("retrieval-0123/retrieval.json", "retrieval-0123/events.npy", "vectors-45/dense.npy")
    for name in (*shared[1:], *caches, "encoder/pytorch_model.bin"):
        (run_dir / "retriever" / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / "retriever" / name).write_bytes(b"{}")
    assert not any("retriever" in str(path) for path in open_run(run_dir, "model").upload_files())  # only caches
    (run_dir / "retriever/retriever.json").write_bytes(b"{}")
    names = {path.as_posix() for path in open_run(run_dir, "model").upload_files() if path.parts[0] == "retriever"}
    assert names == {f"retriever/{name}" for name in shared}


def test_without_reference_rows_two_loads_are_compared(run_dir):
    (run_dir / "reference.safetensors").unlink()
    assert any("two independent loads give equal logits" in line for line in validate_run(run_dir).lines)


def test_loads_that_differ_are_found_without_reference_rows(run_dir, monkeypatch):
    """A weight that is drawn anew on each load, because no file holds it."""
    (run_dir / "reference.safetensors").unlink()
    load = loading._load_model

    def load_with_a_random_weight(folder):
        model = load(folder)
        torch.nn.init.normal_(next(p for name, p in model.named_parameters() if "head" in name and p.ndim > 1))
        return model

    monkeypatch.setattr(loading, "_load_model", load_with_a_random_weight)
    with pytest.raises(ValueError, match="two loads of the same folder give different logits"):
        validate_run(run_dir)


@pytest.mark.parametrize("feedback", ["groups", "inline", "none"])
@pytest.mark.parametrize("kind", ["none", "cls", "sink", "similarity"])
def test_example_inputs_suit_every_kind_of_processor(kind, feedback, tmp_path):
    from tiny_run import write_run

    config = {"sink_kind": "sink" if kind == "similarity" else kind, "feedback": feedback}
    if kind == "similarity":
        config |= {"sink_signal": "similarity", "sink_order": "similarity"}
    write_run(tmp_path, config=config)
    (tmp_path / "reference.safetensors").unlink()
    assert any("two independent loads" in line for line in validate_run(tmp_path).lines)


def test_other_weights_are_found_by_their_logits(run_dir):
    other = make_model(seed=1, sink_signal=["recency", "feedback"], feedback="inline")
    other.save_pretrained(run_dir)
    with pytest.raises(ValueError, match="gives other logits than the run did: largest difference"):
        validate_run(run_dir)


def test_another_head_activation_order_or_scale_is_found(run_dir):
    weights = load_file(run_dir / "model.safetensors")
    name = next(name for name in weights if "head" in name and weights[name].ndim == 1)
    weights[name] += 0.5
    save_file(weights, run_dir / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="gives other logits"):
        validate_run(run_dir)


def truncate(path, share):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def drop_weight(run):
    weights = load_file(run / "model.safetensors")
    del weights[next(name for name in weights if "sink_embedding" in name)]
    save_file(weights, run / "model.safetensors", metadata={"format": "pt"})


def add_weight(run):
    weights = load_file(run / "model.safetensors") | {"model.surplus": torch.zeros(2)}
    save_file(weights, run / "model.safetensors", metadata={"format": "pt"})


def poison(run):
    weights = load_file(run / "model.safetensors")
    weights[next(iter(weights))].view(-1)[0] = float("nan")
    save_file(weights, run / "model.safetensors", metadata={"format": "pt"})


def shard(run):
    (run / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    write_json(run / "model.safetensors.index.json", index)
    save_file({"a": torch.zeros(1)}, run / "model-00001-of-00002.safetensors")


def change_metric(run):
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["split metrics"]["test"]["auc"] += 0.01
    write_json(run / "metrics.json", metrics)


def leave_checkpoints_only(run):
    (run / "checkpoints/checkpoint-3/config.json").write_text("{}")
    (run / "config.json").unlink()


BROKEN = {
    "no folder": (shutil.rmtree, "run folder .* does not exist"),
    "no config": (
        lambda run: (run / "config.json").unlink(),
        "has no config.json: it is not the folder of a finished run",
    ),
    "unfinished": (leave_checkpoints_only, "checkpoints but no finished model: .*--resume, or give .*checkpoint-3"),
    "config cut off": (lambda run: truncate(run / "config.json", 0.5), r"config.json is not valid JSON \(line"),
    "config no object": (lambda run: (run / "config.json").write_text("[]"), "must hold a JSON object, got list"),
    "config of another model": (
        lambda run: edit_json(run / "config.json", model_type="bert"),
        "model_type is 'bert', which is no CTR model of lmctr .*ctr_sink",
    ),
    "config without type": (lambda run: write_json(run / "config.json", {}), "config.json has no model_type"),
    "unknown model type": (
        lambda run: edit_json(run / "config.json", model_type="ctr_sync"),
        "model_type is 'ctr_sync'",
    ),
    "unknown config key": (
        lambda run: edit_json(run / "config.json", sink_sinal="recency"),
        "no valid configuration: .*did you mean 'sink_signal'",
    ),
    "config and processor": (
        lambda run: edit_json(run / "config.json", sink_signal=["recency", "elapsed"]),
        r"sink_signal is \['recency', 'elapsed'\] in the model's configuration and \['recency', 'feedback'\]",
    ),
    "config and weights": (
        lambda run: edit_json(run / "config.json", sink_embedding_dim=16),
        "cannot load the model|of another shape",
    ),
    "no weights": (lambda run: (run / "model.safetensors").unlink(), "has no model.safetensors"),
    "a variant only": (
        lambda run: (run / "model.safetensors").rename(run / "model.fp16.safetensors"),
        r"has no model.safetensors .*: it holds those of a variant alone \(model.fp16.safetensors\); load them by .*variant=",
    ),
    "an adapter only": (
        lambda run: (run / "model.safetensors").rename(run / "adapter_model.safetensors"),
        "holds a PEFT adapter without the model",
    ),
    "weights cut off": (
        lambda run: truncate(run / "model.safetensors", 0.7),
        "model.safetensors is cut off: its header",
    ),
    "weights a stub": (lambda run: truncate(run / "model.safetensors", 0.01), "cut off or no safetensors file"),
    "weights a text": (lambda run: (run / "model.safetensors").write_text("x" * 99), "no safetensors file"),
    "weights too long": (
        lambda run: (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes() + b"x"),
        "model.safetensors is damaged",
    ),
    "a weight missing": (drop_weight, "lacks weights of the model: .*sink_embedding"),
    "a weight too many": (add_weight, "holds weights that the model does not have: .*surplus"),
    "a weight NaN": (poison, "holds NaN or infinite values"),
    "a shard missing": (shard, "lacks 1 of 2 weight files .*: model-00002-of-00002.safetensors"),
    "pickled weights": (
        lambda run: (run / "pytorch_model.bin").write_bytes(b"x"),
        "can run code when it is loaded: pytorch_model.bin",
    ),
    "pickled state": (lambda run: (run / "scheduler.pt").write_bytes(b"x"), "can run code .*: scheduler.pt"),
    "no processor": (lambda run: (run / "processor_config.json").unlink(), "has no processor_config.json"),
    "no tokenizer": (
        lambda run: [path.unlink() for path in run.glob("tokenizer*")],
        "has no tokenizer.json: the processor cannot read text without its tokenizer",
    ),
    "an odd tokenizer": (
        lambda run: write_json(run / "tokenizer.json", {}),
        "AutoProcessor cannot load the processor",
    ),
    "processor cut off": (
        lambda run: truncate(run / "processor_config.json", 0.9),
        "processor_config.json is not valid JSON",
    ),
    "processor key": (
        lambda run: edit_json(run / "processor_config.json", num_behaviours=3),
        "cannot load the processor: .*num_behaviors.*if an earlier version of lmctr saved it, train again",
    ),
    "reference cut off": (
        lambda run: truncate(run / "reference.safetensors", 0.9),
        "reference.safetensors cannot be read",
    ),
    "metrics of another run": (change_metric, "metrics.json: test auc is .* but .*test.parquet gives"),
    "metrics cut off": (lambda run: truncate(run / "metrics.json", 0.5), "metrics.json is not valid JSON"),
    "predictions cut off": (
        lambda run: truncate(run / "predictions/test.parquet", 0.5),
        "test.parquet cannot be read",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_run_is_refused(case, run_dir):
    breaking, message = BROKEN[case]
    breaking(run_dir)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        validate_run(run_dir)


def test_reference_keeps_real_rows_and_the_models_mode(finished_run, tmp_path):
    _, model, processor = finished_run
    batch = make_batch(processor) | {"labels": torch.tensor([-100.0, 1.0, 0.0]), "sample_weight": torch.ones(3)}
    model.train()
    write_reference(tmp_path, model, batch, num_rows=1)
    assert model.training
    model.eval()
    stored = load_file(tmp_path / "reference.safetensors")
    assert set(stored) == {
        "input.input_ids",
        "input.attention_mask",
        "input.sink_buckets",
        "input.target_mask",
        "logits",
    }
    assert torch.equal(stored["input.input_ids"], batch["input_ids"][1:2])
    with torch.no_grad():
        assert torch.allclose(stored["logits"], model(**make_batch(processor)).logits[1:2], atol=1e-5)
    assert compare_with_reference(tmp_path, model) == (1, 0.0)


def test_reference_tolerance_follows_the_precision(finished_run, tmp_path):
    _, _, processor = finished_run
    model = make_model(0, sink_signal=["recency", "feedback"], feedback="inline")
    write_reference(tmp_path, model, make_batch(processor))
    half = model.to(torch.bfloat16)
    _, difference = compare_with_reference(tmp_path, half)
    assert difference > 1e-4  # more than float32 may differ


def test_reference_refuses_what_is_no_reference(finished_run, tmp_path):
    _, model, processor = finished_run
    batch = make_batch(processor)
    with pytest.raises(ValueError, match="every row is a filler"):
        write_reference(tmp_path, model, batch | {"labels": torch.full((3,), -100.0)})
    with pytest.raises(ValueError, match="no input tensors, only labels"):
        write_reference(tmp_path, model, {"labels": torch.zeros(3)})
    broken = make_model(0, sink_signal=["recency", "feedback"], feedback="inline")
    with torch.no_grad():
        next(broken.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN or infinite logits"):
        write_reference(tmp_path, broken, batch)
    with pytest.raises(FileNotFoundError, match=r"no reference\.safetensors"):
        compare_with_reference(tmp_path, model)


@pytest.mark.parametrize("kept", [True, False])
def test_weighted_metrics_need_the_weights(kept, run_dir):
    path = run_dir / "predictions/test.parquet"
    table = pq.read_table(path)
    weight = np.random.default_rng(0).uniform(0.1, 3, len(table))
    label, logit, user = (table[name].to_numpy() for name in ("label", "logit", "user"))
    metrics = json.loads((run_dir / "metrics.json").read_text())
    metrics["split metrics"]["test"] = evaluate_predictions(label, logit, user, weight)
    write_json(run_dir / "metrics.json", metrics)
    if kept:
        pq.write_table(table.append_column("weight", pa.array(weight)), path)
        assert "test metrics are those of predictions/test.parquet" in validate_run(run_dir).lines
    else:
        with pytest.raises(ValueError, match="come from different evaluations"):
            validate_run(run_dir)


@pytest.mark.parametrize("group", ["data", "model", "training"])
def test_a_damaged_group_of_a_kept_recipe_is_told(run_dir, capsys, group):
    (run_dir / "recipe.yaml").write_text(f"{group}: 5\n")
    told = f"recipe.yaml: group {group} must be a mapping of keys to values, got 5 (a whole number)"
    for words in (["card", str(run_dir)], ["report", str(run_dir), "--no-plots"]):
        assert main(words) == 2
        assert told in capsys.readouterr().err
