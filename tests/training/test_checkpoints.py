import pytest
from toy_training import make_trainer
from transformers import TrainerCallback

from lmctr.training.checkpoints import (
    MARKER,
    list_checkpoints,
    mark_complete,
    newest_complete_checkpoint,
    read_marker,
    rotate,
)


def write(folder, step, complete=True):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"x" * 100)
    (checkpoint / "trainer_state.json").write_text("{}")
    if complete:
        mark_complete(checkpoint, global_batch_size=8)
    return checkpoint


def test_newest_complete_is_found_by_step_not_by_name(tmp_path):
    for step in (9, 10, 100):
        write(tmp_path, step)
    (tmp_path / "checkpoint-old").mkdir()
    (tmp_path / "checkpoint-500").write_text("a file, no folder")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10", "checkpoint-100"]
    assert newest_complete_checkpoint(tmp_path) == (tmp_path / "checkpoint-100", [])


def test_half_written_checkpoints_are_skipped_with_a_message(tmp_path):
    good = write(tmp_path, 10)
    write(tmp_path, 20, complete=False)
    short = write(tmp_path, 30)
    (short / "model.safetensors").write_bytes(b"x" * 40)
    gone = write(tmp_path, 40)
    (gone / "trainer_state.json").unlink()
    torn = write(tmp_path, 50)
    (torn / MARKER).write_text('{"files": {')
    found, skipped = newest_complete_checkpoint(tmp_path)
    assert found == good
    assert len(skipped) == 4
    assert "cannot be read" in skipped[0]
    assert "trainer_state.json is missing" in skipped[1]
    assert "model.safetensors has 40 bytes instead of 100" in skipped[2]
    assert MARKER in skipped[3]


def test_no_complete_checkpoint(tmp_path):
    assert newest_complete_checkpoint(tmp_path / "nothing") == (None, [])
    write(tmp_path, 20, complete=False)
    found, skipped = newest_complete_checkpoint(tmp_path)
    assert found is None
    assert len(skipped) == 1


def test_marker_keeps_facts(tmp_path):
    assert read_marker(write(tmp_path, 1))["global_batch_size"] == 8
    with pytest.raises(ValueError, match="not complete"):
        read_marker(write(tmp_path, 2, complete=False))


@pytest.mark.parametrize(
    ("limit", "best", "kept"),
    [
        (None, None, [10, 20, 30, 40]),
        (1, None, [40]),
        (2, None, [30, 40]),
        (2, 10, [10, 40]),
        (3, 10, [10, 30, 40]),
        (1, 10, [10, 40]),
        (2, 40, [30, 40]),
    ],
)
def test_rotation_keeps_the_newest_and_the_best(tmp_path, limit, best, kept):
    for step in (10, 20, 30, 40):
        write(tmp_path, step)
    write(tmp_path, 25, complete=False)
    rotate(tmp_path, limit, None if best is None else tmp_path / f"checkpoint-{best}")
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in kept]


def test_a_wrong_bit_in_a_checkpoint_sends_the_run_to_the_one_before(tmp_path):
    good, bad = write(tmp_path, 10), write(tmp_path, 20)
    (bad / "model.safetensors").write_bytes(b"x" * 99 + b"y")
    found, skipped = newest_complete_checkpoint(tmp_path)
    assert found == good
    assert skipped[0].startswith(f"{bad} is not complete: model.safetensors is damaged: its 100 bytes")


def test_the_newest_checkpoint_is_the_newest_complete_one(tmp_path):
    make_trainer(tmp_path, save_total_limit=None).train()
    (tmp_path / "checkpoint-30" / MARKER).unlink()  # a kill came before the last file
    again = make_trainer(tmp_path, save_total_limit=None)
    began = []

    class Began(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            began.append(state.global_step)

    again.add_callback(Began())
    again.train(resume_from_checkpoint=True)
    assert began == [20]
