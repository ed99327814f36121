"""`lmctr benchmark features`: how fast a CSV file becomes arrays, what memory that takes, and how fast batches are read."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.benchmarks.tools import check_counts, check_output, machine, write_result

if TYPE_CHECKING:
    from lmctr.data.tables.source import TableSource

_HEX = 0x9E3779B1  # spreads the codes over eight hexadecimal digits
_WARM_ROWS = 50_000


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `benchmark features`."""
    parser = actions.add_parser(
        "features",
        help="fit and transform of a CSV file, peak memory, shuffled batches",
        description=(
            "Write a generated CSV file in the shape of Criteo's, then measure the feature processor on it: fit (one pass), "
            "transform into memory-mapped arrays (another pass), shuffled batches from these, and, in a fresh process, by how "
            "much the peak memory of fit and transform exceeds that of a small file. Prints medians."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the file (default: 1000000)")
    parser.add_argument("--categorical", type=int, default=26, help="categorical fields (default: 26)")
    parser.add_argument("--numeric", type=int, default=13, help="numeric fields, half of them binned (default: 13)")
    parser.add_argument(
        "--vocab-size", type=int, default=1_000_000, help="distinct values, all fields (default: 1000000)"
    )
    parser.add_argument("--batch-size", type=int, default=4096, help="rows of a batch (default: 4096)")
    parser.add_argument(
        "--memory-limit", type=int, default=128, metavar="MIB", help="limit on streaming in MiB (default: 128)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each step (default: 3)")
    parser.add_argument(
        "--folder", help="where the file and the arrays go (default: a temporary folder, removed at the end)"
    )
    parser.add_argument("--output", help="write the results to this .json or .md file")


def run(args: argparse.Namespace) -> int:
    """Runs the benchmark."""
    check_counts(args, ("rows", "categorical", "numeric", "batch_size", "repeats"))
    if args.memory_limit < 24:
        raise ValueError(f"--memory-limit must be at least 24 (MiB), got {args.memory_limit}")
    check_output(args.output or None)
    options = {
        "num_rows": args.rows,
        "num_categorical": args.categorical,
        "num_numeric": args.numeric,
        "vocab_size": args.vocab_size,
        "batch_size": args.batch_size,
        "memory_limit": args.memory_limit << 20,
        "repeats": args.repeats,
        "say": lambda line: print(line, file=sys.stderr),
    }
    if args.folder is not None:
        Path(args.folder).mkdir(parents=True, exist_ok=True)
        result = benchmark_features(Path(args.folder), **options)
    else:
        with tempfile.TemporaryDirectory(prefix="lmctr-features-") as folder:
            result = benchmark_features(Path(folder), **options)
    result["command"] = getattr(args, "command", None)
    table = as_markdown(result)
    print(table)
    write_result(args.output or None, result, table)
    return 0


def benchmark_features(
    folder: Path,
    *,
    num_rows: int = 1_000_000,
    num_categorical: int = 26,
    num_numeric: int = 13,
    vocab_size: int = 1_000_000,
    batch_size: int = 4096,
    memory_limit: int = 128 << 20,
    repeats: int = 3,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measures the steps from a CSV file to batches.

    Args:
        folder: where the file and the arrays go.
        num_rows, num_categorical, num_numeric, vocab_size: shape of the file.
        batch_size: rows of a batch.
        memory_limit: bytes, of the streaming that is measured for memory.
        repeats: measurements of each step.
        say: prints progress.

    Returns:
        "file", "seconds" and "cpu_seconds" by step (lists), "rows_per_second" by step (medians), "memory", "machine", "settings".
    """
    import numpy as np
    import pyarrow as pa
    import torch
    from torch.utils.data import DataLoader

    from lmctr.data import TabularCollator, TabularDataset, TabularView

    shape = (num_rows, num_categorical, num_numeric, vocab_size)
    started = time.perf_counter()
    path, small = folder / "large.csv", folder / "small.csv"
    write_csv(path, *shape)
    write_csv(small, min(_WARM_ROWS, num_rows), *shape[1:])
    written = time.perf_counter() - started
    say(f"wrote {path.stat().st_size / 2**20:,.0f} MiB in {written:.1f} s")
    cpu_seconds: dict[str, list[float]] = {"fit": [], "transform and write": [], "shuffled batches": []}
    _fit_and_fill(small, shape, folder / "warm", None)  # imports, caches

    seconds: dict[str, list[float]] = {"fit": [], "transform and write": [], "shuffled batches": []}
    for repeat in range(repeats):
        took, store = _fit_and_fill(path, shape, folder / f"stores-{repeat}", None)
        for name, (wall, cpu) in zip(("fit", "transform and write"), took):
            seconds[name].append(wall)
            cpu_seconds[name].append(cpu)
        view = TabularView(store)
        loader = DataLoader(
            TabularDataset(view),
            batch_size=batch_size,
            shuffle=True,
            collate_fn=TabularCollator(view),
            generator=torch.Generator().manual_seed(repeat),
        )
        started, used = time.perf_counter(), time.process_time()
        seen = sum(len(batch["labels"]) for batch in loader)
        seconds["shuffled batches"].append(time.perf_counter() - started)
        cpu_seconds["shuffled batches"].append(time.process_time() - used)
        if seen != num_rows:
            raise RuntimeError(f"the loader gave {seen} rows of {num_rows}")
        say(", ".join(f"{name} {num_rows / times[-1]:,.0f} rows/s" for name, times in seconds.items()))
    sizes = [store.processor.vocab_size(field.name) for field in store.processor.fields if field.kind == "id"]
    for times in (seconds, cpu_seconds):
        times["fit and transform"] = [sum(pair) for pair in zip(times["fit"], times["transform and write"])]
    arrays = store.num_bytes
    del store, view, loader
    memory = json.loads(
        subprocess.run(
            [sys.executable, "-m", __name__, json.dumps([*shape]), str(path), str(small), str(memory_limit)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    memory["limit_bytes"] = memory_limit
    say(f"peak memory grew by {memory['growth_bytes'] / 2**20:.0f} MiB")
    return {
        "file": {"bytes": path.stat().st_size, "rows": num_rows, "write_seconds": written, "ids": int(np.sum(sizes))},
        "arrays_bytes": arrays,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "rows_per_second": {name: num_rows / statistics.median(times) for name, times in seconds.items()},
        "memory": memory,
        "settings": {
            "categorical": num_categorical,
            "numeric": num_numeric,
            "vocab_size": vocab_size,
            "batch_size": batch_size,
            "repeats": repeats,
        },
        "machine": machine() | {"pyarrow": pa.__version__},
    }


def write_csv(path: Path, num_rows: int, num_categorical: int, num_numeric: int, vocab_size: int) -> None:
    """A generated table as a CSV file with a header line; categorical values have eight hexadecimal digits, as Criteo's."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pacsv

    from lmctr.data import synthetic_table

    source = synthetic_table(num_rows, num_categorical, num_numeric, vocab_size=vocab_size, num_pairs=0)
    words = {}
    for place, size in enumerate(source.info.extra["vocab_sizes"]):
        codes = (np.arange(size, dtype=np.uint64) * _HEX + place) % 2**32
        words[f"C{place + 1}"] = pa.array([f"{code:08x}" for code in codes.tolist()])
    writer = None
    for rows in source.rows():
        columns = []
        for name, values in zip(rows.table.schema.names, rows.table.columns):
            whole = name.startswith("I")  # whole numbers, as Criteo's
            columns.append(words[name].take(values) if name in words else values.cast(pa.int64()) if whole else values)
        batch = pa.record_batch(columns, names=rows.table.schema.names)
        if writer is None:
            options = pacsv.WriteOptions(quoting_style="none")
            writer = pacsv.CSVWriter(path, batch.schema, write_options=options)
        writer.write_batch(batch)
    writer.close()


def _source(path: Path, shape: tuple[int, ...], memory_limit: int | None) -> TableSource:
    from lmctr.data import table_source

    _, num_categorical, num_numeric, _ = shape
    fields: list[dict[str, Any]] = [{"name": f"C{n + 1}", "type": "categorical"} for n in range(num_categorical)]
    for n in range(num_numeric):
        fields.append({"name": f"I{n + 1}", "type": "numeric", "transform": "quantile" if n % 2 else "log1p"})
    return table_source(path, "label", fields, memory_limit=memory_limit, fractions=(1, 0, 0))


def _fit_and_fill(
    path: Path, shape: tuple[int, ...], folder: Path, memory_limit: int | None
) -> tuple[list[tuple[float, float]], Any]:
    """Seconds (by the clock, then of the processor) of fitting and of filling the store, and the store."""
    from lmctr.data import TabularFeatureProcessor, TabularStore
    from lmctr.data.tables.store import processor_arguments

    source = _source(path, shape, memory_limit)
    processor = TabularFeatureProcessor(**processor_arguments(source))
    marks = [(time.perf_counter(), time.process_time())]
    processor.fit(source)
    marks.append((time.perf_counter(), time.process_time()))
    store = TabularStore.build(source, processor, folder, rebuild=True)
    marks.append((time.perf_counter(), time.process_time()))
    return [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(marks)], store


def _peak() -> int:
    """Peak resident bytes of this process. Linux hands `ru_maxrss` down to children, so its own record is read there."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _measure_memory(shape: tuple[int, ...], path: str, small: str, memory_limit: int) -> dict[str, int]:
    """Peak memory after a small file and after the large one, in a process of its own."""
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        _fit_and_fill(Path(small), shape, Path(folder) / "small", memory_limit)
        before = _peak()
        _, store = _fit_and_fill(Path(path), shape, Path(folder) / "large", memory_limit)
        after = _peak()
    held = sum(
        vocabulary.values.nbytes + vocabulary.counts.nbytes
        for vocabulary in store.processor.state.vocabularies.values()
    )
    return {"before_bytes": before, "growth_bytes": after - before, "vocabulary_bytes": held}


def as_markdown(result: dict[str, Any]) -> str:
    """The results as text with a table."""
    file, memory, place = result["file"], result["memory"], result["machine"]
    settings, mib = result["settings"], 2**20
    lines = [
        "## Features",
        "",
        f"CSV of {file['rows']:,} rows, {settings['categorical']} categorical and {settings['numeric']} numeric columns, "
        f"{file['bytes'] / mib:,.0f} MiB, {file['ids']:,} ids; arrays of {result['arrays_bytes'] / mib:,.0f} MiB; batches of "
        f"{settings['batch_size']:,}. Median of {settings['repeats']}.",
        f"{place['cores']} cores, {place['platform']}, Python {place['python']}, pyarrow {place['pyarrow']}, numpy "
        f"{place['numpy']}, torch {place['torch']}.",
        "",
        "| step | seconds | rows/s | processor seconds | rows per processor second |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, rate in result["rows_per_second"].items():
        wall, cpu = (statistics.median(result[key][name]) for key in ("seconds", "cpu_seconds"))
        lines.append(f"| {name} | {wall:.2f} | {rate:,.0f} | {cpu:.2f} | {file['rows'] / cpu:,.0f} |")
    lines += [
        "",
        f"Peak memory of fit and transform: {memory['growth_bytes'] / mib:,.0f} MiB above that of a file of "
        f"{min(_WARM_ROWS, file['rows']):,} rows ({memory['before_bytes'] / mib:,.0f} MiB), with a limit of "
        f"{memory['limit_bytes'] / mib:,.0f} MiB for streaming. Vocabularies ({memory['vocabulary_bytes'] / mib:,.0f} MiB as "
        "values and counts), their look-up tables and the sample for quantiles come on top of the limit.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    _shape, _path, _small, _limit = sys.argv[1:]
    print(json.dumps(_measure_memory(tuple(json.loads(_shape)), _path, _small, int(_limit))))
