"""`lmctr scaling sumi DATA`: how many samples of a user to gather into one row (Climber, Eq. 5-8), by formula and as measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmctr.analysis.plots_sequence import plot_compression
from lmctr.data import load_log
from lmctr.data.batches.sequence import SequenceView
from lmctr.data.logs.splits import split_log
from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.models.astro.configuration_astro import ASTROConfig
from lmctr.scaling.compression import CompressionPlan, plan_compression
from lmctr.studies.scaling.options import SumiOptions
from lmctr.studies.scaling.tables import with_folder
from lmctr.utils.files import parse_yaml, write_json
from lmctr.utils.tables import markdown_table, write_csv


@dataclass(frozen=True)
class SumiPlan:
    """Sizes and costs of rows of several samples. about: data, part, and what the rows and the planned model are made with."""

    plan: CompressionPlan
    about: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return self.about | self.plan.to_dict()

    def markdown(self) -> str:
        """The plan as a table."""
        plan, about = self.plan, self.about
        by_size, by_flops = (plan.best(key).num_candidates for key in ("measured_bytes", "measured_flops"))
        words = (
            f"{about['data']}, {plan.num_samples:,} samples of the training part: {plan.user_bytes:,.0f} bytes of history and user and "
            f"{plan.item_bytes:,.0f} of candidate per sample. FLOPs of one epoch (forward and backward) of an ASTRO with "
            f"{about['sequence_length']} events in {about['num_blocks']} blocks, {about['num_hidden_layers']} layers, d = {about['hidden_size']}."
        )
        table = [["N_c", "rows", "padded", "size by Eq. 7", "size measured", "FLOPs by Eq. 8", "FLOPs of the rows"]]
        for point in plan.points:
            counts = [f"{point.num_candidates}", f"{point.rows:,}", f"{point.padded:,}"]
            sizes = [f"{point.ratio:.3f}", f"{point.measured_ratio:.3f}"]
            table.append([*counts, *sizes, f"{point.flops:.3g}", f"{point.measured_flops:.3g}"])
        best = f"Best N_c by measured size: {by_size}; by FLOPs of the rows: {by_flops}."
        return f"{words}\n\n{markdown_table(table, left=())}\n\n{best}"


def run(options: SumiOptions) -> None:
    folder, found = with_folder(options, plan_rows)
    print(found.markdown())
    if folder is not None:
        content = {"command": options.command, **found.to_dict()}
        write_json(folder / "sumi.json", content)
        written = [folder / "sumi.json", write_csv(folder / "sumi.csv", content["points"])]
        if not options.no_plots:
            title = f"{found.about['data']}: {found.plan.num_samples:,} samples"
            written.append(plot_compression(found.plan.to_dict(), folder / "sumi.png", title))
        print("wrote " + ", ".join(map(str, written)))


def plan_rows(options: SumiOptions) -> SumiPlan:
    """Sizes and training FLOPs of the rows of a log's training part.

    Raises:
        ValueError: data that cannot be read.
    """
    settings = parse_yaml(options.options, "--options")
    if not isinstance(settings, dict):
        raise ValueError(f"--options must be a mapping such as '{{num_users: 500}}', got {options.options!r}")
    if options.path is not None:
        settings["path"] = options.path
    log = load_log(options.data, **settings)
    train = split_log(log).train
    processor = SequenceProcessor.fit(log, train, max_history_length=options.max_history_length)
    config = ASTROConfig(
        **processor.model_config_values(),
        sequence_length=options.sequence_length,
        hidden_size=options.hidden_size,
        num_hidden_layers=options.layers,
    )
    view, window = SequenceView(log, processor), options.window_seconds
    plan = plan_compression(view, train, config, options.degrees, window, options.max_samples, options.seed)
    about = {
        "data": log.info.name,
        "part": "train",
        "window_seconds": window,
        "max_history_length": options.max_history_length,
        "sequence_length": config.sequence_length,
        "num_blocks": config.num_blocks,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
    }
    return SumiPlan(plan, about)
