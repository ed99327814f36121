"""The family table: the only list of families, and all that a family of one's own has to join."""

import ast
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, AutoModel, AutoProcessor, PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput

import lmctr
from lmctr import _early
from lmctr.cli.main import main
from lmctr.data.registry import load_tabular
from lmctr.hub.model_card import build_card
from lmctr.models import families as table
from lmctr.models.common.configuration import SequenceCTRConfig, TabularCTRConfig
from lmctr.models.common.embeddings import FieldEmbedding
from lmctr.models.common.sequence import (
    CandidateContext,
    ItemEmbedding,
    SequenceForCTRMixin,
    SequenceModelMixin,
    SequencePreTrainedModel,
    visible_events,
)
from lmctr.models.common.tabular import (
    LogitHead,
    TabularForCTRMixin,
    TabularModelMixin,
    TabularPreTrainedModel,
)
from lmctr.models.families import CLASSES, Family, families, family_of
from lmctr.serving import score
from lmctr.serving.events import EventScorer
from lmctr.serving.registry import scorer_for


class FieldSumConfig(TabularCTRConfig):
    """Fields that are added up."""

    model_type = "field_sum"

    scale: float = 1.0


class FieldSumPreTrainedModel(TabularPreTrainedModel):
    config_class = FieldSumConfig


