"""The documentation site: it builds without a warning, and its pages name only what there is."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import warm

from lmctr.cli.main import VERBS, build_parser, split_overrides
from lmctr.models.families import families

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CARDS = [path for path in sorted((ROOT / "model_cards").glob("*.md")) if path.name != "template.md"]


def place_of(page):
    return page.relative_to(ROOT).as_posix()


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    # with --quiet a build counts no warnings, and strict means nothing
    warm.run("-m", "mkdocs", "build", "--strict", "--site-dir", folder, folder=ROOT)
    return folder


@pytest.mark.slow
def test_site_has_every_verb_family_and_class(site):
    for verb in VERBS:
        assert (site / "reference" / "cli" / verb / "index.html").is_file()
    for family in families():
        keys = (site / "reference" / "recipes" / family.model_type / "index.html").read_text()
        assert "model." in keys
        names = (site / "reference" / "python" / f"lmctr.models.{family.model_type}" / "index.html").read_text()
        assert f"{family.stem}Config" in names
        assert f"{family.stem}ForCTR" in names
    for name in (
        "lmctr.hub.publish",
        "lmctr.evaluation.significance",
        "lmctr.studies.search",
        "lmctr.studies.grids.run",
    ):
        assert (site / "reference" / "python" / name / "index.html").is_file()
    assert "rank_collapse" in (site / "examples" / "index.html").read_text()
    assert not list(site.rglob("*.py"))


@pytest.mark.slow
def test_undocumented_name_is_refused(monkeypatch):
    pytest.importorskip("mkdocs")
    hooks = load("hooks")
    hooks.classes()

    class Silent:
        pass

    monkeypatch.setattr(hooks, "public_names", lambda: {"lmctr": {"Silent": Silent}})
    with pytest.raises(hooks.UndocumentedError, match=r"lmctr\.Silent"):
        hooks.classes()


@pytest.mark.parametrize("name", ["views", "sinks", "sumi", "ladder"])
def test_pictures_are_those_of_the_script(name):
    assert (ROOT / "docs" / "concepts" / f"{name}.svg").read_text() == load("pictures").PICTURES[name]()


@pytest.mark.parametrize("page", PAGES, ids=place_of)
def test_commands_of_a_page_are_understood(page):
    parser, _ = build_parser()
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.S):
        for text in block.splitlines():
            words, _ = split_overrides(shlex.split(text, comments=True))
            if words[:1] == ["lmctr"]:
                parser.parse_args(words[1:])
                for word in words:
                    if word.startswith("recipes/"):
                        assert (ROOT / word).is_file()


def test_flags_are_written_with_hyphens():
    """In pages, cards, recipes and messages; the old spellings are understood for one release, and shown nowhere."""
    texts = [*PAGES, *(path for kind in ("model_cards", "recipes", "lmctr") for path in (ROOT / kind).rglob("*"))]
    found = set()
    for path in texts:
        if path.suffix in (".md", ".yaml", ".py") and path != ROOT / "lmctr/cli/options.py":
            found |= {
                (place_of(path), flag) for flag in re.findall(r"(?<![\w-])--[a-z]+_[a-z_]+\b(?!\.)", path.read_text())
            }
    assert {(place, flag) for place, flag in found if flag != "--config_file"} == set()  # that one is accelerate's


@pytest.mark.parametrize("page", PAGES, ids=place_of)
def test_python_of_a_page_compiles(page):
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.S | re.M)
    assert len(blocks) == page.read_text().count("```python")
    for block in blocks:
        assert compile(block, str(page), "exec").co_names  # it does something


def test_lines_of_prose_are_short():
    """At most 160 characters, in pages, cards and the changelog; tables and code as they are, and the template of cards, whose lines are expressions."""
    for page in [*PAGES, *CARDS, ROOT / "CHANGELOG.md"]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        found = [line for line in prose.splitlines() if len(line) > 160 and not line.startswith("|")]
        assert found == [], place_of(page)


def test_cards_are_short():
    """At most 900 words each: tables in full stand in their CSV files."""
    words = {card.name: len(re.findall(r"\S*\w\S*", card.read_text())) for card in CARDS}
    assert words["quality.md"] > 500
    assert {name: count for name, count in words.items() if count > 900} == {}


def test_the_index_of_results_says_what_the_cards_say():
    """Each figure of its table stands in the card of its row, or of the row above it."""
    rows, card = [], None
    for line in (ROOT / "model_cards" / "README.md").read_text().splitlines():
        if line.startswith("| ") and (link := re.search(r"\]\((\w+\.md)\)", line) or card):
            card = link if isinstance(link, str) else link[1]
            known = (ROOT / "model_cards" / card).read_text()
            rows.append([figure for figure in re.findall(r"\.\d{4}\b", line) if figure not in known])
    assert len(rows) > 10
    assert [figures for figures in rows if figures] == []
