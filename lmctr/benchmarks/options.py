"""What each benchmark measures: one dataclass, filled in Python or by the flags of `lmctr benchmark`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from lmctr.models.families import families
from lmctr.utils.options import given, option
from lmctr.utils.results import check_output

TABULAR_ARMS = {
    "dense": "torch.optim.Adam with its defaults, dense gradients of the tables",
    "fused": "fused AdamW, dense gradients of the tables",
    "fused-rows": "the same steps; gradients of the tables are the batch's rows until then, as trained on CPUs",
    "lazy": "fused AdamW, and LazyAdamW on the touched rows of the tables",
    "lazy-bf16": "the same, with the model under bfloat16 autocast; weights and optimisers stay float32",
    "fused-compile": "as fused, with the model through torch.compile, a minute or so before the first step",
}
PEERS = {
    "fuxictr": "FuxiCTR",
    "deepctr": "DeepCTR-Torch",
    "rechub": "Torch-RecHub",
    "authors": "RankElastor's authors",
}
PEER_FAMILIES = {family.model_type: list(family.peers) for family in families() if family.peers}
"""Which peers have which family."""


def _repeats(default: int) -> Any:
    return option("measurements of each way, taken in turn", default, small=1)


def _quick() -> Any:
    return option("tiny sizes and one repeat: shows that it runs, measures nothing", False)


@dataclass(frozen=True)
class Benchmark:
    """What all benchmarks share. Every count is checked to be at least 1, or what its option has as `least`."""

    output: str | None = option("write the results to this .json or .md file", None)
    command: str | None = given(None)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            for count in value if isinstance(value, list) else [value]:
                least = field.metadata.get("least", 1)
                if type(count) is int and count < least:
                    raise ValueError(f"--{field.name.replace('_', '-')} must be at least {least}, got {count}")
        check_output(self.output)

    def sized(self) -> Any:
        """These options; with `quick`, at the small size."""
        small = {field.name: field.metadata.get("small") for field in fields(self) if getattr(self, "quick", False)}
        return replace(self, **{name: value for name, value in small.items() if value is not None})

    def settings(self) -> dict[str, Any]:
        """The options that decide what is measured."""
        return {name: value for name, value in asdict(self).items() if name not in ("command", "output", "quick")}


@dataclass(frozen=True)
class LogBenchmark(Benchmark):
    """A benchmark on a log."""

    data: str = option("data set: a name, a prepared folder or a schema .yaml file", "synthetic")
    path: str | None = option("folder (or zip) with the raw files", None)


@dataclass(frozen=True)
class TextBenchmark(LogBenchmark):
    """Build the same batches in three ways, in turn, several times: a batched tokenizer call on each sample's whole text (strings are
    made beforehand, nothing is padded), the processor on raw texts (piece by piece, each different text of a batch once), and
    assembly from cached token ids to padded tensors. Prints medians and ratios."""

    tokenizer: str | None = option(
        "tokenizer: name, folder or package:NAME; default: WordPiece of the catalogue", None
    )
    prompt: str | None = option("prompt (default: movielens/en where items have genres, else generic/en)", None)
    feedback: str = option("how feedback is given: none, inline, groups", "none")
    num_behaviors: list[int] = option("behaviours of a sample, K", [30, 50], metavar="K")
    max_length: int | None = option("most tokens of a sample (default: no limit)", None)
    samples: int = option("samples, drawn at random", 1024)
    batch_size: int = option("samples of a batch", 64)
    repeats: int = _repeats(7)


@dataclass(frozen=True)
class BackboneBenchmark(LogBenchmark):
    """A benchmark of CTR-Sink on a backbone with random weights. `dtype`: of the weights in scoring; in training, of autocast."""

    model_type: str = option("bert, roberta, qwen2 or qwen3", "bert")
    hidden_size: int = option("width", 256, small=32)
    layers: int = option("layers", 4, small=2)
    heads: int = option("attention heads", 4, small=2)
    key_value_heads: int | None = option("key and value heads of Qwen (default: as many as heads)", None)
    intermediate_size: int = option("width of the feed-forward layers", 1024, small=64)
    num_behaviors: int = option("behaviours per list, K", 30, small=4)
    batch_size: int = option("rows of a batch", 32, small=4)
    device: str = option("cpu or cuda", "cpu")
    dtype: str = option("precision", "float32", choices=["float32", "bfloat16"])
    repeats: int = _repeats(3)
    quick: bool = _quick()


@dataclass(frozen=True)
class TrainBenchmark(BackboneBenchmark):
    """Train CTR-Sink on the same samples in several ways, in turn: padded to the longest allowed text in random batches, and in
    batches of like length, these with and without the sink bias. Histories come as two lists (disliked, liked) of K behaviours each.
    Prints medians of samples per second for the forward pass without gradients, forward and backward, and the whole step (making
    the batch included), tokens per second, the share of padding, ratios, and the peak memory of a process that trains one step on
    the longest batch. bfloat16 means autocast."""

    max_length: int = option("most tokens of a sample, and the padded length", 1024, small=128)
    micro_batch_size: int = option("rows of a forward pass; gradients of a batch are added up", 8)
    batches: int = option("batches per measurement", 1, small=1)
    dropout: float = option("dropout of states and attention", 0.1)
    compile: bool = option("torch.compile the model", False)
    peak_tflops: float | None = option("the device's peak for the dtype, to state the share of it", None)
    no_memory: bool = option("do not measure the memory", False)


@dataclass(frozen=True)
class ScoringBenchmark(BackboneBenchmark):
    """Score the same candidates of one user in several ways, in turn, from texts to logits: row by row, in batches of rows, by
    lmctr.serving.score, and with a kept user state. The logits are compared. Prints medians of candidates per second and ratios to
    row by row. Models that share nothing among candidates (encoders without --encoder-prefix) have no kept states. In another
    precision than float32 the fastest way takes turns with itself in float32."""

    model_type: str = option("qwen2, qwen3, bert or roberta", "qwen2")
    key_value_heads: int | None = option("key and value heads of Qwen", 2, small=1)
    intermediate_size: int = option("width of the feed-forward layers", 768, small=64)
    num_behaviors: int = option("behaviours of the history, K", 50, small=6)
    candidates: int = option("candidates of the request", 100, small=5)
    batch_size: int = option("rows of a batch, where rows are batched", 32, small=2)
    sink_signal: str = option("sink signal", "feedback")
    feedback: str = option("how feedback is given", "inline")
    encoder_prefix: bool = option("an encoder whose history does not see the target, so that it is shared", False)
    dtype: str = option(
        "precision; int8: of the language model's matrices, on CPUs",
        "float32",
        choices=["float32", "bfloat16", "int8"],
    )


@dataclass(frozen=True)
class ServingBenchmark(LogBenchmark):
    """Ask `lmctr serve`, in a process of its own, for scores of kept users' candidates, in an open loop: requests arrive by a Poisson
    process whether or not the ones before were answered, and latencies count from the planned arrival. The loads are shares of what this
    process scores from kept states in the same settings, measured before and after each. Prints candidates per second, latencies, and the
    server's memory; the logits are compared. `statistics` adds the same model with statistics, counted for each request."""

    model_type: str = option("qwen2 or qwen3", "qwen2")
    hidden_size: int = option("width", 256, small=32)
    layers: int = option("layers", 4, small=2)
    heads: int = option("attention heads", 4, small=2)
    key_value_heads: int | None = option("key and value heads", 2, small=1)
    intermediate_size: int = option("width of the feed-forward layers", 768, small=64)
    num_behaviors: int = option("behaviours of a history, K", 50, small=5)
    users: int = option("users with kept states", 32, small=3)
    candidates: int = option("candidates of a request", 20, small=4)
    statistics: str | None = option(
        "statistics of users and items (full, for one) that a second model reads too; both are measured, in turn", None
    )
    loads: list[float] = option("shares of the candidates per second of this process", [0.5, 0.7], small=[0.5])
    seconds: float = option("of each load", 30.0, small=1.0)
    threads: int | None = option(
        "threads of torch, here and in each of the server's workers (default: own choice)", None
    )
    workers: int | None = option("threads of the server that score (default: its own choice)", None)
    device: str = option("cpu", "cpu", choices=["cpu"])
    quick: bool = _quick()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_type not in ("qwen2", "qwen3"):
            raise ValueError(
                f"--model-type must be qwen2 or qwen3, decoders that keep states, got {self.model_type!r}"
            )
        if not self.loads or not all(0 < load < 10 for load in self.loads) or not self.seconds > 0:
            raise ValueError(f"--loads and --seconds must be above 0, got {self.loads} and {self.seconds}")