class FieldSumModel(TabularModelMixin, FieldSumPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embedding = FieldEmbedding(config)
        self.post_init()

    def encode(self, fields, inputs, trace):
        return self.config.scale * fields.sum(1), None, None


class FieldSumForCTR(TabularForCTRMixin, FieldSumPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.model = FieldSumModel(config)
        self.head = LogitHead(config.embedding_dim)
        self.post_init()


class MeanInterestConfig(SequenceCTRConfig):
    """The mean of what a user did, beside the candidate."""

    model_type = "mean_interest"

    hidden_size: int = 8


class MeanInterestPreTrainedModel(SequencePreTrainedModel):
    config_class = MeanInterestConfig


class MeanInterestModel(SequenceModelMixin, MeanInterestPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.item_embedding = ItemEmbedding(config, config.hidden_size)
        self.context = CandidateContext(config, config.hidden_size)
        self.post_init()

    def run(self, inputs, output_hidden_states=False, output_attentions=False):
        events = self.item_embedding(inputs.history_items, inputs.history_features)
        candidates = self.item_embedding(inputs.candidate_items, inputs.candidate_features)
        seen = visible_events(inputs).to(events.dtype)
        mean = seen @ events / seen.sum(-1, keepdim=True).clamp_min(1.0)
        return BaseModelOutput(torch.cat([mean, candidates, self.context(inputs)], -1))


class MeanInterestForCTR(SequenceForCTRMixin, MeanInterestPreTrainedModel):
    base_class = MeanInterestModel

    def new_head(self, config):
        return nn.Linear(2 * config.hidden_size + self.model.context.out_size, config.num_tasks)


FIELD_SUM = Family("field_sum", "FieldSum", "tabular", "a sum of fields", "A test. https://a.b", module=__name__)
MEAN_INTEREST = Family(
    "mean_interest", "MeanInterest", "sequence", "a mean of events", "A test. https://a.b/c", module=__name__
)


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The two rows, taken out of the table again for the other tests."""
    before = list(table._FAMILIES)
    lmctr.register_family(FIELD_SUM)
    lmctr.register_family(MEAN_INTEREST)
    yield
    table._FAMILIES[:] = before


@pytest.fixture(scope="module")
def field_sum_run(tmp_path_factory):
    recipe = {
        "data": {
            "name": "synthetic_table",
            "options": {"num_rows": 1500, "num_categorical": 3, "num_numeric": 1, "num_pairs": 2, "vocab_size": 50},
        },
        "model": {"family": "field_sum", "embedding_dim": 4, "scale": 2.0},
        "training": {"learning_rate": 0.05, "per_device_train_batch_size": 64, "use_cpu": True},
    }
    return lmctr.runs.train(recipe, output_dir=tmp_path_factory.mktemp("runs") / "field_sum")


def test_a_registered_family_is_listed():
    assert {"field_sum", "mean_interest"} <= set(lmctr.list_models())
    assert families("tabular")[-1] == FIELD_SUM
    assert lmctr.FieldSumForCTR is FieldSumForCTR
    config = FieldSumConfig(vocab_sizes=[5])
    assert isinstance(AutoModel.from_config(config), FieldSumModel)
    assert isinstance(lmctr.AutoModelForCTR.from_config(config), FieldSumForCTR)


def test_a_registered_family_trains_and_predicts(field_sum_run, tmp_path):
    path = field_sum_run.path
    assert isinstance(field_sum_run.model, FieldSumForCTR)
    assert AutoConfig.from_pretrained(path).scale == 2.0
    assert field_sum_run.metrics["test"]["auc"] > 0.5
    source = load_tabular(
        "synthetic_table", num_rows=1500, num_categorical=3, num_numeric=1, num_pairs=2, vocab_size=50
    )
    rows = [row for batch in source.rows(part="test") for row in batch.table.to_pylist()][:9]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = tmp_path / "scores.jsonl"
    assert main(["predict", str(path), "--input", str(tmp_path / "rows.jsonl"), "--output", str(target)]) == 0
    found = [json.loads(line)["logit"] for line in target.read_text().splitlines()]
    batch = AutoProcessor.from_pretrained(path)(rows, return_tensors="pt")
    with torch.no_grad():
        expected = field_sum_run.model(**batch).logits
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_a_run_of_a_family_that_is_not_there_says_what_to_do(monkeypatch, field_sum_run, tmp_path, capsys):
    """Whoever gets a model of another package's family is told that the package is missing, not that it is no CTR model at all."""
    monkeypatch.setattr(table, "_FAMILIES", [row for row in families() if row != FIELD_SUM])
    run, told = (
        str(field_sum_run.path),
        r"(?s)'field_sum'.* A family of another package .* installed, .*register_family",
    )
    with pytest.raises(ValueError, match=told):
        lmctr.runs.load(run)
    page, recipe = str(tmp_path / "page.html"), str(field_sum_run.path / "recipe.yaml")
    for words in (["evaluate", run], ["report", run, "--output", page, "--no-plots"], ["train", recipe]):
        assert main(words) == 2
        assert re.search(told, capsys.readouterr().err), words


def test_a_registered_family_gets_a_card(field_sum_run):
    card = build_card(field_sum_run.path)
    assert "rows of a table: a sum of fields, after [FieldSum](https://a.b)" in card
    assert "| `scale` | 2.0 |" in card
    assert "A test. https://a.b" in card


def test_a_registered_family_of_sequences_trains_and_serves(tmp_path):
    recipe = {
        "data": {"name": "synthetic_sequence", "options": {"num_users": 30, "num_items": 20, "events_per_user": 30}},
        "model": {"family": "mean_interest"},
        "training": {"learning_rate": 0.01, "per_device_train_batch_size": 16, "use_cpu": True},
    }
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    log = lmctr.data.load_log("synthetic_sequence", num_users=30, num_items=20, events_per_user=30)
    items, time = log.catalogue["item_id"].to_pylist()[:3], int(log.time[0])
    event = {"behavior": log.feedback_names[0], "scenario": log.scenario_names[0]}
    history = [{"item": item, "time": time + 60 * number, **event} for number, item in enumerate(items)]
    candidates = [{"item": item, "scenario": log.scenario_names[0]} for item in items]
    assert type(scorer_for(run.model, run.processor)) is EventScorer
    batch = run.processor(
        histories=[history],
        candidates=[items],
        times=[time + 600],
        scenarios=[log.scenario_names[0]],
        return_tensors="pt",
    )
    with torch.no_grad():
        expected = run.model(**batch).logits[0]
    found = score(run.model, run.processor, history, candidates, time + 600)
    torch.testing.assert_close(found, expected.reshape(found.shape))
    assert "event sequences: a mean of events, after [MeanInterest](https://a.b/c)" in build_card(run.path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "deepfm"}, "'deepfm' .DeepFM. is in the table already"),
        ({"stem": "DeepFM"}, "'deepfm' .DeepFM. is in the table already"),
        ({"input": "tables"}, "input is 'tables', accepted: text, tabular, sequence, impressions"),
        ({"input": ["text"]}, r"input is \['text'\], accepted: text, tabular, sequence, impressions"),
    ],
)
def test_rows_that_cannot_join(changes, message):
    values = {"model_type": "other", "stem": "Other", "input": "tabular", "says": "", "paper": ""}
    before = families()
    with pytest.raises(ValueError, match=message):
        lmctr.register_family(Family(**values | changes))
    with pytest.raises(ValueError, match=r"family: got dict .*; accepted: a lmctr\.Family"):
        lmctr.register_family(values)
    assert families() == before


