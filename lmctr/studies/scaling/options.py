"""Options of `lmctr scaling`, whose functions take them from Python too. Nothing heavy is imported here, so that help comes at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmctr.scaling.options import SizeGridOptions, SweepOptions
from lmctr.studies.grids.options import RunnerOptions
from lmctr.utils.options import check_counts, given, option, options_of
from lmctr.utils.results import check_output

if TYPE_CHECKING:
    from lmctr.scaling.cost import CostOptions
    from lmctr.scaling.design import DesignGrid

FORMS = ("auto", "additive", "additive_constant", "multiplicative", "multiplicative_constant")
CRITERIA = ("aicc", "loo")
LAWS = ("auto", "power", "power_constant", "bnsl")
X_COLUMNS = ("flops_per_sample", "flops_per_request", "dense_parameters", "embedding_parameters", "parameters")
"""What lmctr counts of a model: columns that a ladder's law may be of."""


def check_sizes_x(x: str, where: str) -> None:
    """Raise `ValueError` where a law is known to be of something else than the FLOPs that MLP sizes are looked up by."""
    if x in X_COLUMNS and x != "flops_per_sample":
        raise ValueError(
            f"{where} knows its sizes' flops_per_sample only, but x is {x}; fit the law by flops_per_sample"
        )


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """Where results go."""

    output: str | None = option("write the results to this .json or .md file", None)
    command: str = given("")

    def __post_init__(self):
        check_output(self.output)


@dataclass(frozen=True, kw_only=True)
class ResultFolder:
    """Where results and pictures go."""

    no_plots: bool = option("write no picture; matplotlib is not needed", False)
    output: str | None = option(
        "write numbers, words and pictures there (default: print only)", None, metavar="FOLDER"
    )
    command: str = given("")


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """The size of a request, see `lmctr.scaling.inputs.RequestShape`."""

    candidates: int | None = option("candidates of a request (default: the family's)", None, metavar="N")
    length: int | None = option("tokens of a text, events of a history (default: the family's)", None, metavar="N")


@dataclass(kw_only=True)
class LadderOptions(RunnerOptions):
    """The whole way from one file: train every size with every seed (finished runs are skipped, begun ones continued), count FLOPs, fit the
    metric's law and its error on held-out sizes, measure the highest QPS of each size under a latency limit, choose the size of most
    gain under a return on machine cost, and part a budget between scenarios."""

    ladder: str = option(
        "YAML file, or the name of one that ships (scaling/ladder_dnn)", positional=True, metavar="LADDER.yaml"
    )
    output_dir: str | None = option("folder of runs and results (default: the ladder's own, else runs/NAME)", None)
    no_train: bool = option("train nothing: only what the finished runs say", False)
    allow_missing: bool = option("go on with what is finished; the report lists the rest", False)
    no_plots: bool = option("write no pictures", False)
    command: str = given("")


@dataclass(frozen=True, kw_only=True)
class FlopsOptions(RequestOptions, ResultFile):
    """Count the FLOPs of one request of random inputs, from the modules that run (2 x multiply-accumulates of matrix products, fused
    attention included). A sample is one candidate of a request. A recipe's model has its initial weights; its data are read, since
    vocabularies decide the tables."""

    models: list[str] = option(
        "run folder, recipe, or Hub id (user/name[@revision])", positional=True, metavar="RUN_OR_RECIPE"
    )
    modules: bool = option("also the parts of each model", False)
    overrides: tuple[tuple[str, str], ...] = given(())