@dataclass(frozen=True)
class FeaturesBenchmark(Benchmark):
    """Write a generated CSV file in the shape of Criteo's, then measure the feature processor on it: fit (one pass), transform into
    memory-mapped arrays (another pass), shuffled batches from these, and, in a fresh process, by how much the peak memory of fit and
    transform exceeds that of a small file. Prints medians."""

    rows: int = option("rows of the file", 1_000_000)
    categorical: int = option("categorical fields", 26)
    numeric: int = option("numeric fields, half of them binned", 13)
    vocab_size: int = option("distinct values, all fields", 1_000_000)
    batch_size: int = option("rows of a batch", 4096)
    memory_limit: int = option("limit on streaming in MiB, at least 24", 128, metavar="MIB")
    repeats: int = option("measurements of each step", 3)
    folder: str | None = option("where file and arrays go (default: a temporary folder, removed at the end)", None)

    def __post_init__(self) -> None:
        if self.memory_limit < 24:
            raise ValueError(f"--memory-limit must be at least 24 (MiB), got {self.memory_limit}")
        super().__post_init__()


@dataclass(frozen=True)
class TabularBenchmark(Benchmark):
    """Train each family on made-up batches (Zipf-like values), the optimisers in turn, and take the step apart: forward, backward,
    optimiser, and the share of it that matrix products take at the speed this machine reaches on large ones. --growth adds a table
    per family of how the step grows with fields, vocabulary and width, --requests one of how long requests of so many candidates take."""

    families: list[str] = option("default: all tabular families", [], metavar="FAMILY")
    arms: list[str] = option(
        "optimisers", [arm for arm in TABULAR_ARMS if not arm.endswith("compile")], choices=list(TABULAR_ARMS)
    )
    batch_size: int = option("rows of a batch", 4096, small=32)
    vocabulary: int = option("distinct values of all fields together", 1_010_000, small=500)
    steps: int = option("steps of an arm before the next one's turn", 3, small=1)
    rounds: int = option("turns of each arm", 5, small=1)
    growth: bool = option("also the tables of growth (long)", False)
    requests: list[int] = option("candidates of requests to read and score too", [], metavar="N")
    threads: int | None = option("threads of torch (default: its own choice)", None)
    device: str = option("cpu, cuda, ...", "cpu")
    set: list[str] = option("a configuration key of a family", [], repeated=True, metavar="FAMILY.KEY=VALUE")
    quick: bool = _quick()


