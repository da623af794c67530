"""SB3's callbacks over the end of a process: how often they were called goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback

__all__ = ["callback_state", "restore_callbacks"]

#: What SB3's own callbacks count by; anything else a callback keeps, it must save itself.
_COUNTS: Final = ("n_calls", "last_time_trigger")


def callback_state(callback: BaseCallback) -> list[tuple[str, dict[str, Any]]]:
    """Name and counts of each callback, those that are inside others after them."""
    return [
        (type(one).__name__, {name: vars(one)[name] for name in _COUNTS if name in vars(one)})
        for one in _each(callback)
    ]


def restore_callbacks(
    callback: BaseCallback, state: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    """Give callbacks the counts of those that stood in their place; others keep their own."""
    for one, (name, counts) in zip(_each(callback), state, strict=False):
        if type(one).__name__ == name:
            vars(one).update(counts)


def _each(callback: BaseCallback) -> Iterator[BaseCallback]:
    yield callback
    inner: list[BaseCallback | None] = []
    if isinstance(callback, CallbackList):
        inner = list(callback.callbacks)
    elif isinstance(callback, EventCallback):
        inner = [callback.callback]
    for one in inner:
        if one is not None:
            yield from _each(one)
