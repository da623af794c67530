"""What a run leaves in its directory: progress.csv, TensorBoard events, model.zip."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO

from stable_baselines3.common import logger as sb3_logger
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import (
    CSVOutputFormat,
    HumanOutputFormat,
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
)

__all__ = ["make_logger", "save_model"]


def make_logger(run_dir: Path | None, console: TextIO | None) -> Logger:
    """SB3's logger for one run.

    Args:
        run_dir: Gets progress.csv, and tensorboard/ where TensorBoard is installed; None for
            no files.
        console: Gets SB3's table; None for none.
    """
    formats: list[KVWriter] = []
    if console is not None:
        formats.append(HumanOutputFormat(console))
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        formats.append(CSVOutputFormat(str(run_dir / "progress.csv")))
        if getattr(sb3_logger, "SummaryWriter", None) is not None:  # TensorBoard is installed
            formats.append(TensorBoardOutputFormat(str(run_dir / "tensorboard")))
    return Logger(None if run_dir is None else str(run_dir), formats)


def save_model(model: BaseAlgorithm, path: Path) -> None:
    """Write a model that plain SB3 loads: whole, then under its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    with unfinished.open("wb") as file:
        model.save(file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
