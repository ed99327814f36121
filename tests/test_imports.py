"""The walls of the package: who may import whom, what stands where. docs/architecture.md draws them."""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

import lmctr

ROOT = Path(lmctr.__file__).parent
LAYERS = {  # a room imports lower numbers, or itself
    "utils": 0,
    "statistics": 0.5,
    "models/common": 1,
    "models": 2,
    "data": 2,
    "evaluation": 2,
    "auto": 3,
    "__init__": 4,
    "analysis": 5,
    "scaling": 5,
    "serving": 5,
    "training": 6,
    "runs": 7,
    "hub": 8,
    "server": 8,
    "studies": 8,
    "benchmarks": 8,
    "cli": 9,
    "__main__": 10,
}
ONLY_IN = {
    "matplotlib": ("analysis/plots",),
    "peft": ("training/",),
    # Modules for `evaluate.load` describe their inputs with `datasets.Features`; lmctr itself never imports them.
    "datasets": ("data/", "evaluation/evaluate_base.py"),
    "argparse": ("cli/",),
    **dict.fromkeys(("fastapi", "prometheus_client", "starlette", "uvicorn"), ("server/",)),
    "gradio": ("hub/demo/",),
    "onnxruntime": ("hub/export.py",),
    "optuna": ("studies/search.py",),
    "sentence_transformers": ("data/logs/text_encoders.py",),
}
# Packages of extras, which only a part that is used may import; what serves HTTP is imported for that alone.
WHEN_USED = ("gradio", "matplotlib", "onnx", "onnxruntime", "onnxscript", "optuna", "sentence_transformers", "tensorboard", "trackio", "uvicorn")  # fmt: skip
NOT_IN_CLI = ("numpy", "torch", "pyarrow")
FILES = sorted(ROOT.rglob("*.py"))
# Files that still break a wall; each is mended and taken out of this list.
DEBTS: set[str] = set()


def place_of(path):
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(path):
    return list(ast.walk(tree_of(path)))


@functools.cache
def imports_of(path, with_types=True):
    """(line, module) of every import in a file, relative ones resolved."""
    return list(_imports_of(path, with_types))


def _imports_of(path, with_types):
    package = ["lmctr", *path.relative_to(ROOT).parent.parts]
    skipped = set()
    if not with_types:
        for node in nodes_of(path):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped.update(id(inner) for inner in ast.walk(node))
    for node in nodes_of(path):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def unit_of(module):
    """The entry of LAYERS that a dotted module belongs to, or None outside the package."""
    parts = module.split(".")
    if parts[0] != "lmctr":
        return None
    if parts[1:3] == ["models", "common"]:
        return "models/common"
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__"


