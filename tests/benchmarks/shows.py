"""A show: tasks that each leave a record, and a section of RESULTS.md made from the records."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.processes import ROOT, environment

__all__ = ["RESULTS", "Record", "Show", "Task", "main", "replace_section", "setup_line", "table"]

RESULTS: Final = Path(__file__).with_name("RESULTS.md")

_DISTRIBUTIONS: Final = (
    "plugrl-gym",
    "stable-baselines3",
    "sb3-contrib",
    "gymnasium",
    "torch",
    "numpy",
)

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """One run.

    Attributes:
        key: Its name among the tasks of all shows; also its directory, so ``/`` separates.
        settings: All that the result hangs on, for JSON; a record with others does not count.
        run: Does it in a directory of its own and returns what to record.
    """

    key: str
    settings: Mapping[str, Any]
    run: Callable[[Path], Mapping[str, Any]]


class Show(ABC):
    """What one program measures.

    Attributes:
        name: Names its tasks and its section of RESULTS.md.
        module: To be run by ``python -m``.
    """

    name: str
    module: str

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Options that choose among the tasks."""

    @abstractmethod
    def tasks(self, options: argparse.Namespace) -> list[Task]:
        """The chosen tasks, in the order in which to run them."""

    @abstractmethod
    def section(self, records: Mapping[str, Record]) -> str:
        """Markdown, from the records of the chosen tasks that there are, at least one, by key."""


def main(show: Show, arguments: Sequence[str] | None = None) -> int:
    """Run the tasks that have no record yet, or write the table; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(show).parse_args(given)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's `&` does that, to all that is started from here too; clients leave by Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    tasks = show.tasks(options)
    if options.only is not None:
        (task,) = (task for task in tasks if task.key == options.only)
        _run_here(task, options.out)
        return 0
    if options.table:
        records = _records(options.out, tasks, _published(options.results))
        text = show.section(records) if records else "Nothing measured yet."
        replace_section(options.results, show.name, text)
        _publish(records, _published(options.results))
        print(f"{options.results.name}: {show.name}: {len(records)} of {len(tasks)} runs")
        return 0
    return _run_missing(show, tasks, options, given)


def _parser(show: Show) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {show.module}",
        description=sys.modules[type(show).__module__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    show.add_options(parser)
    add = parser.add_argument
    add(
        "--out",
        type=lambda text: Path(text).absolute(),
        default=ROOT / "runs" / "benchmarks",
        metavar="DIR",
        help="gets the records and the files of each run (runs/benchmarks)",
    )
    add("--jobs", type=int, default=1, metavar="N", help="runs at a time (%(default)s)")
    add("--again", action="store_true", help="do not keep the records that there are")
    add("--published", action="store_true", help="do not repeat the runs in records.jsonl")
    add(
        "--table",
        action="store_true",
        help="run nothing; write the section of RESULTS.md, from these records and records.jsonl",
    )
    add("--results", type=Path, default=RESULTS, metavar="FILE", help=argparse.SUPPRESS)
    add("--only", metavar="KEY", help=argparse.SUPPRESS)  # in a process of its own
    return parser


def _run_missing(
    show: Show, tasks: Sequence[Task], options: argparse.Namespace, given: Sequence[str]
) -> int:
    known = _published(options.results) if options.published else None
    done = {} if options.again else _records(options.out, tasks, known)
    missing = [task for task in tasks if task.key not in done]
    print(f"{show.name}: {len(tasks)} runs, {len(missing)} to do, {options.jobs} at a time")

    def run(task: Task) -> bool:
        folder = options.out / task.key
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
        folder.mkdir(parents=True)
        began = time.monotonic()
        with (folder / "task.log").open("wb") as log:
            code = subprocess.run(
                [sys.executable, "-m", show.module, *given, "--only", task.key],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(None),
            ).returncode
        verdict = "done" if code == 0 else f"FAILED, see {folder / 'task.log'}"
        print(f"{task.key}: {verdict} in {time.monotonic() - began:.0f} s", flush=True)
        return code == 0

    pool = ThreadPoolExecutor(options.jobs)
    try:
        fine = list(pool.map(run, missing))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return 0 if all(fine) else 1


def _run_here(task: Task, out: Path) -> None:
    folder = out / task.key
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    found = task.run(folder)
    record = {
        "key": task.key,
        "settings": task.settings,
        **found,
        "task_seconds": round(time.monotonic() - began, 1),
        **_setup(),
    }
    with (out / "records.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def _records(out: Path, tasks: Iterable[Task], known: Path | None = None) -> dict[str, Record]:
    """The latest record of each task that has one of the same settings.

    Args:
        out: Where records of here are.
        tasks: Whose records.
        known: A file with older ones.
    """
    wanted = {task.key: json.loads(json.dumps(task.settings)) for task in tasks}
    return {
        record["key"]: record
        for path in (known, out / "records.jsonl")
        for record in _read(path)
        if record["key"] in wanted and record["settings"] == wanted[record["key"]]
    }


def _read(path: Path | None) -> list[Record]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _published(results: Path) -> Path:
    """The records behind the tables of RESULTS.md, for whoever wants to know more of a run."""
    return results.with_name("records.jsonl")


def _publish(records: Mapping[str, Record], path: Path) -> None:
    """Enter records into the published ones."""
    merged = {record["key"]: record for record in _read(path)} | dict(records)
    lines = [json.dumps(merged[key], sort_keys=True) + "\n" for key in sorted(merged)]
    path.write_text("".join(lines), encoding="utf-8")


def _setup() -> dict[str, Any]:
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    return {"versions": versions, "python": platform.python_version(), "machine": machine}


def setup_line(records: Iterable[Record]) -> str:
    """Versions and machine of some records, as a sentence for each combination."""
    found = {
        f"{r['machine']}; Python {r['python']}, "
        + ", ".join(f"{n} {r['versions'][n]}" for n in _DISTRIBUTIONS if n in r["versions"])
        for r in records
    }
    return "\n".join(f"Measured on {line}." for line in sorted(found))


def replace_section(path: Path, name: str, text: str) -> None:
    """Put a section between its two markers in a markdown file.

    Raises:
        ValueError: The file has no such markers.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    whole = path.read_text(encoding="utf-8")
    before, found, rest = whole.partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise ValueError(f"{path.name} has no markers {begin} and {end}")
    path.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)
