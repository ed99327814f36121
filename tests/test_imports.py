"""The import layers of the package: who may import whom."""

import ast
from pathlib import Path

import pytest

import lmctr

ROOT = Path(lmctr.__file__).parent
LAYERS = {  # a layer imports lower numbers, or itself
    "utils": 0,
    "configuration_utils": 1,
    "modeling_outputs": 1,
    "modeling_layers": 1,
    "modeling_utils": 1,
    "modeling_ranking_losses": 1,
    "modeling_retrieval": 1,
    "modeling_embeddings": 2,
    "modeling_impressions": 3,
    "modeling_sequence": 2,
    "modeling_target_attention": 3,
    "modeling_tabular": 3,
    "modeling_tokens": 3,
    "models": 4,
    "data": 4,
    "evaluation": 4,
    "auto": 5,
    "__init__": 6,
    "analysis": 7,
    "scaling": 7,
    "hub": 7,
    "serving": 7,
    "training": 8,
    "cli": 9,
    "__main__": 10,
}
ONLY_IN = {
    "matplotlib": ("analysis/plots",),
    "peft": ("training/",),
    # Modules for `evaluate.load` describe their inputs with `datasets.Features`; lmctr itself never imports them.
    "datasets": ("data/", "cli/", "evaluation/evaluate_modules/"),
}
FILES = sorted(ROOT.rglob("*.py"))


def imports_of(path):
    """(line, module) of every import in a file, relative ones resolved; imports for type checkers only are left out."""
    package = ["lmctr", *path.relative_to(ROOT).parent.parts]
    tree = ast.parse(path.read_text())
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(id(inner) for inner in ast.walk(node))
    for node in ast.walk(tree):
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
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_layers(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in LAYERS, f"{own} has no place among the layers"
    wrong = []
    for line, module in imports_of(path):
        unit = unit_of(module)
        if unit not in (None, own) and LAYERS[unit] >= LAYERS[own]:
            wrong.append(f"{path}:{line} {own} imports {module}")
        name = module.split(".")[0]
        place = path.relative_to(ROOT).as_posix()
        if name in ONLY_IN and not place.startswith(ONLY_IN[name]):
            wrong.append(f"{path}:{line} imports {name}, which belongs in {', '.join(ONLY_IN[name])}")
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_families_do_not_import_each_other(path):
    parts = path.relative_to(ROOT).parts
    if parts[0] != "models" or len(parts) < 3:
        return
    families = {folder.name for folder in (ROOT / "models").iterdir() if folder.is_dir()} - {"__pycache__", parts[1]}
    assert [module for _, module in imports_of(path) if families & set(module.split(".")[2:3])] == []


def test_no_file_is_too_long():
    assert [str(p) for p in FILES if len(p.read_text().splitlines()) > 800] == []


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
