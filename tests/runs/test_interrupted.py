"""Ctrl-C while a run trains: a checkpoint is written first, and the run goes on from that step."""

import os
import signal
import sys
import time
from unittest.mock import ANY

import pytest
import yaml
from safetensors.torch import load_file
from test_same_folder import TABLE, TEXT
from transformers import TrainerCallback

import lmctr
from lmctr.training.checkpoints import newest_complete_checkpoint
from lmctr.utils.stopping import HeldInterrupt, Terminated, hear_in_finalizers, stopped_by_term

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


class Interrupts(TrainerCallback):
    """Sends this process `number` at the beginning of each of the steps `at`."""

    number, at = signal.SIGINT, ()

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step in self.at:
            os.kill(os.getpid(), self.number)


@pytest.fixture(autouse=True)
def as_on_a_terminal():
    """Tests that a shell started in the background inherit an ignored SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def small(recipe, **training):
    training = (
        recipe["training"] | {"callbacks": [f"{__name__}:Interrupts"], "per_device_train_batch_size": 32} | training
    )
    return recipe | {"data": recipe["data"] | {"baselines": False}, "training": training}


@pytest.mark.parametrize(
    ("recipe", "at", "saved"),
    [
        (small(TEXT), 3, 4),  # within the first stage
        (small(TABLE), 5, 6),
        (small(TABLE, stop_by_term=True), 5, 6),
        (small(TABLE, boosting_share=0.5), 5, 6),
        (small(TABLE), 29, 30),  # the last step of the first epoch, at whose end there is a checkpoint all the same
        (small(TABLE, save_strategy="best"), 5, 6),
        # the last step of all, behind the best checkpoint
        (small(TABLE, save_strategy="best", metric_for_best_model="eval_positive_rate"), 59, 30),
    ],
    ids=["ctr_sink", "deepfm", "sigterm", "trees", "end_of_epoch", "best", "end_of_all"],
)
def test_an_interrupted_run_goes_on_from_the_step_it_stopped_behind(recipe, at, saved, tmp_path, monkeypatch, capsys):
    recipe["training"] = dict(recipe["training"])
    by_term = recipe["training"].pop("stop_by_term", False)
    whole = lmctr.runs.train(recipe, output_dir=tmp_path / "whole")
    monkeypatch.setattr(Interrupts, "at", (at,))
    monkeypatch.setattr(Interrupts, "number", signal.SIGTERM if by_term else signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as told, stopped_by_term():
        lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert told.type is (Terminated if by_term else KeyboardInterrupt)
    assert "to save a checkpoint; a second Ctrl-C ends at once" in capsys.readouterr().err
    checkpoint, skipped = newest_complete_checkpoint(tmp_path / "run" / "checkpoints")
    assert (checkpoint.name, skipped) == (f"checkpoint-{saved}", [])
    monkeypatch.setattr(Interrupts, "at", ())
    monkeypatch.setattr("lmctr.runs.training.add_trees", None)  # those of another version may be of another size
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert f"resuming from {checkpoint}" in capsys.readouterr().out
    told = dict.fromkeys(
        ("losses", "train_seconds", "samples_per_second", "command"), ANY
    )  # losses since the last start
    assert run.metrics == whole.metrics | told
    one, other = (load_file(folder / "model.safetensors") for folder in (run.path, whole.path))
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)


def test_a_run_that_an_earlier_version_began_goes_on(tmp_path, monkeypatch):
    """Its recipe lacks the keys that came later, whose defaults it had."""
    monkeypatch.setattr(Interrupts, "at", (5,))
    with pytest.raises(KeyboardInterrupt):
        lmctr.runs.train(small(TABLE), output_dir=tmp_path)
    monkeypatch.setattr(Interrupts, "at", ())
    kept = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    for group, key in (("data", "since"), ("data", "negative_share"), ("model", "use_numeric_skip")):
        del kept[group][key]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(kept))
    (tmp_path / "lmctr_manifest.json").unlink()
    with pytest.raises(ValueError, match=r"training.seed: 42 before, 1 now\. Resume with the same values"):
        lmctr.runs.train(small(TABLE, seed=1), output_dir=tmp_path)
    assert lmctr.runs.train(small(TABLE), output_dir=tmp_path).folder.finished


def test_a_second_ctrl_c_ends_at_once(tmp_path, monkeypatch):
    class Twice(Interrupts):
        def on_step_begin(self, *args, **kwargs):
            super().on_step_begin(*args, **kwargs)
            super().on_step_begin(*args, **kwargs)

    monkeypatch.setattr("lmctr.utils.stopping._SAME", 0.0)
    monkeypatch.setitem(globals(), "Interrupts", Twice)
    monkeypatch.setattr(Twice, "at", (5,))
    with pytest.raises(KeyboardInterrupt):
        lmctr.runs.train(small(TABLE), output_dir=tmp_path / "run")
    assert newest_complete_checkpoint(tmp_path / "run" / "checkpoints") == (None, [])


@pytest.mark.parametrize("values", [{"save_strategy": "no", "load_best_model_at_end": False}])
def test_where_nothing_is_saved_it_ends_at_once(values, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Interrupts, "at", (5,))
    with pytest.raises(KeyboardInterrupt):
        lmctr.runs.train(small(TABLE, **values), output_dir=tmp_path / "run")
    assert "checkpoint" not in capsys.readouterr().err


def test_a_grids_sigterm_behind_the_terminals_ctrl_c_is_the_same_one():
    with stopped_by_term(), HeldInterrupt("held") as held:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert held.came


class Finalised:
    """Does something when it goes, where nothing can be raised."""

    def __init__(self, does):
        self.does = does

    def __del__(self):
        self.does()


def test_a_sigterm_while_an_object_is_finalised_comes_behind_it(monkeypatch, capfd):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    hear_in_finalizers()
    began = time.monotonic()

    @stopped_by_term()
    def works():
        Finalised(lambda: signal.raise_signal(signal.SIGTERM))
        time.sleep(30)

    with pytest.raises(Terminated):
        works()
    assert time.monotonic() - began < 20
    assert capfd.readouterr().err == ""
    Finalised(lambda: 1 / 0)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_handlers_of_others_stay(monkeypatch):
    heard = []
    for given in (signal.SIG_IGN, lambda *_: heard.append(1)):
        signal.signal(signal.SIGINT, given)
        with HeldInterrupt("held") as held:
            assert signal.getsignal(signal.SIGINT) is given
            os.kill(os.getpid(), signal.SIGINT)
        assert not held.came
    assert heard == [1]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_forked_worker_does_not_end_before_its_parent(capfd):
    with HeldInterrupt("held") as held:
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGINT)
            os._exit(7 if held.came else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert not held.came
    assert capfd.readouterr().err == ""
