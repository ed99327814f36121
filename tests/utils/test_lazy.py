"""Modules that are imported when something of them is first wanted."""

import gc
import sys

import pytest

from lmctr.utils.lazy import imported, lazy_names, load_target

CODE = "import gc\nrested = not gc.isenabled()\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that notes whether the collector rested while it was imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "noting.py").write_text(CODE)
    yield tmp_path / "noting.py"
    sys.modules.pop("noting", None)


@pytest.mark.parametrize(
    "find",
    [
        lambda: imported("noting").rested,
        lambda: load_target("noting:rested"),
        lambda: lazy_names("lmctr", {"rested": "noting"})[0]("rested"),
    ],
)
def test_the_collector_rests_while_a_module_is_imported(module, find):
    assert gc.isenabled()
    assert find() is True
    assert gc.isenabled()


def test_the_collector_stays_as_it_was(module):
    module.write_text(CODE + "1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        imported("noting")
    assert gc.isenabled()
    gc.disable()
    try:
        assert imported("gc") is gc
        assert not gc.isenabled()
    finally:
        gc.enable()
