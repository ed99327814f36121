"""Who writes in a run folder is alone there, and where it was cut off, it goes on to the same bytes."""

import copy
import itertools
import multiprocessing
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from lmctr.runs import evaluate, load, train, training
from lmctr.runs.folder import MANIFEST, RunFolder, claim, open_run
from lmctr.utils import lock
from lmctr.utils.integrity import read_sealed
from lmctr.utils.lock import LOCK, owned

TABLE = {
    "data": {"name": "synthetic_table", "options": {"num_rows": 600}, "baselines": False},
    "model": {"family": "deepfm", "embedding_dim": 4, "hidden_units": [8], "dropout": 0.3},
    "training": {"epochs": 3, "use_cpu": True, "per_device_train_batch_size": 64},
}


def content(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run. Read it only."""
    return train(TABLE, output_dir=tmp_path_factory.mktemp("trained") / "run").path


def test_every_writer_is_refused_where_another_is_at_work(trained, tmp_path, monkeypatch):
    """Another recipe, the same one, an overwriting one, scores written anew, and a model saved there; nothing is changed."""
    monkeypatch.setattr(lock, "_PATIENCE", 0.1)  # nobody is just being killed
    run = shutil.copytree(trained, tmp_path / "run")
    before, loaded = content(run), load(run)
    model, other = loaded.model, copy.deepcopy(TABLE)
    other["training"]["seed"] = 7
    writers = [
        lambda: train(TABLE, output_dir=run),
        lambda: train(other, output_dir=run),
        lambda: train(other, output_dir=run, overwrite=True),
        lambda: evaluate(run, predictions=run / "predictions" / "test.parquet"),
        lambda: model.save_pretrained(run),
        lambda: loaded.processor.save_pretrained(run),
    ]
    for write in writers:
        with (
            owned(run, "`lmctr train`"),
            pytest.raises(ValueError, match=r"another `lmctr train` is at work in .*run"),
        ):
            write()
        assert content(run) == before
    for write in writers[3:]:
        write()
        assert open_run(run).verify() == len(read_sealed(trained / MANIFEST)["files"])


def test_two_recipes_never_mix(trained, tmp_path):
    """One after the other, whichever way the second is told to go on."""
    run = shutil.copytree(trained, tmp_path / "run")
    other, before = copy.deepcopy(TABLE), content(run)
    other["training"]["seed"] = 7
    for resume in ("auto", True):
        with pytest.raises(ValueError, match="seed"):
            train(other, output_dir=run, resume=resume)
    assert content(run) == before


def test_a_run_whose_deletion_was_cut_off_is_deleted_by_the_same_command(trained, tmp_path, monkeypatch):
    """After any number of its files; from the second on there is nothing left to go on from."""
    own = {place: getattr(place, name) for place, name in ((Path, "unlink"), (shutil, "rmtree"))}
    for count in itertools.count():
        run, left = RunFolder(shutil.copytree(trained, tmp_path / str(count))), [count]

        def cut(place, *words, left=left, **more):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return own[Path if isinstance(place, Path) and not place.is_dir() else shutil](place, *words, **more)

        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Path, "unlink", cut)
            patch.setattr(shutil, "rmtree", cut)
            run.clear()
            break
        assert run.finished is (count == 0)
        assert run.started
        assert run.begun is (count < 2)
        assert not claim(run, {}, resume=False, overwrite=True)
        assert content(run.path) == {}
    assert count > 5
    assert content(run.path) == {}


@pytest.fixture(
    scope="module", params=[{}, {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}], ids=str
)
def whole(request, tmp_path_factory):
    """A run that saves often and was not cut off, and its recipe."""
    recipe = copy.deepcopy(TABLE)
    recipe["training"] |= {
        "save_steps": 4,
        "save_strategy": "steps",
        "eval_steps": 4,
        "eval_strategy": "steps",
        **request.param,
    }
    run = train(recipe, output_dir=tmp_path_factory.mktemp("whole") / "run")
    assert run.metrics["steps"] == 24
    return run, recipe


@pytest.mark.parametrize("step", [12, 16])  # in the second epoch, and at the end of it
def test_a_run_that_was_cut_off_ends_with_the_same_weights(whole, step, tmp_path, monkeypatch):
    whole, recipe = whole
    own = training._FirstStep.on_step_end

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == step + 1:  # the checkpoint of the step before is there
            raise KeyboardInterrupt
        return own(self, args, state, control, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(training._FirstStep, "on_step_end", on_step_end)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, output_dir=tmp_path / "cut")
    assert not multiprocessing.active_children()
    elsewhere = {
        **recipe,
        "training": {**recipe["training"], "dataloader_num_workers": 1},
    }  # on a machine of other cores
    run = train(elsewhere, output_dir=tmp_path / "cut")
    assert not multiprocessing.active_children()
    for name, values in whole.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], values), name
    assert run.metrics["evaluations"] == whole.metrics["evaluations"]
