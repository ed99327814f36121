"""Options of the verbs `card`, `push`, `export` and `demo`."""

from __future__ import annotations

from dataclasses import dataclass

from lmctr.utils.options import DEVICE, MODEL, check_port, option

EXPORT_FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
EMBEDDINGS = "embeddings"


@dataclass(kw_only=True)
class _CardContent:
    licence: str | None = option(
        "licence of the weights as the Hub calls it: apache-2.0, cc-by-nc-4.0, other, ...",
        None,
        metavar="ID",
        short=("--license",),
    )
    seeds: list[str] = option(
        "runs of the same recipe with other seeds: the card shows mean and spread", [], metavar="RUN"
    )
    force: bool = option("replace a README.md that was edited by hand", False)


@dataclass
class CardOptions(_CardContent):
    """Write RUN/README.md, filled from the run's config, recipe, data and metrics. Of a Hub id the card that the repository has is printed."""

    run: str = option(
        "run folder, another folder that from_pretrained loads, or a Hub id (user/name[@revision])",
        positional=True,
        metavar="RUN",
    )
    repo_id: str | None = option("repository that the loading example names", None, metavar="USER/NAME")
    print: bool = option("print the card instead of writing it", False)
    check: bool = option(
        "write no card; say what the folder holds, and whether it may be loaded, without loading it", False
    )


@dataclass
class PushOptions(_CardContent):
    """Reload the run and compare its logits, write its model card, and upload weights (safetensors), configurations, tokenizer
    and card. The access token is that of `hf auth login` or HF_TOKEN."""

    run: str = option("run folder", positional=True, metavar="RUN")
    repo_id: str = option("repository; made where it does not exist", positional=True, metavar="USER/NAME")
    private: bool = option("make a new repository private; a public one that is there is refused", False)
    revision: str | None = option(
        "branch to commit to, made where it does not exist; or refs/pr/N", None, metavar="BRANCH"
    )
    commit_message: str | None = option("message of the commit", None, metavar="TEXT")
    coarse_statistics: int | None = option(
        "of the items' statistics share every N-th step of their course only, not each event's second and label: histories are then counted "
        "against means of up to N events ago",
        None,
        metavar="N",
    )
    dry_run: bool = option("make every check, write and upload nothing", False)


@dataclass
class ExportOptions:
    """Write a model as one graph without Python, with its processor, the names and axes of its inputs (export.json) and the largest
    difference to the model's logits over random requests (parity.json). Every family can be exported. Or, of tables and sequences, the vectors of each
    field's values, such as items and users, as a Parquet file for each field; of two towers those of the rows of --users and --ads."""

    run: str = option(
        "run folder, another folder that from_pretrained loads, or a Hub id (user/name[@revision])",
        positional=True,
        metavar="RUN",
    )
    format: str = option(
        "onnx (needs lmctr[export]), torch for torch.export, or embeddings",
        "onnx",
        choices=(*EXPORT_FILES, EMBEDDINGS),
    )
    output: str | None = option(
        "folder to write (default RUN/export-FORMAT; of a Hub id ./NAME-export-FORMAT)", None, metavar="FOLDER"
    )
    users: str | None = option(
        "embeddings of two towers: a table of users, to be written with a vector for each row, whose inner product with an ad's is the logit",
        None,
        metavar="FILE",
    )
    ads: str | None = option("the same of ads", None, metavar="FILE")

    def __post_init__(self) -> None:
        for name in ("users", "ads"):
            if getattr(self, name) is not None and self.format != EMBEDDINGS:
                raise ValueError(
                    f"--{name} is for --format {EMBEDDINGS}; a graph ({self.format}) takes its inputs later"
                )


@dataclass
class DemoOptions:
    """Show a model in the browser: choose a user or paste a history, see the candidates ranked and what the model looked at. With
    --space, write a folder that can be pushed as a Space of the Hub. Needs the extra `demo`."""

    run: str = option(MODEL, positional=True, metavar="RUN")
    host: str = option("address to listen at; 0.0.0.0 for all of the machine's", "127.0.0.1")
    port: int = option("port; 0 takes a free one, which is printed", 7860)
    device: str | None = option(DEVICE, None)
    users: int | None = option(
        "how many users (rows, impressions) of the run's test part to choose from (default 20; none in a Space, where all see them)",
        None,
    )
    space: str | None = option("folder to write as a Space, in place of showing the page", None, metavar="FOLDER")

    def __post_init__(self) -> None:
        check_port(self)
        if self.users is not None and self.users < 0:
            raise ValueError(f"--users must be at least 0, got {self.users}")
