"""What optimisers of runs were saved with, for the tests of going on from a run."""

import torch


def steps_in(folder):
    """The numbers of steps that the state in a folder's `optimizer.pt` has counted."""
    state = torch.load(folder / "optimizer.pt", weights_only=True)["state"]
    return {float(entry["step"]) for entry in state.values()}


def steps_at_best(run):
    """Those of the best checkpoint of a run."""
    return steps_in(run.path / "checkpoints" / f"checkpoint-{run.metrics['best_step']}")