def test_a_mistyped_module_leaves_no_row():
    values = {"model_type": "retried", "stem": "FieldSum", "input": "tabular", "says": "", "paper": "p https://a.b"}
    before = families()
    for module in ("no_such_package.modeling", "lmctr.auto"):
        with pytest.raises((ImportError, AttributeError)):
            lmctr.register_family(Family(**values | {"stem": "Retried"}, module=module))
        assert families() == before


def test_a_family_of_an_installed_package(tmp_path):
    """By its entry point it is there for every process, the command line's too; one that cannot be loaded is a warning."""
    (tmp_path / "mine").mkdir()
    row = 'Family("mine", "Mine", "tabular", "fields", "Me: Mine. https://a.b", module="mine.modeling")'
    (tmp_path / "mine/__init__.py").write_text(f"from lmctr.models.families import Family\nFAMILY = {row}\n")
    (tmp_path / "mine/modeling.py").write_text(
        "from lmctr.models.dnn.configuration_dnn import DNNConfig\n"
        "from lmctr.models.dnn.modeling_dnn import DNNForCTR, DNNModel, DNNPreTrainedModel\n"
        "class MineConfig(DNNConfig):\n    model_type = 'mine'\n"
        "class MinePreTrainedModel(DNNPreTrainedModel):\n    config_class = MineConfig\n"
        "class MineModel(DNNModel):\n    config_class = MineConfig\n"
        "class MineForCTR(DNNForCTR):\n    config_class = MineConfig\n"
    )
    for name, target in {"mine": "mine:FAMILY", "broken": "no_such_module:FAMILY"}.items():
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[lmctr.families]\n{name} = {target}\n")
    code = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    import lmctr\n"
        "from transformers import AutoConfig\n"
        f"lmctr.MineForCTR(lmctr.MineConfig(vocab_sizes=[5, 5], hidden_units=[4])).save_pretrained({str(tmp_path / 'saved')!r})\n"
        f"print(type(lmctr.AutoModelForCTR.from_pretrained({str(tmp_path / 'saved')!r})).__name__, 'mine' in lmctr.list_models())\n"
        "print([str(one.message) for one in told if 'broken' in str(one.message)])\n"
        "import pandas as pd\n"
        "from lmctr.hub.model_card import build_card\n"
        "frame = pd.DataFrame({'a': list('xyyx') * 50, 'b': list('uuvvw') * 40, 'click': [0, 1, 1, 0, 0] * 40})\n"
        f"run = lmctr.runs.train(frame, model='mine', label='click', output_dir={str(tmp_path / 'run')!r}, quiet=True)\n"
        f"print(run.metrics['versions']['mine'], [line for line in build_card({str(tmp_path / 'run')!r}).splitlines() if 'pip install' in line])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = warm.fresh(code, environment=environment)
    assert done.returncode == 0, done.stderr
    first, second, *_, last = done.stdout.strip().splitlines()
    assert first == "MineForCTR True"
    assert last == "1.0 ['pip install lmctr mine']"
    assert "the model family 'broken' (no_such_module:FAMILY) is left out: No module named 'no_such_module'" in second
    words = ["lmctr", "train", "--list-keys", "mine"]
    code = f"import sys; sys.argv = {words}; from lmctr.__main__ import main; assert 'lmctr.auto' not in sys.modules; sys.exit(main())"
    done = warm.fresh(code, environment=environment)
    assert done.returncode == 0, done.stderr
    assert "hidden_units" in done.stdout


