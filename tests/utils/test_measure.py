import sys

import torch

from lmctr.utils.measure import machine, machine_line, peak_memory, versions


def test_machine():
    found = machine()
    assert list(found) == ["system", "processor", "cores", "threads", "python", "torch", "transformers"]
    assert found["threads"] == torch.get_num_threads()
    assert found["torch"] == torch.__version__
    assert next(iter(machine(packages=["numpy"], with_platform=True))) == "platform"
    assert f"{torch.get_num_threads()} threads, {sys.platform}" in machine_line()


def test_versions():
    assert {"python", "lmctr", "torch", "scikit-learn"} <= versions().keys()


def test_peak_memory():
    assert peak_memory() > 1 << 24  # an interpreter with PyTorch
