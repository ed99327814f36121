"""Mutants of equations and guards, each of which a test must notice.

The short form checks that every mutant can still be made; `pytest -m campaign tests/test_mutants.py` runs the tests that must fail, about ten
minutes on a core.
"""

import ast
import compileall
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MUTANTS = [tuple(entry) for entry in yaml.safe_load((ROOT / "tests" / "mutants.yaml").read_text())]
# Imports all but the package, and runs pytest in a fork for each line; neither it nor what it starts with `-c` (the server of a grid's
# processes) looks into the working folder, in which the package itself lies (the server from Python 3.11 on).
START = """
import json, os, signal, sys
sys.path[:] = [path for path in sys.path if path]
import pyarrow.dataset, pandas, pytest, scipy.stats, torch, transformers.trainer
for line in sys.stdin:
    output, words = json.loads(line)
    if not (child := os.fork()):
        signal.alarm(500)
        for number in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        code = pytest.main(words)
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def mutated(file, old, new):
    text = (ROOT / file).read_text()
    assert text.count(old) == 1, f"{file} must hold once: {old}"
    return text.replace(old, new)


def test_every_mutant_can_be_made():
    assert len(set(MUTANTS)) == len(MUTANTS)
    own = {file: ast.dump(ast.parse((ROOT / file).read_text())) for file in {file for file, *_ in MUTANTS}}
    for file, tests, old, new in MUTANTS:
        assert ast.dump(ast.parse(mutated(file, old, new))) != own[file]
        assert (ROOT / shlex.split(tests)[0]).is_file()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with a copy of the package, and a function that runs tests with it: their exit code and output."""
    folder = tmp_path_factory.mktemp("mutants")
    shutil.copytree(ROOT / "lmctr", folder / "lmctr", ignore=shutil.ignore_patterns("__pycache__"))
    for shipped in ("recipes", "prompts", "model_cards"):  # which a checkout has beside the package
        (folder / shipped).symlink_to(ROOT / shipped)
    # By their hashes: a file that is changed is compiled again, all others are not.
    compileall.compile_dir(folder / "lmctr", quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["OMP_NUM_THREADS"] = "1"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", START], cwd=ROOT, env=environment, **pipes) as runner:

        def run(words):
            output = folder / "output.txt"
            output.unlink(missing_ok=True)
            runner.stdin.write(json.dumps([str(output), words]) + "\n")
            runner.stdin.flush()
            return int(runner.stdout.readline()), output.read_text()

        yield folder, run
        runner.stdin.close()


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_a_mutant_is_noticed(package, number):
    (folder, run), (file, tests, old, new) = package, MUTANTS[number]
    (folder / file).write_text(mutated(file, old, new))
    try:
        code, output = run(["-q", "-x", "-p", "no:cacheprovider", *shlex.split(tests)])
    finally:
        shutil.copyfile(ROOT / file, folder / file)
    print(MUTANTS[number], output.splitlines()[-1:])
    assert code == 1, f"survives (code {code}): {MUTANTS[number]}\n{output[-1500:]}"


@pytest.mark.campaign
@pytest.mark.parametrize("tests", sorted({tests for _, tests, *_ in MUTANTS}))
def test_the_tests_pass_without_a_mutant(package, tests):
    code, output = package[1](["-q", "-x", "-p", "no:cacheprovider", *shlex.split(tests)])
    assert code == 0, output[-1500:]
