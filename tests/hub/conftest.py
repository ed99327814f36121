"""Fixtures: a tiny finished run, and a copy of it to break."""

import shutil

import pytest
from tiny_run import write_run


@pytest.fixture(scope="session", autouse=True)
def quick_exports(one_registry_of_operators):
    """Most files here export a model."""


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """Folder, model and processor of a run that no test may change."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    path.mkdir()
    model, processor = write_run(path)
    return path, model, processor


@pytest.fixture
def run_dir(finished_run, tmp_path):
    """A copy of it that a test may break."""
    return shutil.copytree(finished_run[0], tmp_path / "tiny")
