"""Vectors made elsewhere as a field: fixed or trained, projected, from a file into a run and on to the next."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lmctr
from lmctr import DeepFMConfig, DeepFMForCTR

OPTIONS = {"num_rows": 2000, "num_categorical": 3, "num_numeric": 1, "num_pairs": 1, "vocab_size": 60, "drift": 0.3}
RECIPE = {
    "data": {"name": "synthetic_table", "options": OPTIONS, "baselines": False},
    "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [8]},
    "training": {"epochs": 1, "learning_rate": 1e-2, "per_device_train_batch_size": 128, "use_cpu": True, "seed": 0},
}
BANK = "model.embedding.groups.4.pretrained.1.bank.weight"


def vector_of(value):
    return [float(value % 7), float(value) / 50, 1.0]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "c2.jsonl"
    rows = [{"value": value, "vector": vector_of(value)} for value in range(0, 60, 2)]  # half of the values have one
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def train(folder, file, trained=False, **overrides):
    keys = {"data.pretrained": {"C2": {"file": file, "trained": trained}}, **overrides}
    return lmctr.runs.train(RECIPE, output_dir=folder, overrides=keys)


@pytest.mark.parametrize("trained", [False, True])
def test_vectors_of_a_file_are_the_fields(file, tmp_path, trained, capsys):
    run = train(tmp_path / "run", file, trained)
    assert "values have a given vector of 3" in capsys.readouterr().out
    assert run.model.config.pretrained_dims == {"C2": 3}
    weights, processor = load_file(run.path / "model.safetensors"), run.processor
    values = processor.state.vocabularies["C2"].values.to_pylist()
    rows = weights[BANK][2:]
    given = torch.tensor([vector_of(int(value)) if int(value) % 2 == 0 else [0.0] * 3 for value in values])
    assert torch.equal(rows, given) is not trained
    assert torch.equal(weights[BANK][:2], torch.zeros(2, 3)) or trained
    model = run.model.eval()
    batch = processor([{"C1": 0, "C2": int(value), "C3": 0, "I1": 1.0} for value in values[:5]])
    vectors = model.model.embedding(**batch)
    projection = weights[BANK.replace("bank", "projection")]
    torch.testing.assert_close(vectors[:, 1], rows[:5] @ projection.T)
    others = {**batch, "input_ids": batch["input_ids"].clone()}
    others["input_ids"][:, 1] = 1
    torch.testing.assert_close(model.model.embedding(**others)[:, [0, 2, 3]], vectors[:, [0, 2, 3]])
    table = weights["model.embedding.groups.4.table.weight"]
    assert len(table) == sum(processor.vocab_size(name) for name in ("C1", "C3")) + 1  # no learned vectors besides


def test_the_next_day_reads_the_new_values_of_the_file(file, tmp_path):
    first = train(tmp_path / "day0", file)
    still = {"training.learning_rate": 0.0, "training.weight_decay": 0.0, "data.options.day": 1}
    second = train(tmp_path / "day1", file, **still, **{"training.from_run": str(first.path)})
    for run in (first, second):
        values = run.processor.state.vocabularies["C2"].values.to_pylist()
        rows = load_file(run.path / "model.safetensors")[BANK][2:]
        for value, row in zip(values, rows):
            inside = int(value) % 2 == 0 and int(value) < 60
            assert row.tolist() == pytest.approx(vector_of(int(value)) if inside else [0.0] * 3)


@pytest.mark.parametrize("trained", [False, True])
def test_the_next_day_has_the_fixed_vectors_of_its_own_file(file, tmp_path, trained):
    """Those that are trained go on from the run's."""
    first = train(tmp_path / "day0", file, trained)
    newer = tmp_path / "newer.jsonl"
    rows = [{"value": value, "vector": [-number for number in vector_of(value)]} for value in range(0, 60, 2)]
    newer.write_text("".join(json.dumps(row) + "\n" for row in rows))
    still = {"training.learning_rate": 0.0, "training.weight_decay": 0.0, "data.options.day": 1}
    second = train(tmp_path / "day1", str(newer), trained, **still, **{"training.from_run": str(first.path)})
    old, new = (
        dict(
            zip(
                run.processor.state.vocabularies["C2"].values.to_pylist(),
                load_file(run.path / "model.safetensors")[BANK][2:],
            )
        )
        for run in (first, second)
    )
    both = [value for value in old.keys() & new.keys() if int(value) % 2 == 0]
    assert len(both) > 5
    for value in both:
        torch.testing.assert_close(new[value], old[value] if trained else -old[value])


def test_first_order_terms_stay_learned():
    """DeepFM's weights per id are no vectors that were made elsewhere; its factorisation machine reads the projected ones."""
    torch.manual_seed(0)
    values = {"vocab_sizes": [5, 6], "embedding_dim": 4, "pretrained_dims": {"C1": 3}, "hidden_units": [4]}
    model = DeepFMForCTR(DeepFMConfig(**values))
    assert len(model.model.linear.groups["1"].table.weight) == 11
    model.model.embedding.groups["4"].pretrained["1"].bank.weight.data.normal_()
    ids = torch.tensor([[1, 2], [4, 5]])
    model(input_ids=ids, labels=torch.tensor([1.0, 0.0])).loss.backward()
    pretrained = model.model.embedding.groups["4"].pretrained["1"]
    assert pretrained.bank.weight.grad is None
    assert pretrained.projection.weight.grad.any()
    named = {**values, "trained_vectors": ["C1"]}
    assert DeepFMForCTR(DeepFMConfig(**named)).model.embedding.groups["4"].pretrained["1"].bank.weight.requires_grad


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"C9": {"file": "x"}}, "categorical field 'C9'"),
        ({"I1": {"file": "x"}}, "categorical field 'I1'"),
        ({"C2": {"file": "nowhere.jsonl"}}, "nowhere.jsonl: no such file"),
        ({"C2": {"path": "x"}}, "path"),
        ({"C2": {"file": "{file}", "vector": "vectors"}}, "vectors"),
        ({"C2": {"file": "{short}"}}, "row 2: 1 numbers; accepted: a list of as many numbers"),
        ({"C2": {"file": "{other}"}}, "none of the 1 values of the file, such as 'q'"),
    ],
)
def test_wrong_files_are_named(file, tmp_path, keys, words):
    (tmp_path / "short.jsonl").write_text('{"value": 0, "vector": [1.0, 2.0]}\n{"value": 2, "vector": [1.0]}\n')
    (tmp_path / "other.jsonl").write_text('{"value": "q", "vector": [1.0, 2.0]}\n')
    places = {"{file}": file, "{short}": str(tmp_path / "short.jsonl"), "{other}": str(tmp_path / "other.jsonl")}
    keys = {name: {key: places.get(value, value) for key, value in own.items()} for name, own in keys.items()}
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        lmctr.runs.train(RECIPE, output_dir=tmp_path / "run", overrides={"data.pretrained": keys})


def test_a_sequence_cannot_read_them():
    with pytest.raises(ValueError, match=r"pretrained_dims=.*no sequence reads"):
        DeepFMConfig(vocab_sizes=[5], num_sequences=1, sequence_tables=[0], pretrained_dims={"C0": 3})
    assert np.isfinite(DeepFMConfig(vocab_sizes=[5], pretrained_dims={"C0": 3}).pretrained_dims["C0"])
