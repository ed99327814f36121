import importlib
import subprocess
import sys

import pytest

from lmctr.cli import main as cli
from lmctr.cli.main import VERBS, main


def test_unknown_verb(capsys):
    assert main(["trian"]) == 2
    assert "error: unknown verb 'trian'; did you mean 'train'?" in capsys.readouterr().err


def test_bad_input_is_one_line_and_code_2(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("LMCTR_DEBUG", raising=False)
    assert main(["train", str(tmp_path / "none.yaml")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: recipe file ")
    assert captured.err.count("\n") == 1


def test_debug_shows_the_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("LMCTR_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        main(["train", str(tmp_path / "none.yaml")])


def test_overrides_only_where_a_verb_takes_them(capsys):
    assert main(["predict", "x", "--input", "y", "--data.path", "z"]) == 2
    assert "predict takes no recipe overrides, got --data.path" in capsys.readouterr().err


def test_version(capsys):
    import lmctr

    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == f"lmctr {lmctr.__version__}"


def test_resume_and_overwrite_exclude_each_other(capsys):
    assert main(["train", "x", "--resume", "--overwrite"]) == 2
    assert "give one of them" in capsys.readouterr().err


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_each_verb(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"usage: lmctr {verb}" in capsys.readouterr().out


def test_help_lists_all_verbs(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    listed = {line.split()[0] for line in printed.splitlines() if line.startswith("    ") and line.split()}
    assert set(VERBS) <= listed


def test_verb_modules_import_nothing_heavy():
    """The verbs' modules come without torch and transformers; they import those when they run."""
    code = (
        "import sys, types; package = types.ModuleType('lmctr'); package.__path__ = [sys.argv[1]]; package.__version__ = '0'\n"
        "sys.modules['lmctr'] = package\n"  # without the package's own registration of the Auto classes
        "from lmctr.cli.main import build_parser; build_parser()\n"
        "print([name for name in ('torch', 'transformers', 'pandas', 'sklearn') if name in sys.modules])"
    )
    folder = str(importlib.import_module("lmctr").__path__[0])
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_only_the_chosen_verb_is_imported():
    _, modules = cli.build_parser("train")
    assert list(modules) == ["train"]
