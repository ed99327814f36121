"""What `mkdocs build` does beside rendering: the reference is made from the code, and files of the repository that are pages get in.

The build fails where a public name, a recipe key or a flag says nothing of itself (`UndocumentedError`), and, being strict, on broken links.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import lmctr
from lmctr.cli.main import build_parser
from lmctr.models.families import INPUTS, families, public_classes
from lmctr.runs.keys import Key, recipe_keys
from lmctr.utils.lazy import load_target

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("data", "runs", "serving", "analysis", "statistics")
_SCALING = ("fits", "surface", "cost", "load", "cost_curve", "revenue", "design", "allocation", "flops", "inputs")
_EVALUATION = ("metrics", "ranking_metrics", "significance", "comparison", "slices")
_STUDIES = ("grids.file", "grids.run", "grids.report", "search", "report", "compare", "scaling.ladder")
MODULES = tuple(
    f"lmctr.{room}.{name}"
    for room, names in {
        "evaluation": _EVALUATION,
        "scaling": _SCALING,
        "training": ("lora", "optim", "tokenizers"),
        "studies": _STUDIES,
        "hub": ("model_card", "publish", "export"),
    }.items()
    for name in names
)
# Pages that stand elsewhere in the repository, and where the site has them.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"^(```.*?^```$)", re.DOTALL | re.MULTILINE)


class UndocumentedError(PluginError):
    """Something public has no words."""


def on_files(files: Files, config: Any) -> Files:
    """Adds the reference, the examples, the cards and other pages of the repository."""
    pages = {target: (ROOT / source).read_text() for source, target in repository_pages().items()}
    for name, content in (pages | examples() | verbs() | recipes() | classes()).items():
        files.append(File.generated(config, name, content=content))
    for path in sorted((ROOT / "model_cards").rglob("*")):
        if path.is_file() and path.suffix != ".md":
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links between files of the repository into links between pages; what is no page is named as code."""
    places = repository_pages()
    source = {target: source for source, target in places.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def turned(match: re.Match) -> str:
        text, target, anchor = match.groups(default="")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        page_of = places.get(path, path.removeprefix("docs/") if path.startswith(("docs/", "model_cards/")) else None)
        if page_of is not None and files.get_file_from_path(page_of) is not None:
            return f"[{text}]({posixpath.relpath(page_of, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"
        if (page_of is None and (ROOT / path).exists()) or (ROOT / path).is_dir():
            return text if "`" in text else f"`{text}`"
        return match.group()  # broken: the strict build says so

    parts = _CODE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(turned, part) for part in parts)


def repository_pages() -> dict[str, str]:
    """Files outside docs/ that are pages, and where."""
    cards = sorted((ROOT / "model_cards").glob("*.md"))
    return PAGES | {
        path: path for path in (f"model_cards/{card.name}" for card in cards) if not path.endswith("template.md")
    }


def examples() -> dict[str, str]:
    """A page per script of docs/examples: its first words, its command and its code."""
    pages, lines = {}, ["# Examples", "", "Scripts that the tests run as they stand.", ""]
    for path in sorted((ROOT / "docs" / "examples").glob("*.py")):
        text = path.read_text()
        title, _, rest = text.split('"""')[1].partition("\n")
        code = text.split('"""', 2)[2].strip()
        title = title.rstrip(".")
        pages[f"examples/{path.stem}.md"] = (
            f"# {title}\n{rest}\n```bash\npython docs/examples/{path.name}\n```\n\n```python\n{code}\n```\n"
        )
        lines.append(f"- [{title}]({path.stem}.md): {' '.join(rest.split('.')[0].split())}.")
    return pages | {"examples/index.md": "\n".join(lines) + "\n"}


# ---- verbs ---------------------------------------------------------------------------------------------------------


def verbs() -> dict[str, str]:
    """A page per verb of the command line."""
    parser, _ = build_parser()
    chosen = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    says = {action.dest: action.help for action in chosen._choices_actions}
    index = ["# Command line", "", "| verb | what it does |", "|---|---|"]
    pages = {}
    for name, verb in chosen.choices.items():
        index.append(f"| [`lmctr {name}`]({name}.md) | {_cell(says[name])} |")
        pages[f"reference/cli/{name}.md"] = "\n".join(_verb(verb, 1)) + "\n"
    return pages | {"reference/cli/index.md": "\n".join(index) + "\n"}


