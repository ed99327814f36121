"""Files of tensors are read by whoever may read their folder."""

import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lmctr.data import TextRetriever
from lmctr.utils.tensors import save_tensors


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_modes(tmp_path, mode):
    tmp_path.chmod(mode)
    save_tensors({"a": torch.arange(3)}, tmp_path / "torch.safetensors", {"format": "pt"})
    save_tensors({"a": np.arange(3)}, tmp_path / "numpy.safetensors")
    TextRetriever().fit(["Heat", "Casino"]).save_pretrained(tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 3
    assert [file.stat().st_mode & 0o777 for file in files] == [mode & 0o666] * 3
    for name in ("torch", "numpy"):
        assert torch.equal(load_file(tmp_path / f"{name}.safetensors")["a"], torch.arange(3))
