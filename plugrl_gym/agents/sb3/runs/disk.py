"""Files that are there whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from collections.abc import Callable
from io import BufferedWriter
from pathlib import Path
from typing import Final

__all__ = ["checksum", "copy_file", "remove_leftovers", "replace_file", "sync", "unfinished"]

_PIECE: Final = 1 << 20


def unfinished(path: Path) -> Path:
    """The hidden name under which a file or directory is written."""
    return path.with_name(f".{path.name}.part")


def replace_file(path: Path, write: Callable[[BufferedWriter], object]) -> None:
    """Write a file whole, then under its name; its directory is made.

    Raises:
        OSError: What was under the name before is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = unfinished(path)
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def copy_file(source: Path, path: Path) -> None:
    """:func:`replace_file` with the content of another."""
    with source.open("rb") as content:
        replace_file(path, lambda file: shutil.copyfileobj(content, file))


def sync(path: Path) -> None:
    """Let a file or a directory reach the disk; systems that cannot open a directory need not."""
    if os.name == "nt" and path.is_dir():
        return
    # A file must be open for writing to be synced on Windows.
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(path: Path) -> str:
    """The CRC-32 of a file, in hexadecimal."""
    value = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            value = zlib.crc32(piece, value)
    return f"{value:08x}"


def remove_leftovers(directory: Path) -> None:
    """Remove what writes that never ended have left in a directory."""
    for path in directory.glob(".*.part"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