@dataclass(frozen=True, kw_only=True)
class LawOptions:
    """How points are fitted: arguments of `lmctr.scaling.fits.fit_scaling_law`, and what is said about the law."""

    law: str = option("the law (default: auto, the best by --criterion)", "auto", choices=LAWS, short=["--model"])
    breaks: int | None = option("breaks of bnsl (default: chosen)", None, metavar="T")
    complement: bool = option("fit 1 - metric: for metrics below 1 that grow, such as AUC and R/R*", False)
    absolute: bool = option("residuals of the metric (default: of its logarithm)", False)
    criterion: str = option("default: aicc", "aicc", choices=CRITERIA)
    max_breaks: int = option("most breaks that are tried (default: 6)", 6, metavar="T")
    allow_overfit: bool = option("accept --breaks with more parameters than the sizes can tell apart", False)
    restarts: int = option("starts of the search (default: 4)", 4)
    hops: int = option("hops of each start (default: 12)", 12)
    seed: int = option("of search and bootstrap (default: 0)", 0)
    held_out: int = option("also predict the N largest sizes from the others (default: 0)", 0, metavar="N")
    level: float = option("of the bootstrap band (default: 0.9)", 0.9)
    resamples: int = option("of the bootstrap; 0: no band (default: 200)", 200, metavar="N")

    def __post_init__(self):
        if self.held_out < 0:
            raise ValueError(f"--held-out must be at least 0, got {self.held_out}")
        if self.resamples != 0 and self.resamples < 2:
            raise ValueError(f"--resamples must be 0 (no band) or at least 2, got {self.resamples}")
        if not 0 < self.level < 1:
            raise ValueError(f"--level must be between 0 and 1, got {self.level:g}")
        if self.breaks is not None and self.law != "bnsl":
            raise ValueError(f"--breaks belongs to --law bnsl, got --law {self.law}")
        if self.breaks is not None and self.breaks < 0:
            raise ValueError(f"--breaks must be at least 0, got {self.breaks}")
        for name, least in (("restarts", 1), ("hops", 1), ("max_breaks", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)}, accepted: from {least}")

    def settings(self) -> dict[str, Any]:
        """The values of these options alone."""
        return options_of(LawOptions, self)

    def of_the_law(self) -> dict[str, Any]:
        """Arguments of `fit_scaling_law`."""
        about = ("held_out", "level", "resamples")
        return {name: value for name, value in self.settings().items() if name not in about}


@dataclass(frozen=True, kw_only=True)
class FitOptions(LawOptions, ResultFolder):
    """Fit a power law, a power law with a constant or a broken neural scaling law (BNSL) to two columns of a CSV file. Repeated x are fine
    (seeds). Printed: the law, how its rivals did, and the error on held-out sizes. With --x2 a law of two sizes (length and layers): additive or
    multiplicative, by the error on pairs that were left out, with bands and the best pair at equal products or counted FLOPs."""

    points: str = option("CSV file with a header", positional=True, metavar="POINTS.csv")
    x: str = option("size: FLOPs, parameters, samples", metavar="COLUMN")
    y: str = option("metric", metavar="COLUMN")
    x2: str | None = option("a second size", None, metavar="COLUMN")
    form: str = option("with --x2: the law (default: auto, the least leave-one-out error)", "auto", choices=FORMS)
    product: list[float] = option("with --x2: also the best pair at these products of both sizes", [], metavar="P")
    flops: str | None = option("with --x2: counted FLOPs, for --budget", None, metavar="COLUMN")
    budget: list[float] = option("with --flops: also the best pair of at most so many", [], metavar="F")
    predict: list[float] = option("also the metric at these x; with --x2 pairs: X X2 X X2", [], metavar="X")

    def __post_init__(self):
        if self.x2 is None and (self.form != "auto" or self.product):
            raise ValueError("--form and --product belong to a law of two sizes: give --x2 COLUMN")
        if bool(self.budget) != (self.flops is not None) or (self.budget and self.x2 is None):
            raise ValueError(
                "--flops COLUMN and --budget F belong together, and to a law of two sizes: give both, and --x2 COLUMN"
            )
        if self.x2 is not None and (self.law != "auto" or self.breaks is not None):
            raise ValueError("--model and --breaks belong to a law of one size; with --x2 choose by --form")
        if wrong := [x for x in (*self.predict, *self.product, *self.budget) if not 0 < x < math.inf]:
            raise ValueError(f"--predict, --product and --budget take numbers above 0, got {wrong[0]:g}")
        if self.x2 is not None and len(self.predict) % 2:
            raise ValueError(f"--predict takes pairs with --x2, got {len(self.predict)} numbers")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(SweepOptions):
    """How the capacity of models is measured."""

    latency_ms: float = option("the limit in milliseconds", metavar="MS")
    threads: int | None = option("threads of torch per call (default: its own choice)", None)
    device: str = option("cpu (default), cuda, ...", "cpu")
    split: bool = option(
        "retrieval models by kept halves of ads, as lmctr.serving.split_first_layer serves them", False
    )

    def limits(self) -> CostOptions:
        """As `lmctr.scaling.cost` takes them. Raises `ValueError`: a value out of its range."""
        from lmctr.scaling.cost import CostOptions

        check_counts(self, ["threads"])
        if not self.latency_ms > 0:
            raise ValueError(f"--latency-ms must be a number of milliseconds above 0, got {self.latency_ms}")
        return CostOptions(self.latency_ms / 1e3, **options_of(SweepOptions, self))


