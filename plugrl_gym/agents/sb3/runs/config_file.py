"""Reading ``config.json``, without anything that takes time to import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from plugrl_gym.errors import UsageError

__all__ = ["CONFIG", "FORMAT", "read_config"]

CONFIG: Final = "config.json"
#: Of a whole run directory: what this version writes, and the newest that it reads.
FORMAT: Final = 1


def read_config(run_dir: Path) -> dict[str, Any]:
    """What is in a run's config.json, but for the number of its format.

    Raises:
        UsageError: There is none, or this version cannot read it.
    """
    path = run_dir / CONFIG
    if not run_dir.is_dir():
        raise UsageError(f"there is no run directory {run_dir}")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written = int(content.pop("format"))
    except FileNotFoundError:
        raise UsageError(f"{run_dir} holds no run: there is no {CONFIG} in it") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read ({error})") from None
    if written > FORMAT:
        raise UsageError(
            f"{run_dir} was written by a newer plugrl-gym (format {written}, this one reads "
            f"up to {FORMAT})"
        )
    return content
