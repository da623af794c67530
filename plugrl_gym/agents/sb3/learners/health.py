"""A number that is not finite, found at the update that made it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import recursive_getattr

from plugrl_gym.errors import RunFailed

__all__ = ["Health", "NotFinite", "check_actions", "forward_pass"]

#: How torch's distributions and samplers say it.
_NOT_FINITE: Final = re.compile(r"satisfy the constraint|\b(inf|nan)\b", re.IGNORECASE)


class NotFinite(RunFailed):
    """Learning made a NaN or an infinity; the text says which update, where."""


@contextmanager
def forward_pass(timesteps: int) -> Iterator[None]:
    """The block lets the policy choose actions after ``timesteps`` env steps.

    Raises:
        NotFinite: torch found a number that is not finite.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        lines = str(error).splitlines() or [""]
        if not _NOT_FINITE.search(str(error)):
            raise
        raise NotFinite(
            f"the policy's forward pass at env step {timesteps:,} met a number that is not finite "
            f"({lines[0][:200]})"
        ) from error


def check_actions(actions: Sequence[npt.NDArray[Any]], timesteps: int) -> None:
    """Look at actions before they go out.

    Raises:
        NotFinite: One of them is not finite.
    """
    for action in actions:
        if not np.isfinite(action).all():
            raise NotFinite(
                f"the policy's forward pass at env step {timesteps:,} gave an action that is not "
                f"finite ({action[~np.isfinite(action)][0]})"
            )


class Health:
    """Watches over one model's numbers.

    Args:
        model: Built.
    """

    def __init__(self, model: BaseAlgorithm) -> None:
        self._model = model
        self._trained = dict(_trained(model))
        self._tensors = list(self._trained.values())

    @contextmanager
    def watch(self, update: int) -> Iterator[None]:
        """The block trains the model for the ``update``-th time, counted from 1.

        Raises:
            NotFinite: A parameter is not finite any more, whatever else the block raised.
        """
        try:
            yield
        except Exception as error:  # of a distribution, a kernel, an assertion
            if not self._fine():
                raise NotFinite(self._blame(update)) from error
            raise
        if not self._fine():
            raise NotFinite(self._blame(update))

    def check(self) -> None:
        """Look at everything that a file of the model holds, optimizers too.

        Raises:
            NotFinite: It holds a number that is not finite.
        """
        for part, state in self._model.get_parameters().items():
            for name, tensor in _tensors(part, state):
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise NotFinite(
                        f"{name} is not finite after env step {self._model.num_timesteps:,}"
                    )

    def _fine(self) -> bool:
        """Whether the trained parameters are finite; a sum of squares tells it in one pass."""
        with torch.no_grad():
            norms = torch._foreach_norm(self._tensors)
            if math.isfinite(torch.stack(norms).sum()):
                return True
            # A square may be too large where the number is not.
            return all(bool(torch.isfinite(tensor).all()) for tensor in self._tensors)

    def _blame(self, update: int) -> str:
        name, tensor = next(
            (name, tensor)
            for name, tensor in self._trained.items()
            if not bool(torch.isfinite(tensor).all())
        )
        values = tensor.detach()
        bad = values[~torch.isfinite(values)]
        return (
            f"update {update:,}, at env step {self._model.num_timesteps:,}, made "
            f"{len(bad):,} of {values.numel():,} numbers in {name} not finite ({bad[0].item()})"
        )


def _trained(model: BaseAlgorithm) -> Iterator[tuple[str, torch.Tensor]]:
    """What optimizers change, by name; everything else, as target networks, follows it."""
    names = {id(tensor): f"policy.{name}" for name, tensor in model.policy.named_parameters()}
    state_dicts, variables = model._get_torch_save_params()
    names.update({id(recursive_getattr(model, name)): name for name in variables})
    for name in state_dicts:
        part = recursive_getattr(model, name)
        if isinstance(part, torch.optim.Optimizer):
            for number, tensor in enumerate(_parameters(part)):
                yield names.get(id(tensor), f"{name}.{number}"), tensor


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _tensors(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(f"{name}.{key}", item)
