"""Modules and directories that a user names."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

from plugrl_gym.errors import UsageError

__all__ = ["check_folder", "imported"]


def imported(name: str) -> ModuleType:
    """The module of that name, as ``my_package.envs``.

    Raises:
        ImportError: There is none, or it is no name of a module. What the module itself raises
            passes through.
    """
    if not name or name.startswith("."):
        raise ImportError(f"{name!r} is no name of a module")
    return importlib.import_module(name)


def check_folder(option: str, folder: Path) -> None:
    """Find out before the work whether files can be written there after it; nothing is made.

    Args:
        option: The one that named it.
        folder: May be missing, and its parents with it.

    Raises:
        UsageError: They cannot.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"{option} {folder}: {existing} is a file, not a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: {existing} may not be written to")