@dataclass(frozen=True)
class PeersBenchmark(Benchmark):
    """Train equal models in lmctr and in other libraries, each in its own process: whole training loops (loader, step, what the
    trainer does besides) over the same generated table, a few steps of each in turn. Prints samples per second, the ratios of the
    turns, and the AUC on the test part after the epoch. The other libraries are installed from PyPI into a virtual environment of
    their own (pip, minutes at the first run); one that cannot be installed or fails is a line of the report."""

    families: list[str] = option("families", list(PEER_FAMILIES), choices=list(PEER_FAMILIES))
    peers: list[str] = option("other libraries", list(PEERS), choices=list(PEERS))
    folder: str | None = option(
        "keeps the virtual environment and the table for the next run (default: a temporary folder, removed at the end)",
        None,
    )
    fuxictr: str | None = option(
        "clone of FuxiCTR, for the models of its model_zoo instead of its layers joined here", None
    )
    rank_elastor: str | None = option("clone of the RankElastor authors' code", None)
    rows: int = option("training rows; a tenth each for validation and test", 400_000, small=600)
    categorical: int = option("categorical fields", 26)
    numeric: int = option("numeric fields", 13)
    vocabulary: int = option("distinct values of all fields together", 1_010_000, small=500)
    batch_size: int = option("rows of a batch", 4096, small=64)
    steps: int | None = option("most steps of a loop (default: an epoch)", None)
    turn: int = option("steps of a turn", 6, small=2)
    threads: int | None = option("threads of torch (default: its own choice)", None)
    workers: int = option("worker processes of the other libraries' loaders, 0 for none", 1, least=0)
    from_csv: int | None = option(
        "time whole processes from CSV files to the AUC on the test part so many times, in place of steps: lmctr and FuxiCTR",
        None,
    )
    seed: int = option("of table, weights and batches", 0, least=0)
    quick: bool = _quick()


