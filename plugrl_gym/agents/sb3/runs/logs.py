"""A run's log of numbers: progress.csv, TensorBoard events, SB3's table on a console."""

from __future__ import annotations

import csv
import logging
import numbers
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from stable_baselines3.common import logger as sb3_logger
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import (
    DISABLED,
    CSVOutputFormat,
    HumanOutputFormat,
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
)

__all__ = ["RunLogger", "learning_time", "logged", "make_logger", "restore_logged"]

_log: Final = logging.getLogger(__name__)

#: SB3's column of the env steps.
_STEPS: Final = "time/total_timesteps"
#: SB3's name of the table on a console.
_TABLE: Final = "stdout"


def make_logger(
    run_dir: Path | None, console: TextIO | None, known: int | None = None
) -> RunLogger:
    """SB3's logger for one run.

    Args:
        run_dir: Gets progress.csv, and tensorboard/ where TensorBoard is installed; None for
            no files.
        console: Gets SB3's table; None for none.
        known: The env steps after which a run goes on; what the files tell of later ones has
            not happened. None for a run that begins.
    """
    formats: list[KVWriter] = []
    if console is not None:
        formats.append(HumanOutputFormat(console))
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        progress = run_dir / "progress.csv"
        formats.append(
            CSVOutputFormat(str(progress)) if known is None else _Further(progress, known)
        )
        if getattr(sb3_logger, "SummaryWriter", None) is not None:  # TensorBoard is installed
            formats.append(_events(run_dir / "tensorboard", known))
    return RunLogger(None if run_dir is None else str(run_dir), formats)


class RunLogger(Logger):
    """SB3's logger, for lines from two threads: one that learns, and one that evaluates.

    A full disk costs lines, not the run.

    Attributes:
        columns: Gives what somebody else wants in each line of the files; None for an empty place.
    """

    def __init__(self, folder: str | None, output_formats: list[KVWriter]) -> None:
        super().__init__(folder, output_formats)
        self.columns: Callable[[], Mapping[str, float | None]] = dict
        self._writing = threading.Lock()
        self._failed: set[int] = set()

    def dump(self, step: int = 0) -> None:
        """Write what was recorded."""
        if self.name_to_value:
            for name, value in self.columns().items():
                self.record(name, value, exclude=_TABLE)
        if self.level == DISABLED:
            return
        with self._writing:
            self._tell(self.name_to_value, self.name_to_excluded, step)
        for recorded in (self.name_to_value, self.name_to_count, self.name_to_excluded):
            recorded.clear()

    def write(
        self, values: dict[str, Any], excluded: dict[str, tuple[str, ...]], step: int
    ) -> None:
        """Write a line of other values, and leave what was recorded where it is."""
        with self._writing:
            self._tell(values, excluded, step)

    def close(self) -> None:
        """Close all files."""
        for output in self.output_formats:
            try:
                output.close()
            except OSError as error:
                self._warn(output, error)

    def _tell(
        self, values: dict[str, Any], excluded: dict[str, tuple[str, ...]], step: int
    ) -> None:
        for output in self.output_formats:
            try:
                output.write(values, excluded, step)
            except OSError as error:
                self._warn(output, error)

    def _warn(self, output: KVWriter, error: OSError) -> None:
        """Say it once for each output."""
        if id(output) not in self._failed:
            self._failed.add(id(output))
            kind = type(output).__name__.lstrip("_").removesuffix("OutputFormat")
            _log.warning("a log of numbers (%s) is not complete: %s; learning goes on", kind, error)


def _events(directory: Path, known: int | None) -> TensorBoardOutputFormat:
    events = TensorBoardOutputFormat(str(directory))
    if known is not None:
        events.writer.close()
        writer = type(events.writer)
        events.writer = writer(str(directory), purge_step=known + 1)
    return events


class _Further(CSVOutputFormat):
    """More lines for a progress.csv that is there.

    Args:
        path: Of the file.
        known: Lines of later env steps are left out, and one whose end is missing.
    """

    def __init__(self, path: Path, known: int) -> None:
        header, lines = _read(path, known)
        unfinished = path.with_name(f".{path.name}.part")
        unfinished.write_text("".join([header, *lines]), encoding="utf-8")
        os.replace(unfinished, path)
        super().__init__(os.devnull)
        super().close()
        self.file = path.open("r+", encoding="utf-8")
        self.file.seek(0, os.SEEK_END)
        self.keys = next(csv.reader([header]), [])


def _read(path: Path, known: int) -> tuple[str, list[str]]:
    """The header and the lines up to ``known`` env steps, each with its line end."""
    if not path.exists():
        return "", []
    whole = [line for line in path.read_text("utf-8").splitlines(keepends=True) if line[-1] == "\n"]
    if not whole:
        return "", []
    header, *lines = whole
    keys = next(csv.reader([header]))
    place = keys.index(_STEPS) if _STEPS in keys else None
    return header, [line for line in lines if _happened(line, place, known)]


def _happened(line: str, place: int | None, known: int) -> bool:
    values = next(csv.reader([line]), [])
    told = "" if place is None or place >= len(values) else values[place]
    return not told or float(told) <= known


def learning_time(model: BaseAlgorithm) -> int:
    """Nanoseconds on SB3's clock of the run."""
    return int(time.time_ns() - model.start_time)


def logged(logger: Logger) -> dict[str, Any]:
    """Numbers that were recorded for the next line of the log; anything else is left out."""
    values = {name: value for name, value in logger.name_to_value.items() if _is_plain(value)}
    return {
        "values": values,
        "counts": {name: logger.name_to_count[name] for name in values},
        "excluded": {name: logger.name_to_excluded[name] for name in values},
    }


def _is_plain(value: object) -> bool:
    return isinstance(value, numbers.Real | str)


def restore_logged(logger: Logger, state: Mapping[str, Any]) -> None:
    """Record again what :func:`logged` told."""
    logger.name_to_value.update(state["values"])
    logger.name_to_count.update(state["counts"])
    logger.name_to_excluded.update(state["excluded"])
