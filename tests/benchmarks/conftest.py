"""Processes of benchmarks, whose imports are not what their tests are about."""

import pytest
import warm

from lmctr.benchmarks import harness, peer_files, peer_turns, serving


@pytest.fixture
def warm_processes(monkeypatch):
    """Python programs that a benchmark starts are forks of a process that has imported the library."""
    for module in (harness, peer_files, peer_turns, serving):
        monkeypatch.setattr(module, "subprocess", warm.Subprocess)