def test_an_unknown_family_names_the_nearest():
    with pytest.raises(ValueError, match="no model family 'deep_fm'; did you mean 'deepfm'"):
        family_of("deep_fm")


def test_every_row_has_its_classes():
    for family in families():
        loaded = [family.load(part) for part in CLASSES]
        assert [cls.__name__ for cls in loaded] == [family.stem + part for part in CLASSES]
        assert loaded[0].model_type == family.model_type
        assert loaded[1].config_class is loaded[0]
        assert family.says
        assert family.url.startswith("https://")
        assert set(family.benchmark) <= set(vars(loaded[0])) | set(loaded[0].__dataclass_fields__)


def literals(tree):
    """Collections that are written out in a file."""
    return (node for node in ast.walk(tree) if isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)))


def test_no_other_file_lists_families():
    names = {family.model_type for family in families()}
    root = Path(lmctr.__file__).parent
    found = {}
    for path in root.rglob("*.py"):
        for node in literals(ast.parse(path.read_text())):
            strings = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)} & names
            if len(strings) >= 3:
                found[path.relative_to(root).as_posix()] = sorted(strings)
    assert list(found) in ([], ["models/families.py"])


def test_a_bare_import_registers_the_families(tmp_path):
    lmctr.DeepFMForCTR(lmctr.DeepFMConfig(vocab_sizes=[5, 5], hidden_units=[4])).save_pretrained(tmp_path)
    code = (
        "import lmctr; from transformers import AutoConfig, AutoModel; "
        f"print(type(AutoConfig.from_pretrained({str(tmp_path)!r})).__name__, type(AutoModel.from_pretrained({str(tmp_path)!r})).__name__)"
    )
    done = warm.fresh(code)
    assert done.stdout.strip() == "DeepFMConfig DeepFMModel", done.stderr


def test_any_use_registers_the_families_where_the_import_did_not():
    code = (
        "import os, sys; sys.argv = ['lmctr']; import lmctr\n"
        "from transformers import AutoConfig; assert 'lmctr.auto' not in sys.modules\n"
        "if not (child := os.fork()):\n    lmctr.DINConfig\nelse:\n    os.waitpid(child, 0); lmctr.runs\n"
        "print(type(AutoConfig.for_model('din')).__name__, flush=True)"
    )
    done = warm.fresh(code)
    assert done.stdout.split() == ["DINConfig"] * 2, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        (["/usr/bin/lmctr", "train"], ["python", "/usr/bin/lmctr", "train"], True),
        (["-m", "train"], ["python", "-u", "-m", "lmctr", "train"], True),
        (["-m"], ["python", "-m", "pytest", "-m", "lmctr"], False),
        (["-m"], ["python", "-m", "lmctr.tools"], False),
        (["train.py", "-m", "lmctr"], ["python", "train.py", "-m", "lmctr"], False),
        (["/x/lmctr_train"], ["python", "/x/lmctr_train"], False),
        (["-c"], ["python", "-c", "import lmctr"], False),
        ([""], ["python"], False),
        ([], ["python"], False),
    ],
)
def test_what_is_taken_for_the_command_line(monkeypatch, program, words, expected):
    monkeypatch.setattr(sys, "argv", program)
    monkeypatch.setattr(sys, "orig_argv", words)
    assert _early.is_command_line() is expected


FINALISED = """class Short:
                def __del__(self):
                    signal.raise_signal(signal.SIGINT)
            Short()
            time.sleep(5)"""


