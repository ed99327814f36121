import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import yaml

from lmctr.__main__ import main as process_main
from lmctr.cli import main as cli
from lmctr.cli.main import VERBS, main
from lmctr.cli.options import add_options, read_options
from lmctr.cli.parser import Parser
from lmctr.models.families import families
from lmctr.runs.inputs import input_class
from lmctr.runs.recipe import training_keys
from lmctr.runs.words import COMMON_KEYS
from lmctr.utils.options import option


def test_unknown_verb(capsys):
    assert main(["trian"]) == 2
    assert "error: unknown verb 'trian'; did you mean 'train'?" in capsys.readouterr().err


def test_bad_input_is_one_line_and_code_2(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("LMCTR_DEBUG", raising=False)
    assert main(["train", str(tmp_path / "none.yaml")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: recipe file ")
    assert captured.err.count("\n") == 1
    for words in (["evaluate", "a" * 300], ["init", "a" * 300]):
        assert main(words) == 2
        assert "aaa'...: no path; its 3" in capsys.readouterr().err


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


def test_the_command_that_is_kept_is_quoted(monkeypatch):
    from lmctr.cli import report

    kept, words = [], ["report", "runs/a b", "--resamples", "200"]
    monkeypatch.setattr(report, "run", lambda args: kept.append(args.command))
    assert main(words) == 0
    assert shlex.split(kept[0]) == ["lmctr", *words]


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


LIGHT = {
    "help": ["--help"],
    "version": ["--version"],
    "help of a verb": ["train", "--help"],
    "help of an action": ["scaling", "fit", "--help"],
    "unknown verb": ["trian"],
    "unknown flag": ["train", "x", "--lr", "1e-3"],
    "unknown flag of an action": ["grid", "run", "x", "--lunch"],
    "no recipe": ["train"],
    "unknown recipe": ["train", "ctr_sink/quickstrat"],
    "data for a recipe": ["train", "clicks.csv"],
    "flags that exclude each other": ["train", "x", "--resume", "--overwrite"],
    "override of a verb that takes none": ["card", "x", "--data.path", "y"],
}


HEAVY = {"torch", "transformers", "sklearn", "datasets", "scipy.stats"}


def imports_of(*words):
    """The finished command, and the modules that it imported."""
    command = [sys.executable, "-X", "importtime", "-m", "lmctr", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "lmctr.cli.main" in imported
    return done, imported


def test_a_look_at_a_file_loads_no_torch(tmp_path, monkeypatch):
    """`lmctr init` is the first that a stranger runs: one second for five, also beside earlier runs."""
    monkeypatch.chdir(tmp_path)
    rows = [f"u{n % 7},{n % 11},{1_700_000_000 + n * 1000},{n % 3 % 2}" for n in range(200)]
    (tmp_path / "clicks.csv").write_text("user_id,item_id,time,clicked\n" + "\n".join(rows) + "\n")
    for family, recipe in {"din": "data: {name: other/schema.yaml}\n", "deepfm": "model: {}\n"}.items():
        (tmp_path / "runs" / family).mkdir(parents=True)
        (tmp_path / "runs" / family / "recipe.yaml").write_text(recipe)
    done, imported = imports_of("init", "clicks.csv")
    assert done.returncode == 0
    assert "lmctr train clicks/din.yaml --output-dir runs/clicks_din" in done.stdout
    assert "lmctr train clicks/deepfm.yaml --output-dir runs/clicks_deepfm" in done.stdout
    assert imported & HEAVY == set()
    done, imported = imports_of("data", "inspect", "clicks/schema.yaml")
    assert done.returncode == 0
    assert "events in no history" in done.stdout
    assert imported & HEAVY == set()


@pytest.mark.parametrize("words", [*LIGHT.values(), *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_and_usage_errors_import_nothing_heavy(words):
    done, imported = imports_of(*words)
    assert imported & {"torch", "transformers", "numpy", "pandas", "pyarrow", "sklearn", "datasets"} == set()
    assert done.returncode == (0 if "--help" in words or "--version" in words else 2)
    assert "Traceback" not in done.stderr


def test_the_console_script_registers_nothing_before_a_verb_needs_it(tmp_path):
    script = tmp_path / "lmctr"  # as pip writes it
    script.write_text("import sys\nfrom lmctr.__main__ import main\nsys.exit(main())\n")
    command = [sys.executable, "-X", "importtime", str(script), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("lmctr ")
    assert "torch" not in done.stderr


def test_help_is_quick():
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "lmctr", "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 3.0  # 0.2 on an idle machine; importing torch and transformers takes longer than this


def usage_error(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([*words])
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("train", "x", "--lr", "1e-3"), "--training.learning_rate"),
        (("train", "x", "--batch_size", "8"), "--training.per_device_train_batch_size"),
        (("train", "x", "--batch-size=8"), "--training.per_device_train_batch_size"),
        (("train", "x", "--learning_rat", "8"), "--training.learning_rate"),
        (("train", "x", "--dataset", "movielens"), "--data.name"),
        (("train", "x", "--ouput-dir", "y"), "--output-dir"),
        (("grid", "run", "x", "--lr", "8"), "--training.learning_rate"),
        (("grid", "run", "x", "--dry-rum"), "--dry-run"),
    ],
)
def test_unknown_flags_name_the_nearest_known_one(capsys, words, meant):
    error = usage_error(capsys, *words)
    verb = " ".join(words[: words.index("x")])
    assert error.startswith(f"usage: lmctr {verb} ")
    flag = words[words.index("x") + 1].partition("=")[0]
    assert error.endswith(f"lmctr {verb}: error: unknown option {flag}; did you mean {meant}?\n")


def test_recipe_keys_are_offered_only_where_they_may_be_given(capsys):
    error = usage_error(capsys, "card", "x", "--lr", "1")
    assert "unknown option --lr; lmctr card --help lists what there is" in error


def test_too_many_words(capsys):
    assert "lmctr card: error: unexpected words: y z" in usage_error(capsys, "card", "x", "y", "z")


def test_the_words_for_recipe_keys_lead_to_keys():
    known = {"data": set(), "model": set(), "training": {"epochs", *training_keys().model_fields}}
    for family in families():
        kind = input_class(family.model_type)
        known["data"] |= set(kind.data_keys.model_fields)
        known["model"] |= {"family", *kind.model_keys(family.model_type).model_fields}
    for key in COMMON_KEYS:
        group, _, name = key.partition(".")
        assert name in known[group], key


@dataclass
class Sample:
    """A piece of work.

    More about it.
    """

    run: str = option("a folder", positional=True)
    batch_size: int = option("rows")
    use_it: bool = option("whether", False)
    columns: list[str] = option("columns", [])


def parse_sample(*words):
    parser = Parser(prog="sample")
    add_options(parser, Sample)
    return read_options(Sample, parser.parse_args(words)), parser.format_help()


def test_flags_with_hyphens_and_in_the_old_spelling():
    expected = Sample("x", 8, True, ["a", "b"])
    for words in (("--batch-size", "8", "--use-it"), ("--batch_size=8", "--use_it")):
        options, shown = parse_sample("x", *words, "--columns", "a", "b")
        assert options == expected
    assert "--batch-size" in shown
    assert "--batch_size" not in shown
    assert "--use_it" not in shown
    assert parse_sample("x", "--batch-size", "0")[0] == Sample("x", 0, False, [])


def test_a_required_flag_that_is_missing(capsys):
    with pytest.raises(SystemExit):
        parse_sample("x")
    assert "the following arguments are required: --batch-size" in capsys.readouterr().err


def fail_with(monkeypatch, error):
    class Failing:
        @staticmethod
        def add_parser(subparsers):
            subparsers.add_parser("card").set_defaults(takes_overrides=False)

        @staticmethod
        def run(args):
            raise error

    monkeypatch.delenv("LMCTR_DEBUG", raising=False)
    monkeypatch.setitem(sys.modules, "failing_verb", Failing)
    monkeypatch.setitem(VERBS, "card", "failing_verb")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("WandbCallback requires wandb to be installed. Run `pip install wandb`."),
        AssertionError("Torch not compiled with CUDA enabled"),
        ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"),
        yaml.YAMLError("mapping values are not allowed here"),
        PermissionError("x may not be read"),
    ],
)
def test_what_a_user_can_mend_is_a_message(monkeypatch, capsys, error):
    fail_with(monkeypatch, error)
    assert main(["card"]) == 2
    assert capsys.readouterr().err == f"error: {error}\n"


def test_a_port_of_a_launch_that_is_taken_is_told(monkeypatch, capsys):
    monkeypatch.setenv("MASTER_PORT", "29500")
    fail_with(
        monkeypatch, RuntimeError("The server socket has failed to listen. port: 29500, code: -98, name: EADDRINUSE")
    )
    assert main(["card"]) == 2
    told = "error: port 29500 of this launch is taken; name another (main_process_port of accelerate launch, or MASTER_PORT)\n"
    assert capsys.readouterr().err == told


def test_a_name_that_is_no_utf_8_is_told(monkeypatch, capsys):
    fail_with(monkeypatch, UnicodeEncodeError("utf-8", "path: a/caf\udce9.csv\n", 11, 12, "surrogates not allowed"))
    assert main(["card"]) == 2
    told = "error: 'a/caf\\udce9.csv': the name of this file or folder is no UTF-8; rename it\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    "error",
    [
        KeyError("name"),
        AttributeError("'NoneType' object has no attribute 'x'"),
        RuntimeError("shape '[2]' is invalid for input of size 3"),
        ImportError("cannot import name 'x' from 'lmctr.runs'", name="lmctr.runs"),
        AssertionError(),
        BrokenPipeError(32, "Broken pipe"),  # of some other pipe: this output is read
    ],
)
def test_a_fault_of_the_program_is_not_hidden(monkeypatch, capsys, error):
    fail_with(monkeypatch, error)
    with pytest.raises(type(error)):
        main(["card"])
    monkeypatch.setattr(sys, "argv", ["lmctr", "card"])
    assert process_main() == 1
    shown = capsys.readouterr().err
    assert f"error: {type(error).__name__}: {error} (test_main.py, line " in shown
    assert "this looks like a bug of lmctr; LMCTR_DEBUG=1 shows where it happened" in shown
    monkeypatch.setenv("LMCTR_DEBUG", "1")
    with pytest.raises(type(error)):
        process_main()


def test_output_that_nobody_reads_any_more_is_no_error():
    """`lmctr ... | true`: the reader has gone before the first line comes. By a verb that imports nothing heavy: its only line is this one."""
    code = "import sys; sys.argv = ['lmctr', 'card', 'run']; from lmctr.cli import card; card.run = lambda args: print('a line')"
    code += "; from lmctr.__main__ import main; sys.exit(main())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "a line\n"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


def test_closed_streams_stand_open_on_nothing(tmp_path):
    """`<&- >&-`, as some schedulers start programs: a verb flushes and reads them, and a file that it opens is not one of them."""
    code = "import sys; sys.argv = ['lmctr', 'card', 'run']; from lmctr.cli import card; from lmctr.utils.progress import say\n"
    code += "def run(args):\n  say('a line'); sys.stderr.write(f'{sys.stdin.read()!r} {open(args.run).fileno()}')\n"
    code += "card.run = run; from lmctr.__main__ import main; sys.exit(main())"
    (tmp_path / "run").touch()
    words = ["sh", "-c", '"$0" -c "$1" <&- >&-', sys.executable, code]
    process = subprocess.run(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (process.returncode, process.stderr) == (0, "'' 3")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_data_are_utf_8_whatever_the_locale(encoding, tmp_path):
    """Piped requests are read as a file's are, scores written so, and a line of progress that the output lacks letters for ends nothing."""
    code = "import sys; sys.argv = ['lmctr', 'card', 'run']; from lmctr.cli import card; from lmctr.utils.progress import say\n"
    code += "from lmctr.runs.answers.files import whole_output\n"
    code += "def run(args):\n  read = sys.stdin.read(); say(read)\n  with whole_output('-') as stream: stream.write(read)\n"
    code += "card.run = run; from lmctr.__main__ import main; sys.exit(main())"
    words = {"input": "\u661f".encode(), "env": {**os.environ, "PYTHONIOENCODING": encoding}, "capture_output": True}
    process = subprocess.run([sys.executable, "-c", code], **words)
    assert (process.stdout, process.stderr) == (b"\\u661f\n" + words["input"], b"")


def test_only_the_chosen_verb_is_imported():
    _, modules = cli.build_parser("train")
    assert list(modules) == ["train"]
