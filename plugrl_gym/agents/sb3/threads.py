"""How many threads torch calculates with."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

import torch

from plugrl_gym.errors import UsageError

__all__ = ["TorchThreads", "check_torch_threads", "set_torch_threads"]

#: A number; "auto" to choose by the observations; None to leave torch as it is.
TorchThreads: TypeAlias = int | Literal["auto"] | None


def check_torch_threads(threads: object) -> None:
    """Find out whether it is one of these.

    Raises:
        UsageError: It is not.
    """
    number = isinstance(threads, int) and not isinstance(threads, bool) and threads >= 1
    if not (threads in (None, "auto") or number):
        raise UsageError(f"torch_threads: expected a number from 1 up or 'auto', got {threads!r}")


def set_torch_threads(threads: TorchThreads, sees_images: bool) -> None:
    """Tell torch, for this thread and those that have not calculated yet.

    A network for anything but images is too small for more than one thread: they wait for each
    other longer than they calculate, more so where the envs want the same cores. "auto" leaves
    torch its own number for images, and where the environment variable OMP_NUM_THREADS chose one.

    Args:
        threads: As the agent got it.
        sees_images: Whether the policy has a convolutional network.
    """
    if threads == "auto":
        threads = None if sees_images or "OMP_NUM_THREADS" in os.environ else 1
    if threads is not None:
        torch.set_num_threads(threads)