def unit_of_file(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return unit_of(".".join(("lmctr", *parts)))


def test_extras_are_imported_when_they_are_used():
    found = []
    for path in FILES:
        body = tree_of(path).body
        for node in [*body, *(inner for outer in body if isinstance(outer, ast.Try) for inner in outer.body)]:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found += [f"{path}:{node.lineno} {name}" for name in names if name.split(".")[0] in WHEN_USED]
    assert found == []


def test_layers():
    broken = {place_of(path): wrong for path in FILES if (wrong := breaks_of_layers(path))}
    assert {place: wrong for place, wrong in broken.items() if place not in DEBTS} == {}
    assert broken.keys() >= DEBTS  # what is mended is no debt any more


def breaks_of_layers(path):
    own = unit_of_file(path)
    wrong = []
    for line, module in imports_of(path, with_types=False):
        unit = unit_of(module)
        # `from lmctr import X` reads the package's own name, which every file may know; X is judged by itself
        if unit not in (None, own) and LAYERS[unit] >= LAYERS[own] and module != "lmctr":
            wrong.append(f"{path}:{line} {own} imports {module}")
        name = module.split(".")[0]
        if name in ONLY_IN and not place_of(path).startswith(ONLY_IN[name]):
            wrong.append(f"{path}:{line} imports {name}, which belongs in {', '.join(ONLY_IN[name])}")
        if own == "cli" and name in NOT_IN_CLI:
            wrong.append(f"{path}:{line} the command line imports {name}")
        if own not in ("cli", "__main__") and module == "lmctr.cli.main":
            wrong.append(f"{path}:{line} calls the command line")
    return wrong


def test_families_do_not_import_each_other():
    families = {folder.name for folder in (ROOT / "models").iterdir() if folder.is_dir()} - {"__pycache__", "common"}
    wrong = []
    for path in (ROOT / "models").glob("*/**/*.py"):
        others = families - {path.relative_to(ROOT).parts[1]}
        wrong += [f"{path}: {module}" for _, module in imports_of(path) if others & set(module.split(".")[2:3])]
    assert wrong == []


def circles(graph):
    """Groups of nodes that lead back to themselves (Tarjan's strongly connected components of two or more)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = [stack.pop()]
            while part[-1] != node:
                part.append(stack.pop())
            if len(part) > 1:
                found.append(sorted(part))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_no_circles_among_files():
    names = {
        ".".join(("lmctr", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in FILES
    }
    graph = {
        name: {
            module
            for _, module in imports_of(path)
            if module in names and module != name and names[module].name != "__init__.py"
        }
        for name, path in names.items()
    }
    assert circles({"a": {"b"}, "b": {"a"}}) == [["a", "b"]]
    assert circles(graph) == []


def test_a_public_class_is_defined_once():
    places = defaultdict(list)
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(place_of(path))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_files_are_short():
    lengths = {place_of(path): len(path.read_text().splitlines()) for path in FILES}
    assert {place: length for place, length in lengths.items() if length > 800} == {}
    commands = {place: length for place, length in lengths.items() if place.startswith("cli/")}
    assert {place: length for place, length in commands.items() if length > 150} == {}
    assert sum(commands.values()) <= 1400


def statements(path):
    """(line number, text) of the lines of a file's functions and methods, without signatures, docstrings, blank lines and comments."""
    lines, wanted = path.read_text().splitlines(), set()
    for node in nodes_of(path):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[ast.get_docstring(node) is not None :]
            wanted.update(line for part in body for line in range(part.lineno, part.end_lineno + 1))
    texts = ((number, lines[number - 1].strip()) for number in sorted(wanted))
    return [(number, text) for number, text in texts if text and not text.startswith("#")]


def test_no_six_equal_lines_in_two_files():
    places = defaultdict(set)
    for path in FILES:
        found = statements(path)
        for run in zip(*(found[start:] for start in range(6))):
            if run[-1][0] - run[0][0] < 9:  # of one function
                places[tuple(text for _, text in run)].add(place_of(path))
    assert {
        files: lines for lines, files in ((run, tuple(where)) for run, where in places.items() if len(where) > 1)
    } == {}


def test_public_names_exist():
    assert all(hasattr(lmctr, name) for name in lmctr.__all__)
    assert lmctr.list_models() == [
        "astro",
        "autoint",
        "behavior_transformer",
        "ctr_sink",
        "dcnv2",
        "deepfm",
        "din",
        "dlrm_twin",
        "dnn",
        "fat",
        "ffm",
        "hiformer",
        "hstu",
        "rank_elastor",
        "rank_mixer",
        "retrieval_mlp",
        "twin",
        "two_tower",
        "wukong",
        "xdeepfm",
    ]


def test_model_types_are_not_those_of_transformers():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert not set(lmctr.list_models()) & set(CONFIG_MAPPING_NAMES)


def test_lowest_versions_are_tried_in_every_room():
    """.ci/lower-bounds names tests that are there, of every room that works without an extra."""
    script = (ROOT.parent / ".ci" / "lower-bounds").read_text()
    named = re.findall(r"\btests/\S+", script)
    assert [name for name in named if not (ROOT.parent / name).exists()] == []
    rooms = {room.split("/")[0] for room in LAYERS} - {"__init__", "__main__", "auto"}
    elsewhere = {"utils", "training", "studies"}  # tests/cli/test_train.py and test_grid.py go through them
    extra = {"server", "benchmarks"}
    assert rooms - elsewhere - extra <= {name.split("/")[1] for name in named}


# ---- tables -------------------------------------------------------------------------------------------------------------------

BANKS = ("TableBank", "ZeroBank")
READS = (
    "embedding",
    "embedding_bag",
    "gather",
    "index_select",
    "narrow",
    "take",
    "take_along_dim",
    "index_copy_",
    "index_add_",
)


def last_name(node):
    """The last word of `a.b[c].d` and of calls like `a.weight.detach()`, which are read through."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = (
            node.func.value
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            else getattr(node, "value", None)
        )
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def table_names(trees):
    """The names under which the package holds tables: what is assigned from a bank or from many of them, and loops over `table_banks`."""
    found = {"table", "bank"}
    for tree in trees:
        for node in ast.walk(tree):
            made = (
                (inner for inner in ast.walk(node.value) if isinstance(inner, ast.Call))
                if isinstance(node, ast.Assign)
                else ()
            )
            if any(last_name(call.func) in BANKS for call in made):
                found |= {last_name(target) for target in node.targets}
    return found - {None}


def rows_read(tree, tables):
    """Lines that take rows of the weight of a table, also one that was given a name."""

    def is_weight(node, names):
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            node = node.func.value  # .detach(), .float()
        if isinstance(node, ast.Name):
            return node.id in names
        if isinstance(node, ast.Attribute) and node.attr == "data":
            return is_weight(node.value, names)
        return isinstance(node, ast.Attribute) and node.attr == "weight" and last_name(node.value) in tables

    for scope in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] + [tree]:
        nodes = list(ast.walk(scope)) if scope is not tree else list(tree.body)
        names = set()
        for node in nodes:
            if isinstance(node, ast.Assign) and is_weight(node.value, names):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for node in nodes:
            if isinstance(node, ast.Subscript) and is_weight(node.value, names):
                yield node.lineno
            elif isinstance(node, ast.Call) and last_name(node.func) in READS:
                given = [*node.args, *(keyword.value for keyword in node.keywords), getattr(node.func, "value", None)]
                if any(is_weight(value, names) for value in given):
                    yield node.lineno


def test_only_the_table_bank_reads_rows_of_a_table():
    """So that a table whose rows lie on several processes is a table like any other."""
    trees = {path: tree_of(path) for path in FILES}
    tables = table_names(trees.values())
    assert {"table", "items", "bank"} <= tables
    bank = ROOT / "models" / "common" / "table_bank.py"
    others = [path for path in FILES if path != bank and ".weight" in path.read_text()]
    wrong = {f"{place_of(path)}:{line}" for path in others for line in rows_read(trees[path], tables)}
    assert wrong == set()


@pytest.mark.parametrize(("code", "lines"), [
    ("group.table.weight[rows]", [2]),
    ("F.embedding(ids, self.items.weight, padding_idx=0)", [2]),
    ("model.table.weight.detach().index_select(0, ids)", [2]),
    ("torch.gather(input=bank.weight.data, dim=0, index=ids)", [2]),
    ("weight = group.table.weight\n    return weight[ids]", [3]),
    ("F.linear(self.table.weight, projection) + self.linear.weight[2:] + self.table(ids)[:, 0]", []),
])  # fmt: skip
def test_rows_that_are_read_elsewhere_are_found(code, lines):
    found = rows_read(ast.parse(f"def read(self, ids):\n    {code}"), {"table", "items", "bank"})
    assert sorted(set(found)) == lines
