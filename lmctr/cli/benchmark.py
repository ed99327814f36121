"""`lmctr benchmark WHAT`: speed of the library's parts on this machine; each benchmark is a row."""

from lmctr.cli.options import Action, Actions

_SAYS = {
    "text": "batches from cached token ids against tokenising the texts",
    "train": "training speed and memory of CTR-Sink, with and without sink bias and padding",
    "scoring": "scoring one user's candidates row by row, batched, and with the history encoded once",
    "serving": "an open loop of requests to lmctr serve, against the same requests scored in this process",
    "features": "fit and transform of a CSV file, peak memory, shuffled batches",
    "tabular": "training speed of the tabular families, optimisers, and how cost grows",
    "peers": "training loops of this and of other libraries, in turns; installs those by pip into an environment of their own",
    "sequence": "training and scoring of ASTRO: single rows, rows of one user, cached histories, parallel blocks",
    "retrieval": "scoring a request's ads naively and with the first layer split; NeuralSort and ARF",
}
VERB = Actions(
    "benchmark",
    "measure the speed of the library's parts on this machine",
    tuple(
        Action(name, says, f"lmctr.benchmarks.options:{name.title()}Benchmark", f"lmctr.benchmarks.{name}:run")
        for name, says in _SAYS.items()
    ),
)
add_parser, run = VERB.add_parser, VERB.run
