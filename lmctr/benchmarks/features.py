"""`lmctr benchmark features`: how fast a CSV file becomes arrays, what memory that takes, and how fast batches are read."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import torch
from torch.utils.data import DataLoader

from lmctr.benchmarks.harness import in_own_process, machine_text, reports, results, say, table
from lmctr.benchmarks.options import FeaturesBenchmark
from lmctr.data import (
    TabularCollator,
    TabularDataset,
    TabularFeatureProcessor,
    TabularStore,
    TabularView,
    synthetic_table,
    table_source,
)
from lmctr.data.tables.store import processor_arguments
from lmctr.utils.measure import peak_memory

_HEX = 0x9E3779B1  # spreads the codes over eight hexadecimal digits
_WARM_ROWS = 50_000
_MIB = 2**20
_STEPS = ("fit", "transform and write", "shuffled batches")


def benchmark_features(options: FeaturesBenchmark) -> dict[str, Any]:
    """Measures the steps from a CSV file to batches.

    Returns:
        "file", "arrays_bytes", "seconds" and "cpu_seconds" by step (lists), "rows_per_second" by step (medians), "memory" (its values
        are None where the system does not tell), "machine", "settings".
    """
    if options.folder is not None:
        Path(options.folder).mkdir(parents=True, exist_ok=True)
        return _measure(Path(options.folder), options)
    with tempfile.TemporaryDirectory(prefix="lmctr-features-") as folder:
        return _measure(Path(folder), options)


class _Clock:
    """Seconds by the clock and of the processor, step by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {step: [] for step in _STEPS}
        self.cpu_seconds: dict[str, list[float]] = {step: [] for step in _STEPS}
        self.start()

    def start(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def stop(self, step: str) -> None:
        """A step ends, and the next one begins."""
        began = self.began
        self.start()
        self.seconds[step].append(self.began[0] - began[0])
        self.cpu_seconds[step].append(self.began[1] - began[1])


def _measure(folder: Path, options: FeaturesBenchmark) -> dict[str, Any]:
    path, small = folder / "large.csv", folder / "small.csv"
    began = time.perf_counter()
    write_csv(path, options, options.rows)
    write_csv(small, options, min(_WARM_ROWS, options.rows))
    written = time.perf_counter() - began
    say(f"wrote {path.stat().st_size / _MIB:,.0f} MiB in {written:.1f} s")
    _fit_and_fill(small, options, folder / "warm", None, _Clock())  # imports, caches

    clock = _Clock()
    for repeat in range(options.repeats):
        store = _fit_and_fill(path, options, folder / f"stores-{repeat}", None, clock)
        view = TabularView(store)
        loader = DataLoader(
            TabularDataset(view),
            batch_size=options.batch_size,
            shuffle=True,
            collate_fn=TabularCollator(view),
            generator=torch.Generator().manual_seed(repeat),
        )
        clock.start()
        seen = sum(len(batch["labels"]) for batch in loader)
        clock.stop("shuffled batches")
        if seen != options.rows:
            raise RuntimeError(f"the loader gave {seen} rows of {options.rows}")
        say(", ".join(f"{name} {seen / times[-1]:,.0f} rows/s" for name, times in clock.seconds.items()))
    sizes = [store.processor.vocab_size(field.name) for field in store.processor.fields if field.kind == "id"]
    for times in (clock.seconds, clock.cpu_seconds):
        times["fit and transform"] = [sum(pair) for pair in zip(times["fit"], times["transform and write"])]
    arrays = store.num_bytes
    del store, view, loader
    memory = in_own_process(memory_of_files, options.settings(), str(path), str(small))
    if memory["growth_bytes"] is not None:
        say(f"peak memory grew by {memory['growth_bytes'] / _MIB:.0f} MiB")
    return {
        "file": {
            "bytes": path.stat().st_size,
            "rows": options.rows,
            "write_seconds": written,
            "ids": int(np.sum(sizes)),
        },
        "arrays_bytes": arrays,
        "seconds": clock.seconds,
        "cpu_seconds": clock.cpu_seconds,
        "rows_per_second": {name: options.rows / statistics.median(times) for name, times in clock.seconds.items()},
        "memory": memory | {"limit_bytes": options.memory_limit * _MIB},
        **results(options),
    }


def write_csv(path: Path, options: FeaturesBenchmark, num_rows: int) -> None:
    """A generated table as a CSV file with a header line; categorical values have eight hexadecimal digits, as Criteo's."""
    source = synthetic_table(
        num_rows, options.categorical, options.numeric, vocab_size=options.vocab_size, num_pairs=0
    )
    words = {}
    for number, size in enumerate(source.info.extra["vocab_sizes"]):
        codes = (np.arange(size, dtype=np.uint64) * _HEX + number) % 2**32
        words[f"C{number + 1}"] = pa.array([f"{code:08x}" for code in codes.tolist()])
    writer = None
    for rows in source.rows():
        columns = []
        for name, values in zip(rows.table.schema.names, rows.table.columns):
            whole = name.startswith("I")  # whole numbers, as Criteo's
            columns.append(words[name].take(values) if name in words else values.cast(pa.int64()) if whole else values)
        batch = pa.record_batch(columns, names=rows.table.schema.names)
        if writer is None:
            writer = pacsv.CSVWriter(path, batch.schema, write_options=pacsv.WriteOptions(quoting_style="none"))
        writer.write_batch(batch)
    writer.close()


def _fit_and_fill(
    path: Path, options: FeaturesBenchmark, folder: Path, memory_limit: int | None, clock: _Clock
) -> TabularStore:
    """The store that is filled from a file, both steps timed."""
    fields: list[dict[str, Any]] = [{"name": f"C{n + 1}", "type": "categorical"} for n in range(options.categorical)]
    for n in range(options.numeric):
        fields.append({"name": f"I{n + 1}", "type": "numeric", "transform": "quantile" if n % 2 else "log1p"})
    source = table_source(path, "label", fields, memory_limit=memory_limit, fractions=(1, 0, 0))
    processor = TabularFeatureProcessor(**processor_arguments(source))
    clock.start()
    processor.fit(source)
    clock.stop("fit")
    store = TabularStore.build(source, processor, folder, rebuild=True)
    clock.stop("transform and write")
    return store


def memory_of_files(values: Mapping[str, Any], path: str, small: str) -> dict[str, int | None]:
    """Peak memory of this process after a small file, and by how much the large one adds to it."""
    options = FeaturesBenchmark(**values)
    limit = options.memory_limit * _MIB
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        _fit_and_fill(Path(small), options, Path(folder) / "small", limit, _Clock())
        before = peak_memory()
        store = _fit_and_fill(Path(path), options, Path(folder) / "large", limit, _Clock())
        after = peak_memory()
    vocabularies = store.processor.state.vocabularies.values()
    return {
        "before_bytes": before,
        "growth_bytes": None if before is None else after - before,
        "vocabulary_bytes": sum(one.values.nbytes + one.counts.nbytes for one in vocabularies),
    }


def as_markdown(result: Mapping[str, Any]) -> str:
    file, memory, settings = result["file"], result["memory"], result["settings"]
    rows = []
    for step, rate in result["rows_per_second"].items():
        wall, cpu = (statistics.median(result[key][step]) for key in ("seconds", "cpu_seconds"))
        rows.append({"step": step, "rate": rate, "wall": wall, "cpu": cpu, "cpu_rate": file["rows"] / cpu})
    head = "step | seconds | rows/s | processor seconds | rows per processor second"
    peak = "not told by this system"
    if memory["growth_bytes"] is not None:
        peak = (
            f"{memory['growth_bytes'] / _MIB:,.0f} MiB above that of a file of {min(_WARM_ROWS, file['rows']):,} rows "
            f"({memory['before_bytes'] / _MIB:,.0f} MiB)"
        )
    return f"""## Features

CSV of {file["rows"]:,} rows, {settings["categorical"]} categorical and {settings["numeric"]} numeric columns, \
{file["bytes"] / _MIB:,.0f} MiB, {file["ids"]:,} ids; arrays of {result["arrays_bytes"] / _MIB:,.0f} MiB; \
batches of {settings["batch_size"]:,}. Median of {settings["repeats"]}.
{machine_text(result)}

{table(head, "{step} | {wall:.2f} | {rate:,.0f} | {cpu:.2f} | {cpu_rate:,.0f}", rows)}

Peak memory of fit and transform: {peak}, with a limit of {memory["limit_bytes"] / _MIB:,.0f} MiB for streaming. \
Vocabularies ({memory["vocabulary_bytes"] / _MIB:,.0f} MiB as values and counts), their look-up tables and the sample for \
quantiles come on top of the limit."""


run = reports(benchmark_features, as_markdown)
