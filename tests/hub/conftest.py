"""Fixtures: a tiny finished run, and a copy of it to break."""

import functools
import shutil

import pytest
from tiny_run import write_run


@pytest.fixture(scope="session", autouse=True)
def one_registry_of_operators():
    """Each export to ONNX reads the source of all operators anew, half a second each, and asks torch for their list some fifty times."""
    try:
        from torch._export import utils
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:  # without the packages of the extra nothing is exported
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        if hasattr(utils, "_materialize_cpp_cia_ops"):  # a private name of torch
            patch.setattr(utils, "_materialize_cpp_cia_ops", functools.cache(utils._materialize_cpp_cia_ops))
        yield


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
