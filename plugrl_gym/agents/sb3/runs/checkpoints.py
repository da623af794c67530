"""The checkpoints of one run: ``checkpoints/STEPS/``, whole or not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from plugrl_gym.agents.sb3.runs import disk
from plugrl_gym.errors import UsageError

__all__ = [
    "CHECKPOINTS",
    "FORMAT",
    "Checkpoints",
    "DamagedCheckpoint",
    "check_unused",
    "read_note",
]

#: Their directory in that of a run.
CHECKPOINTS: Final = "checkpoints"
#: What this version writes, and the newest that it reads.
FORMAT: Final = 1
_NOTE: Final = "checkpoint.json"


class DamagedCheckpoint(UsageError):
    """A checkpoint's files are not what was written."""


def check_unused(run_dir: Path) -> None:
    """See that a run that begins does not come over another one.

    Raises:
        UsageError: There is one.
    """
    if Checkpoints(run_dir / CHECKPOINTS).found():
        raise UsageError(
            f"{run_dir} holds a run: go on with it by --resume {run_dir}, or choose another "
            "--run-dir"
        )


class Checkpoints:
    """The checkpoints below one directory.

    Args:
        directory: Made at the first write.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def found(self) -> list[Path]:
        """All that are there, newest first."""
        if not self.directory.is_dir():
            return []
        numbered = {_number(path.name): path for path in self.directory.iterdir()}
        return [numbered[number] for number in sorted(numbered, reverse=True) if number[0] >= 0]

    def write(self, steps: int, note: Mapping[str, Any], fill: Callable[[Path], None]) -> Path:
        """Write one.

        Args:
            steps: Env steps of the run so far; one that is there already stays.
            note: For its checkpoint.json.
            fill: Writes its files into an empty directory.

        Raises:
            OSError: It was not written; all others are as they were.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        target = self._free(steps)
        part = disk.unfinished(target)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        try:
            fill(part)
            files = {path.name: _entry(path) for path in sorted(part.iterdir())}
            text = json.dumps({"format": FORMAT, "steps": steps, **note, "files": files}, indent=2)
            (part / _NOTE).write_text(f"{text}\n", encoding="utf-8")
            for path in part.iterdir():
                disk.sync(path)
            disk.sync(part)
            part.rename(target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        disk.sync(self.directory)
        return target

    def keep(self, number: int, newest: Path) -> None:
        """Remove all but the newest of each of the last ``number`` steps that were saved.

        Args:
            number: How many stay.
            newest: The last one written. One of later steps was damaged, and the run has gone on
                from before it; it would push out a whole one.
        """
        kept: set[int] = set()
        last = _number(newest.name)
        for path in self.found():
            steps, again = _number(path.name)
            if (steps, again) <= last and steps not in kept and len(kept) < number:
                kept.add(steps)
                continue
            # Under a hidden name first: a directory half removed would be taken for a damaged one.
            part = disk.unfinished(path)
            shutil.rmtree(part, ignore_errors=True)
            path.rename(part)
            shutil.rmtree(part, ignore_errors=True)

    def _free(self, steps: int) -> Path:
        """A name that is not there yet: the steps, with a number where they were saved before."""
        path, again = self.directory / str(steps), 1
        while path.exists():
            again += 1
            path = self.directory / f"{steps}-{again}"
        return path


def read_note(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, once its files have proved to be whole.

    Raises:
        DamagedCheckpoint: A file is missing or damaged.
        UsageError: The checkpoint is of a newer format.
    """
    try:
        note: dict[str, Any] = json.loads((checkpoint / _NOTE).read_text(encoding="utf-8"))
        written, files = int(note["format"]), dict(note["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{checkpoint / _NOTE} cannot be read ({error})") from None
    if written > FORMAT:
        raise UsageError(
            f"{checkpoint} was written by a newer plugrl-gym (format {written}, this one reads "
            f"up to {FORMAT})"
        )
    for name, expected in files.items():
        path = checkpoint / name
        try:
            found = _entry(path)
        except OSError as error:
            raise DamagedCheckpoint(f"{path} cannot be read ({error.strerror})") from None
        if found != expected:
            raise DamagedCheckpoint(f"{path} is damaged")
    return note


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "crc32": disk.checksum(path)}


def _number(name: str) -> tuple[int, int]:
    """The order of a checkpoint's name; negative for anything else."""
    steps, dash, again = name.partition("-")
    if not (steps.isascii() and steps.isdigit() and again.isdigit() == bool(dash)):
        return (-1, 0)
    return (int(steps), int(again or 1))