@dataclass(frozen=True)
class SequenceBenchmark(LogBenchmark):
    """Train and score an ASTRO on a log in four arms, each of which adds one thing to the one before: one row per sample, rows of one
    user, cached histories, parallel blocks. --lengths and --block-counts add how the cost grows, beside the formula."""

    data: str = option("data set: a name, a prepared folder or a schema .yaml file", "synthetic_sequence")
    length: int = option("events of a history, over all blocks", 200)
    candidates: int = option("samples per SUMI row, N_c", 10)
    request: int = option("candidates of a request", 500)
    samples: int = option("samples of a training measurement, rounded down to whole rows", 200)
    batch_size: int = option("samples per training step", 50)
    hidden_size: int = option("width", 100)
    layers: int = option("layers", 2)
    blocks: int | None = option("blocks that each read all events (default: a block per behaviour type)", None)
    lengths: list[int] = option("history lengths for the growth of cost", [])
    block_counts: list[int] = option("numbers of blocks for the growth of cost", [])
    repeats: int = _repeats(5)
    device: str = option("cpu or cuda", "cpu")


@dataclass(frozen=True)
class RetrievalBenchmark(Benchmark):
    """Score the ads of one request with RetrievalMLP and TwoTower in several ways, in turn; the scores are compared. Then time
    NeuralSort and ARF on impressions of different numbers of ads. Prints medians and ratios. The defaults are the paper's base model
    [3328, 1024, 256, 256, 256, 1] with 1,500 ads, on one thread.

    The paper gives 200 fields and 128 statistics, not which of them are the user's; the ads' are `ad_fields` and `ad_numeric` of them.
    """

    embedding_dim: int = option("width of each field's vector", 16, small=4)
    user_fields: int = option("categorical fields of the user", 140, small=3)
    ad_fields: int = option("categorical fields of an ad", 60, small=2)
    user_numeric: int = option("numbers of the user", 96, small=2)
    ad_numeric: int = option("numbers of an ad", 32, small=1)
    vocabulary: int = option("ids of each field", 1000, small=10)
    hidden_units: list[int] = option("widths of the hidden layers", [1024, 256, 256, 256], small=[8, 6], metavar="N")
    vector_size: int = option("width of the towers' vectors", 64, small=5)
    ads: int = option("ads of the request", 1500, small=7)
    num_ads: list[int] = option(
        "ads of an impression", [10, 20, 50, 100, 200, 500, 1000, 1500], small=[3, 5], metavar="N"
    )
    impressions: int = option("most impressions of a batch of the losses", 64, small=4)
    threads: int = option("threads of torch", 1)
    repeats: int = _repeats(7)
    quick: bool = _quick()
