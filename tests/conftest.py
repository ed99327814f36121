"""Makes the helper modules of this folder importable from the tests in its subfolders, and keeps threads few."""

import copy
import functools
import gc
import logging
import os
import sys

import pytest

# Tests run in several processes; more threads than cores make every one of them wait. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test needs the Hub's servers, and where none answer, each attempt waits for half a minute. Read when huggingface_hub is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Where no bytecode is kept, each worker rewrites all tests and each process that they start compiles the package: a second, some hundred times.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What tests write need not outlive the machine: a run syncs some seventy files, for milliseconds each. A wrong handle is an error still.
os.fsync = lambda handle: os.fstat(handle) and None

# Until all is imported and collected, next to nothing is garbage.
gc.disable()


def pytest_addoption(parser):
    parser.addoption(
        "--seeds", metavar="FIRST-LAST", help="of a campaign only these seeds, so that it can go in parts"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let a worker of `-n` take tests that lie together, so that fixtures of a file are made once, and help another at the end."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session")
def one_registry_of_operators():
    """Each export to ONNX reads the source of all operators anew, half a second each, and asks torch for their list some fifty times."""
    try:
        import torch.fx.config
        from torch._export import utils
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:  # without the packages of the extra nothing is exported
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        if hasattr(utils, "_materialize_cpp_cia_ops"):  # a private name of torch
            patch.setattr(utils, "_materialize_cpp_cia_ops", functools.cache(utils._materialize_cpp_cia_ops))
        # Each node of each graph is given the stack that made it, as text: a twentieth of an export, and read by debuggers only.
        patch.setattr(torch.fx.config, "do_not_emit_stack_traces", True, raising=False)
        yield


_seen = 0  # modules when objects were last left out of collections


def _freeze():
    global _seen
    gc.freeze()
    _seen = len(sys.modules)


def pytest_collection_finish():
    """Collections of garbage, one or more in each training, need not go through all that was imported and collected: half a second each.

    Nor need there be one for each 700 objects: graphs of torch are made of millions, none of them garbage.
    """
    _freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()
    _remember()
    # pytest listens to every logger; torch writes down each step of a trace, with the stack at it, where somebody listens to this one.
    logging.getLogger("torch.__trace").addHandler = lambda handler: None


def _remember():
    """What is found out time and again in a process of many trainings: packages that are not there, and what the same recipes hold."""
    packages = sys.modules.get("accelerate.utils.imports")
    if packages is not None:  # at each step
        packages._is_package_available = functools.cache(packages._is_package_available)
    sequences = sys.modules.get("lmctr.runs.inputs.sequence")
    if sequences is not None:  # a few of the rows whose operations are counted when a training ends
        sequences._COST_ROWS = 2
    files = sys.modules.get("lmctr.utils.files")
    if files is not None:
        parse = functools.lru_cache(1000)(files.parse_yaml)
        files.parse_yaml = lambda text, where: copy.deepcopy(parse(text, where))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """As above for what the tests imported on their way, and for what a file leaves behind: compiled and exported graphs, caches.

    A training looks for garbage twice or more; after some thousand tests that else takes longer than the training itself.
    """
    if len(sys.modules) > _seen + 50 or nextitem is None or nextitem.path != item.path:
        gc.collect()
        _freeze()


def pytest_collection_modifyitems(config, items):
    """Leave out the tests that run for long or need much that is seldom there, unless `-m` names their marker; order the others."""
    if config.option.seeds:
        first, last = map(int, config.option.seeds.split("-"))
        seeds = [getattr(item, "callspec", None) and item.callspec.params.get("seed") for item in items]
        items[:] = [item for item, seed in zip(items, seeds) if seed is not None and first <= seed <= last]
    # Exports, the longest, come first: near the end a worker with a long test leaves the other without work.
    items.sort(key=lambda item: item.path.parent.name != "hub")
    for marker in ("campaign", "smollm2"):
        if marker in config.option.markexpr:
            continue
        skip = pytest.mark.skip(reason=f"runs where asked for: -m {marker}")
        told = {item.nodeid.split("[")[0]: item for item in reversed(items) if marker in item.keywords}
        for item in told.values():
            item.add_marker(skip)
        # A campaign says so once for each test, not for each of its hundreds of parameters.
        items[:] = [item for item in items if marker not in item.keywords or item in told.values()]