@pytest.mark.parametrize(
    ("name", "comes", "code", "told"),
    [
        ("lmctr._moved", "os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, ""),
        ("lmctr.models.families", "os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, ""),
        ("lmctr.cli.main", "os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, ""),
        ("lmctr.cli.init", "os.kill(os.getpid(), signal.SIGINT)", 130, "interrupted\n"),
        ("lmctr.cli.init", FINALISED, 130, "interrupted\n"),
    ],
)
def test_an_interrupt_while_the_command_line_is_imported_has_no_traceback(tmp_path, name, comes, code, told):
    """It ends the process as a shell knows it; the next one, in the verb, is told, also where it comes while an object is finalised."""
    (tmp_path / "sitecustomize.py").write_text(
        f"""
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background lets it be ignored
class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            {comes}
sys.meta_path.insert(0, Interrupted())
"""
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "lmctr", "--version"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", told)


def test_public_names_are_lazy_and_complete():
    assert lmctr.__all__ == sorted(lmctr.__all__)
    assert set(lmctr.__all__) <= set(dir(lmctr))
    with pytest.raises(AttributeError, match="module 'lmctr' has no attribute 'DeepFN'"):
        lmctr.DeepFN  # noqa: B018


REFUSED = (ValueError, StrictDataclassError)
LEAST = {"tabular": {"vocab_sizes": [8] * 4}, "sequence": {"item_vocab_size": 9}, "text": {"text_config": {"model_type": "bert"}}}  # fmt: skip


@pytest.mark.parametrize("model_type", [family.model_type for family in families()])
def test_values_of_another_type_are_named(model_type):
    """A configuration refuses them by a `ValueError`, by no error of Python's, which would name no key, and by no later one."""
    config_class = family_of(model_type).load("Config")
    given = LEAST.get(family_of(model_type).input, {})
    given = given | ({"num_tokens": 4} if hasattr(config_class, "num_tokens") else {})
    config_class(**given)
    base = {one.name for one in dataclasses.fields(PreTrainedConfig)}
    for name in (one.name for one in dataclasses.fields(config_class) if one.name not in base):
        for value in ("x", {}, [-1], None):
            with contextlib.suppress(*REFUSED):
                config_class(**given | {name: value})
        for value in (10**30, [10**30]):  # no size of a tensor
            with pytest.raises(ValueError, match=rf"{name}(=.*whole numbers of at most 64 bits| must be )"):
                config_class(**given | {name: value})
        for value in (
            object(),
            [1j],
            *(["false"] if config_class.__dataclass_fields__[name].type is bool else ()),
        ):
            with pytest.raises(ValueError, match=rf"^{config_class.__name__}: {name} must be .*, got "):
                config_class(**given | {name: value})


def test_numbers_of_numpy_become_those_of_python(tmp_path):
    config = lmctr.DNNConfig(vocab_sizes=[10, np.int64(5)], embedding_dim=np.int64(8), dropout=np.float32(0.5))
    assert [type(value) for value in (*config.vocab_sizes, config.embedding_dim, config.dropout)] == [
        int,
        int,
        int,
        float,
    ]
    assert lmctr.DNNConfig(vocab_sizes=np.array([10, 5])).vocab_sizes == [10, 5]
    config.save_pretrained(tmp_path)
    assert lmctr.DNNConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task_dropout": "x"}, r"DeepFMConfig: task_dropout must be a number.*, got 'x' \(text\)"),
        ({"num_numeric": {}}, r"DeepFMConfig: num_numeric must be a whole number, got {} \(a mapping\)"),
        ({"initializer_range": None}, "DeepFMConfig: initializer_range must be a number, got null"),
        ({"pretrained_dims": ["x"]}, "DeepFMConfig: pretrained_dims must be .*, got "),
        ({"hidden_units": -3}, "hidden_units"),
        ({"task_names": "click"}, r"task_names must be a list of text or null, got 'click' \(text\)"),
        ({"pretrained_dims": {"C0": 4.5}}, r"pretrained_dims must be a mapping or null, got {'C0': 4.5}"),
        (
            {"embedding_dim": 2**63},
            "embedding_dim=9223372036854775808 is not accepted; use whole numbers of at most 64 bits",
        ),
        ({"dtype": "fp16"}, "DeepFMConfig: dtype='fp16' is not accepted; use a torch.dtype or its name, such as"),
    ],
)
def test_a_value_of_another_type_is_told_with_what_is_accepted(values, message):
    with pytest.raises(ValueError, match=message):
        lmctr.DeepFMConfig(**LEAST["tabular"] | values)
