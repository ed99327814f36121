"""The model card of a run, filled from what the run wrote down: `config.json`, `recipe.yaml`, `data.json`, `metrics.json`.

A number that is not in the run is not in the card; a file that the run lacks is a sentence that says so.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from lmctr.evaluation.evaluator import METRIC_TITLES
from lmctr.hub.card_families import CardFamily, card_family
from lmctr.hub.card_results import (
    METRIC_TYPES,
    METRICS,
    better_baselines,
    common_splits,
    main_metric,
    results_table,
    seed_metrics,
    tells_of_model,
)
from lmctr.hub.contents import run_contents
from lmctr.hub.licences import check_licence
from lmctr.hub.options import CardOptions
from lmctr.runs.about import as_text, data_lines, dataset_info, shown, shown_command, without_paths
from lmctr.runs.download import hub_name, is_hub_id, open_model, repository_file
from lmctr.runs.examples import example_call
from lmctr.utils.files import write_text
from lmctr.utils.resources import find_resource

__all__ = ["CARD_FILE", "build_card", "is_edited", "with_repository", "write_card"]

CARD_FILE = "README.md"
_MARK = re.compile(r"\n<!-- written by lmctr, content ([0-9a-f]{16}) -->\n\Z")


def run_card(options: CardOptions) -> int:
    """`lmctr card RUN`: write or print the card. Returns the exit code."""
    content = {"repo_id": options.repo_id, "licence": options.licence, "seed_runs": options.seeds}
    if options.check:
        lines, problems = run_contents(options.run)
        print("\n".join([*lines, *(f"problem: {problem}" for problem in problems)]))
        return 1 if problems else 0
    if is_hub_id(options.run) and (card := repository_file(options.run, CARD_FILE)) is not None:
        if given := [
            f"--{key.replace('_', '-')}" for key in ("licence", "seeds", "repo_id", "force") if getattr(options, key)
        ]:
            raise ValueError(
                f"{', '.join(given)}: of {options.run} the card that it has on the Hub is printed, as it is"
            )
        print(card.read_text(encoding="utf-8"), end="")
        return 0
    if options.print or is_hub_id(options.run):  # a download has no place for a card
        print(build_card(options.run, **content), end="")
        return 0
    path, written = write_card(options.run, overwrite=options.force, **content)
    if not written:
        raise ValueError(f"{path} was edited by hand and is kept; --force replaces it, --print shows the new card")
    print(f"wrote {path}")
    return 0


def build_card(
    run_dir: str | Path, repo_id: str | None = None, licence: str | None = None, seed_runs: Sequence[str | Path] = ()
) -> str:
    """The text of a run's model card, YAML header included.

    Args:
        run_dir: the run folder, another folder that `from_pretrained` loads, or a Hub id, of which the card is made anew: the run's records
            are not shared, the repository's own card (README.md) quotes them.
        repo_id: "user/name" on the Hub (default: that of `run_dir`), for the title and the loading example; without it the example loads the current folder.
        licence: the Hub's identifier of the weights' licence for the header ("apache-2.0", "other"); left out when not given, since it follows
            from the data's and the backbone's terms and cannot be derived from the run.
        seed_runs: folders of further runs of the same recipe with other seeds; the card then shows mean and spread.

    Raises:
        FileNotFoundError, ValueError: a folder that is no finished run, broken files, a licence that the Hub has no
            identifier of, or `seed_runs` whose recipes differ in
            more than the seed, or that read other data.
    """
    check_licence(licence)
    folder = open_model(run_dir, refuse_pickles=True)
    if repo_id is None and (found := hub_name(run_dir)):
        repo_id = found.repo_id
    metrics, data, recipe = folder.metrics(), folder.data(), folder.recipe()
    family = card_family(folder, recipe)
    info = dataset_info(data)
    runs = seed_metrics(folder, recipe, metrics, seed_runs)
    citations = [family.row.paper, info.get("citation")]
    recipe_text = yaml.safe_dump(without_paths(recipe), sort_keys=False, allow_unicode=True) if recipe else None
    text = ModelCard.from_template(
        card_data=_header(family, info, runs, repo_id, licence),
        template_path=str(find_resource("model_cards", "template")),
        title=repo_id.split("/")[-1] if repo_id else f"{family.row.title} on {as_text(info.get('name', 'a CTR log'))}",
        kind=family.row.input,
        row=family.row,
        config=folder.config,
        processor=folder.processor,
        info={key: as_text(value) for key, value in info.items() if value is not None},
        runs=runs,
        fitted=runs[0]["training_samples"] if runs else {},
        behind=better_baselines(runs),
        metric=METRIC_TITLES[main_metric(runs)],
        facts=[tuple(as_text(cell).replace("|", "\\|") for cell in fact) for fact in family.facts()],
        results=results_table(runs),
        repo_id=repo_id,
        example=example_call(folder),
        output=family.output,
        data_lines=data_lines(data),
        training_note=_training_note(metrics, (recipe or {}).get("training") or {}),
        recipe=recipe_text and recipe_text.strip().replace("```", "` ` `"),  # in a block of code, which it cannot end
        citations=[as_text(citation) for citation in citations if citation],
        **family.words(),
    ).content.strip()
    return f"{text}\n\n<!-- written by lmctr, content {_digest(text)} -->\n"


def write_card(run_dir: str | Path, overwrite: bool = False, **options: Any) -> tuple[Path, bool]:
    """Write the card to `RUN/README.md`.

    Args:
        run_dir: the run folder.
        overwrite: replace a README.md that was written or edited by hand; otherwise such a file is kept.
        options: those of `build_card`.

    Returns:
        The path, and whether it was written (False: a card edited by hand was kept).
    """
    path = Path(run_dir) / CARD_FILE
    text = build_card(run_dir, **options)
    if path.is_file() and not overwrite and is_edited(path):
        return path, False
    write_text(path, text)
    return path, True


_PLACEHOLDERS = (  # lines of the template, where no repository was named
    (
        'lmctr.AutoModelForCTR.from_pretrained(".").eval()  # this folder',
        'lmctr.AutoModelForCTR.from_pretrained("{}").eval()',
    ),
    ('AutoProcessor.from_pretrained(".")', 'AutoProcessor.from_pretrained("{}")'),
)


def with_repository(text: str, folder: Path, repo_id: str) -> str:
    """A card edited by hand as it goes to a repository: where `write_card` named the folder, it names the repository; all else stays."""
    for ours, named in _PLACEHOLDERS:
        text = text.replace(ours, named.format(repo_id))
    start = f"model-index:\n- name: {folder.resolve().name}\n"
    return text.replace(start, start.replace(folder.resolve().name, repo_id.split("/")[1]), 1)


def is_edited(path: Path) -> bool:
    """Whether a README.md differs from what `write_card` last wrote there (or was never written by it)."""
    text = path.read_text(encoding="utf-8")
    mark = _MARK.search(text)
    return mark is None or _digest(text[: mark.start()].rstrip("\n")) != mark.group(1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]


# Header


def _header(
    family: CardFamily, info: dict[str, Any], runs: list[dict[str, Any]], repo_id: str | None, licence: str | None
) -> ModelCardData:
    folder = family.folder
    name = repo_id.split("/")[-1] if repo_id else folder.path.resolve().name
    dataset = info.get("name") or "unnamed"
    results = [
        EvalResult(
            task_type=family.pipeline_tag,
            task_name=family.task,
            dataset_type=re.sub(r"[^a-z0-9_.-]+", "-", dataset.lower()),
            dataset_name=dataset,
            dataset_split=split,
            metric_type=METRIC_TYPES.get(key, key),
            metric_name=METRIC_TITLES[key],
            metric_value=fmean([run["splits"][split][key] for run in runs]),
            metric_args={"seeds": [run["seed"] for run in runs]},
        )
        for split in common_splits(runs)
        if tells_of_model(runs, split)
        for key in METRICS
        if all(key in run["splits"][split] for run in runs)
    ]
    language = info.get("language")
    return ModelCardData(
        language=language if language and re.fullmatch(r"[a-z]{2,3}", language) else None,
        license=licence,
        library_name="lmctr",
        pipeline_tag=family.pipeline_tag,
        tags=["click-through-rate", "ctr-prediction", "recommendation", folder.model_type],
        base_model=_hub_backbone(family.given("model", "backbone")),
        model_name=name if results else None,
        eval_results=results or None,
    )


def _hub_backbone(backbone: Any) -> str | None:
    """The backbone's repository on the Hub, where its name has the form of one and is no local path."""
    is_name = isinstance(backbone, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", backbone) and backbone[0] not in "./~"
    return backbone if is_name and not Path(backbone).exists() else None


def _training_note(metrics: dict[str, Any] | None, training: dict[str, Any]) -> str:
    metrics, parts = metrics or {}, []
    if training.get("from_run"):
        earlier = as_text(shown(str(training["from_run"])))
        parts.append(
            f"Training went on from the weights of an earlier run, {earlier}; data and figures here are those of this training alone."
        )
    if metrics.get("before_refit"):
        parts.append(
            "What was chosen on the validation part was then trained anew on the training and the validation part."
        )
    if metrics.get("command"):  # without folders of the machine that it ran on
        command = shown_command(str(metrics["command"])).replace("`", "")
        parts.append(f"Command: `{command}`.")
    if metrics.get("machine"):
        parts.append(f"Machine: {as_text(metrics['machine'])}.")
    if isinstance(metrics.get("samples_per_second"), (int, float)):
        parts.append(f"Training speed: {metrics['samples_per_second']:,.1f} samples/s.")
    if isinstance(metrics.get("versions"), dict):
        parts.append(
            "Versions: " + as_text(", ".join(f"{name} {value}" for name, value in metrics["versions"].items())) + "."
        )
    return " ".join(parts) or "Trained with lmctr."
