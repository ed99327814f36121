"""Processes of benchmarks, whose imports are not what their tests are about."""

import sys

import pytest
import warm


@pytest.fixture
def warm_processes(monkeypatch):
    """Python programs that a benchmark starts are forks of a process that has imported the library."""
    monkeypatch.setattr(sys, "executable", warm.python())