def _verb(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    os.environ["COLUMNS"] = "110"
    yield from ("#" * level + f" {parser.prog}", "", parser.description or "", "")
    yield from ("```text", parser.format_usage().removeprefix("usage: ").strip(), "```", "")
    rows, below = [], None
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = action
        elif not isinstance(action, argparse._HelpAction):
            if not action.help:
                raise UndocumentedError(f"{parser.prog}: {action.dest} has no help")
            names = [f"`{name}`" for name in action.option_strings if "_" not in name]
            choices = f" One of: {', '.join(map(str, action.choices))}." if action.choices else ""
            shown = ", ".join(names) or f"`{action.metavar or action.dest}`"
            rows.append(
                f"| {shown} | {_cell(action.help % {'default': action.default, 'prog': parser.prog})}{choices} |"
            )
    if rows:
        yield from ("| argument | meaning |", "|---|---|", *rows, "")
    if parser.epilog:
        yield from ("```text", parser.epilog.strip(), "```", "") if "\n" in parser.epilog else (parser.epilog, "")
    if below is not None:
        for inner in below.choices.values():
            yield from _verb(inner, level + 1)


# ---- recipe keys ---------------------------------------------------------------------------------------------------


def recipes() -> dict[str, str]:
    """A page of model keys per family, and one of data and training keys per kind of input."""
    pages = {}
    index = [
        "# Recipe keys",
        "",
        "A recipe is a YAML file with three groups. Keys of `data` and `training` depend on the kind of input, those",
    ]
    index += ["of `model` on the family; `lmctr train --list-keys FAMILY` prints them all.", ""]
    for kind in INPUTS:
        rows = families(kind)
        groups = [_group(recipe_keys(rows[0].model_type), group) for group in ("data", "training")]
        about = f"# Data and training: {kind}\n\nOf the families {', '.join(row.title for row in rows)}.\n\n"
        pages[f"reference/recipes/{kind}.md"] = about + "\n".join(
            f"## {g}\n\n{t}" for g, t in zip(("data", "training"), groups)
        )
        index += [f"## {kind}", "", f"[`data` and `training`]({kind}.md); `model` of", ""]
        for row in rows:
            index.append(f"- [{row.title}]({row.model_type}.md): {row.says}")
            table = _group(recipe_keys(row.model_type), "model")
            pages[f"reference/recipes/{row.model_type}.md"] = (
                f"# {row.title}\n\n{row.says[:1].upper()}{row.says[1:]}.\n\n{row.paper}\n\n## model\n\n{table}\n"
                f"`data` and `training`: see [{kind}]({kind}.md).\n"
            )
        index.append("")
    return pages | {"reference/recipes/index.md": "\n".join(index)}


def _group(keys: list[Key], group: str) -> str:
    lines = ["| key | accepts | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        if key.name.startswith(f"{group}."):
            if not key.meaning:
                raise UndocumentedError(f"recipe key {key.name} has no meaning")
            default = "must be given" if key.default is ... else f"`{_cell(str(key.default))}`"
            lines.append(f"| `{key.name}` | {_cell(key.accepts)} | {default} | {_cell(key.meaning)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    text = " ".join(str(text).split()).replace("|", "\\|")
    return re.sub(r"<(?=\w)", "&lt;", re.sub(r"\[(`[^`]+`)\](\[[^\]]*\])?(?!\()", r"\1", text))


# ---- classes and functions -----------------------------------------------------------------------------------------


def public_names() -> dict[str, dict[str, Any]]:
    """Page -> public name -> the object."""
    own = {
        name: getattr(lmctr, name) for name in lmctr.__all__ if name not in public_classes() and name != "__version__"
    }
    pages = {"lmctr": own}
    for room in ROOMS:
        module = importlib.import_module(f"lmctr.{room}")
        names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
        pages[f"lmctr.{room}"] = {name: getattr(module, name) for name in names}
    for name in MODULES:
        module = importlib.import_module(name)
        own = (key for key, value in vars(module).items() if getattr(value, "__module__", None) == name)
        keys = getattr(module, "__all__", None) or [key for key in own if not key.startswith("_")]
        pages[name] = {key: getattr(module, key) for key in keys}
    for family in families():
        parts = {
            name: load_target(target) for name, target in public_classes().items() if name.startswith(family.stem)
        }
        pages[f"lmctr.models.{family.model_type}"] = {
            name: value
            for name, value in parts.items()
            if value.__module__.startswith(f"lmctr.models.{family.model_type}.")
        }
    return pages


def classes() -> dict[str, str]:
    """A page per room and per family, whose names mkdocstrings renders, each on the first page that has it."""
    pages, index = {}, ["# Python", "", "Names of `lmctr`, of its rooms, and of each family.", ""]
    rendered: set[str] = set()
    for page, names in public_names().items():
        lines, plain = [f"# {page}", ""], []
        for name, value in sorted(names.items()):
            if not (inspect.isclass(value) or inspect.isfunction(value)):
                plain.append(f"- `{page}.{name}`: {type(value).__name__}")
                continue
            if not (value.__doc__ or "").strip():
                raise UndocumentedError(f"{page}.{name} has no docstring")
            place = f"{value.__module__}.{value.__qualname__}"
            if place in rendered:
                plain.append(f"- [`{page}.{name}`][{place}]")
            else:
                rendered.add(place)
                lines += [f"::: {place}", ""]
        pages[f"reference/python/{page}.md"] = "\n".join(lines + plain) + "\n"
        index.append(f"- [`{page}`]({page}.md): {', '.join(f'`{name}`' for name in sorted(names))}")
    return pages | {"reference/python/index.md": "\n".join(index) + "\n"}
