"""What only some systems have is asked for before it is used, so that the package works on Linux, macOS and Windows."""

import ast
import re
from pathlib import Path

import lmctr

ROOT = Path(lmctr.__file__).parent
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "msvcrt", "winreg"}
NAMES = {
    "os": {
        "fork",
        "kill",
        "killpg",
        "getuid",
        "sched_getaffinity",
        "sched_setaffinity",
        "sysconf",
        "mkfifo",
        "wait3",
        "startfile",
    }
}
NAMES["signal"] = {"SIGHUP", "SIGKILL", "SIGALRM", "SIGUSR1", "SIGUSR2", "alarm", "setitimer", "pause"}
GUARD = re.compile(r"hasattr\(|os\.name|sys\.platform|\.is_file\(\)|\.exists\(\)|getattr\(")


def used(tree):
    """Nodes that only some systems can run, by what they name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield node, node.module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NAMES.get(node.value.id, ()):
                yield node, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("/proc/"):
            yield node, node.value


def is_guarded(tree, node):
    """Whether a node stands in a `try`, or in a function or at the top of a file that asks the system first."""
    around = [outer for outer in ast.walk(tree) if any(inner is node for inner in ast.walk(outer))]
    if any(
        isinstance(outer, ast.Try) and any(inner is node for part in outer.body for inner in ast.walk(part))
        for outer in around
    ):
        return True
    functions = [outer for outer in around if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef))]
    within = functions or [outer for outer in around if isinstance(outer, (ast.If, ast.IfExp))]
    return any(GUARD.search(ast.unparse(outer)) for outer in within)


def unguarded(source):
    tree = ast.parse(source)
    return [f"line {node.lineno}: {name}" for node, name in used(tree) if not is_guarded(tree, node)]


def test_what_only_some_systems_have_is_asked_for():
    named = re.compile("|".join([*MODULES, "os\\.", "signal\\.", "/proc/"]))
    found = {str(path): unguarded(source) for path in ROOT.rglob("*.py") if named.search(source := path.read_text())}
    assert len(found) > 50
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_check_finds_what_is_wrong():
    assert unguarded("import fcntl") == ["line 1: fcntl"]
    assert unguarded("def f():\n    os.kill(1, 0)") == ["line 2: os.kill"]
    assert unguarded("text = open('/proc/cpuinfo').read()") == ["line 1: /proc/cpuinfo"]
    assert unguarded("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None") == []
    assert unguarded("if hasattr(signal, 'SIGHUP'):\n    signal.signal(signal.SIGHUP, f)") == []