@dataclass(frozen=True, kw_only=True)
class CostRunOptions(MeasureOptions, RequestOptions, ResultFile):
    """Measure the highest rate of each saved model under a limit on the 99th percentile of its latency, on this machine, with random
    inputs of fixed size, for single and batched requests; then the machines that the base model's load needs with each. The load is
    closed: each client waits for its answer. What runs is the model's plain forward, or with --split what serves a retrieval model
    whose ads are kept, as the paper measures; FLOPs are those of the plain forward either way. Results are kept, and found again on the same machine and model."""

    runs: list[str] = option("folder with a saved model, or its id on the Hub", positional=True, metavar="RUN")
    base: str | None = option("the model in use today, one of the runs (default: the first)", None, metavar="RUN")
    base_machines: float = option("machines that serve it (default: 1)", 1.0, metavar="N")
    cache: str | None = option("where results are kept (default: ~/.cache/lmctr/cost)", None, metavar="FOLDER")
    no_cache: bool = option("measure anew, and keep nothing", False)


@dataclass(frozen=True, kw_only=True)
class RevenueOptions(ResultFolder):
    """A line from each offline metric to revenue (G), with R^2, mean and largest deviation side by side. A row of the file is a model: its
    metrics, and the revenue that it earned online."""

    pairs: str = option("CSV file with a header, a row per model", positional=True, metavar="PAIRS.csv")
    revenue: str = option("default: revenue", "revenue", metavar="COLUMN")
    metrics: list[str] = option("default: every other column that holds numbers only", [], metavar="COLUMN")


