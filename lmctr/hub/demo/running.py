"""`lmctr demo`: the page of a run, or a folder that is a Space of it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from lmctr import __version__
from lmctr.hub.options import DemoOptions
from lmctr.hub.remote import changed_config
from lmctr.models.families import family_of
from lmctr.runs.answers.served import ServedModel, bound
from lmctr.runs.download import open_model
from lmctr.runs.folder import MANIFEST, RunFolder
from lmctr.runs.loading import load_folder
from lmctr.utils.files import whole_folder, write_json

from .examples import EXAMPLES_FILE, Examples, card_example, kept_examples, run_examples
from .page import build_page, plain_theme

_APP = '''"""The page of a CTR model; `lmctr demo model` shows it on your own machine."""

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from lmctr.hub.demo.running import open_page

page, theme = open_page("model")

if __name__ == "__main__":
    page.launch(theme=theme)
'''


def demo(options: DemoOptions) -> int:
    """Show the page until Ctrl-C, or write the Space.

    Raises:
        ImportError: the extra `demo` is not installed.
        FileNotFoundError, ValueError: what [`ServedModel`] raises; a folder that is there already.
        OSError: the port is taken.
    """
    if options.space is not None:
        count = write_space(options.run, options.space, options.users)
        print(
            f"wrote {options.space} with {count} request{'s' * (count != 1)} to begin with; look at it with: python {Path(options.space) / 'app.py'}"
        )
        print(f"push it with: hf upload USER/NAME {options.space} . --repo-type space")
        return 0
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    with bound(options.host, options.port) as address:  # one that is taken is told before the model is loaded
        port = address.getsockname()[1]
        page, theme = open_page(options.run, options.device, 20 if options.users is None else options.users)
    _, address, _ = page.launch(
        server_name=options.host, server_port=port, theme=theme, prevent_thread_lock=True, quiet=True
    )
    print(f"showing {options.run} at {address} (Ctrl-C ends it)", flush=True)
    page.block_thread()
    return 0


def open_page(run: str, device: str | None = None, users: int = 20) -> tuple[Any, Any]:
    """The page of a run folder, a folder that `from_pretrained` loads, or a Hub id, and its theme.

    Args:
        device: as torch names it; default: cuda where there is one.
        users: how many requests of the run's test part there are to begin with.
    """
    served = ServedModel(run, device)
    folder = open_model(run)
    return build_page(served, _examples(folder, served.processor, users)), plain_theme()


def _examples(folder: RunFolder, processor: Any, users: int) -> Examples:
    if (folder.path / EXAMPLES_FILE).is_file():
        return kept_examples(folder.path / EXAMPLES_FILE)
    if users and folder.started:
        try:
            found = run_examples(folder, processor, users)
        except (FileNotFoundError, ValueError) as error:
            print(
                f"warning: the run's data cannot be read, so there is one made-up request to begin with: {error}",
                file=sys.stderr,
            )
        else:
            if found.requests:
                return found
    return card_example(folder, processor)


def write_space(run: str, target: str | Path, users: int | None = None) -> int:
    """A folder that a Space of the Hub can be: the page, what it needs installed, and the model as `lmctr push` shares it.

    Args:
        target: a new folder. users: how many users (rows, impressions) of the run's test part stand in it, for all to see; default none.

    Returns:
        Number of requests to begin with.

    Raises:
        FileExistsError: the folder holds something. FileNotFoundError, ValueError: what [`open_run`] and [`run_examples`] raise.
    """
    folder = open_model(run, refuse_pickles=True)
    folder.verify()
    target = Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"--space {target}: is there already; give a new folder, or delete it first")
    _, processor = load_folder(folder)
    examples = run_examples(folder, processor, users) if users else card_example(folder, processor)
    with whole_folder(target) as made:
        _write_files(folder, made, examples)
    return len(examples.requests)


def _write_files(folder: RunFolder, target: Path, examples: Examples) -> None:
    changed = changed_config(folder)
    for name in folder.upload_files():
        place = target / "model" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name.name == MANIFEST:
            place.write_bytes(folder.shared_manifest(changed))
        elif name.as_posix() in changed:
            place.write_bytes(changed[name.as_posix()])
        else:
            shutil.copyfile(folder.path / name, place)
    write_json(target / "model" / EXAMPLES_FILE, {"requests": examples.requests, "names": examples.names})
    family = family_of(folder.model_type)
    (target / "app.py").write_text(_APP, encoding="utf-8")
    needs = [f"lmctr[demo]>={__version__}", *family.packages, ""]
    (target / "requirements.txt").write_text("\n".join(needs), encoding="utf-8")
    head = {"title": f"{family.title} click prediction", "sdk": "gradio", "app_file": "app.py", "tags": "[lmctr, ctr]"}
    lines = ["---", *(f"{key}: {value}" for key, value in head.items()), "---", "", family.says.capitalize() + ".", ""]
    (target / "README.md").write_text("\n".join(lines), encoding="utf-8")