@dataclass(frozen=True, kw_only=True)
class DesignOptions(SizeGridOptions, ResultFolder):
    """Search a grid of MLP sizes (a_0-a_1-...-1, the input first) for the one of most gain whose gain per cost is at least lambda (Eq. 7-8
    of arXiv 2411.13322). The gain is revenue by metric by FLOPs; the cost of a measured size is its own, of another one interpolated in
    log FLOPs. Gains and costs are relative to the base size, unless --absolute."""

    fit: str | None = option("metric by FLOPs per sample, from `lmctr scaling fit`", None, metavar="FIT.json")
    costs: str | None = option(
        "machine costs: .json of `lmctr scaling cost`, or .csv with a column sizes or flops, and one machines or cost; what was measured several times "
        "has the geometric mean",
        None,
        metavar="FILE",
    )
    base: str | None = option("size in use, such as 3328-1024-256-256-256-1", None, metavar="SIZES")
    minimal_roi: float | None = option("least gain per cost", None, metavar="LAMBDA")
    revenue: str | None = option("metric to revenue, from `lmctr scaling revenue`", None, metavar="REVENUE.json")
    metric: str | None = option("metric of REVENUE.json (default: that of FIT.json)", None, metavar="NAME")
    slope: float | None = option(
        "revenue per unit of the metric, instead of --revenue (default: 1, gain in the metric)", None
    )
    intercept: float = option("revenue at metric 0; matters with --absolute", 0.0)
    price: float = option("of a unit of machine cost (default: 1)", 1.0)
    absolute: bool = option("gains and costs as they are, without a base", False)
    extrapolate: bool = option("also sizes outside the measured range of FLOPs", False)
    candidates: str | None = option(
        "sizes to choose from, in a column sizes (default: the paper's grid)", None, metavar="FILE.csv"
    )
    count: bool = option("only count the grid's sizes", False)
    rows: int = option("most rows of the Pareto front that are shown (default: 15)", 15)

    def __post_init__(self):
        if self.count:
            return
        for name in ("fit", "costs", "minimal_roi"):
            if getattr(self, name) is None:
                raise ValueError(f"--{name.replace('_', '-')} is missing (only --count goes without)")
        if self.base is None and not self.absolute:
            raise ValueError("--base is missing: gains are relative to the size in use; or give --absolute")
        if not 0 < self.price < math.inf:
            raise ValueError(f"--price must be a number above 0, got {self.price:g}")
        if not math.isfinite(self.minimal_roi):
            raise ValueError(f"--minimal-roi must be a number, got {self.minimal_roi:g}")

    def grid(self) -> DesignGrid:
        """The space of sizes. Raises `ValueError`: a value out of its range."""
        from lmctr.scaling.design import DesignGrid

        return DesignGrid(**options_of(SizeGridOptions, self))


@dataclass(frozen=True, kw_only=True)
class AllocateOptions(ResultFile):
    """Choose one design per scenario: most gain in all, the costs together within the budget, gain per cost of each scenario at least the
    minimal ROI (Eq. 9 of arXiv 2411.13322). Solved exactly. Gains and costs are absolute, in one unit."""

    file: str = option("candidates of each scenario, .csv or .yaml", positional=True, metavar="FILE")
    budget: float | None = option("B (default: that of the YAML file)", None)
    minimal_roi: float | None = option("of each scenario (default: that of the YAML file, else 1)", None)


@dataclass(frozen=True, kw_only=True)
class SumiOptions(ResultFolder):
    """Size and training FLOPs of the rows of a log for several N_c, the samples of a user in one row: by the formulas of the paper (Eq. 5-8)
    from the log's histogram of samples per user, and as measured on the rows that the sampler builds. Writes sumi.json, sumi.csv and
    sumi.png."""

    data: str = option("data set: a name, a prepared folder or a schema", positional=True)
    path: str | None = option("folder (or zip) with the raw files", None)
    options: str = option("options of the data set, as YAML: '{num_users: 500}'", "{}")
    degrees: list[int] = option("default: 1 2 3 4 5 6 8 10 15 20", [1, 2, 3, 4, 5, 6, 8, 10, 15, 20], metavar="N_c")
    window_seconds: int | None = option("longest time between the samples of a row (default: no limit)", None)
    max_history_length: int | None = option("latest events of a row (default: the whole lifetime)", None)
    max_samples: int = option("work on whole users with so many samples (default: 100000)", 100_000)
    seed: int = option("seed of the draw of users (default: 0)", 0)
    sequence_length: int | None = option("n of the ASTRO whose FLOPs are planned (default: 200)", None)
    hidden_size: int = option("its d (default: 100)", 100)
    layers: int = option("its layers (default: 2)", 2)

    def __post_init__(self):
        check_counts(self, ("max_history_length", "max_samples", "sequence_length", "hidden_size", "layers"))
        if self.window_seconds is not None and self.window_seconds < 0:
            raise ValueError(f"--window-seconds must be at least 0, got {self.window_seconds}")
        if min(self.degrees) < 1:
            raise ValueError(f"--degrees must be whole numbers from 1, got {self.degrees}")
