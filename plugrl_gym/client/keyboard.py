"""A keyboard that takes over, by pygame: a person in place of the server's policy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.client.handed_out import read_actions
from plugrl_gym.errors import UsageError

__all__ = ["Keyboard"]

_TITLE: Final = "Hold a key to take over"
_SIZE: Final = (360, 60)


class Keyboard:
    """Takes over one env while a key is held; of several keys the one that was pressed last.

    The keys go to the window of an env with ``render_mode="human"`` in this process, else to a
    small window of its own.

    Args:
        keys: What pygame calls a key, as ``"left"``, ``"a"`` or ``"space"`` -> the env's action
            while it is held.
        env: Which env of the vector env.

    Raises:
        UsageError: There is no pygame, no screen, or no such key.

    Example:
        >>> import gymnasium as gym
        >>> from plugrl_gym import PlugRLVectorEnv
        >>> from plugrl_gym.client import Keyboard
        >>> envs = gym.make_vec("CartPole-v1", num_envs=1, render_mode="human")  # doctest: +SKIP
        >>> PlugRLVectorEnv(envs).run(takeover=Keyboard({"left": 0, "right": 1}))  # doctest: +SKIP
    """

    def __init__(self, keys: Mapping[str, Any], env: int = 0) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ModuleNotFoundError as error:
            raise UsageError(
                "Keyboard needs pygame, which is not installed: "
                'pip install "gymnasium[classic-control]"'
            ) from error
        self._pygame = pygame
        self._env = env
        self._screen()
        self._actions = {self._code(name): action for name, action in keys.items()}
        self._held: list[int] = []

    def _screen(self) -> None:
        """Have a window for keys to go to; an env that is closed takes its own along."""
        try:
            self._pygame.display.init()
        except self._pygame.error as error:
            raise UsageError(f"Keyboard needs a screen: {error}") from error

    def _code(self, name: str) -> int:
        try:
            return self._pygame.key.key_code(name)
        except ValueError:
            raise UsageError(
                f"Keyboard: pygame knows no key {name!r}; keys are called as 'left', 'a', 'space'"
            ) from None

    def __call__(self, observation: Any, actions: npt.NDArray[Any]) -> Any:
        """See :data:`~plugrl_gym.client.takeover.Takeover`."""
        if not 0 <= self._env < len(actions):
            raise UsageError(f"Keyboard: there is no env {self._env} among {len(actions)}")
        self._read()
        if not self._held:
            return None
        row = slice(self._env, self._env + 1)
        held = self._actions[self._held[-1]]
        actions[row] = read_actions([held], actions[row], who="Keyboard")
        return actions, np.arange(len(actions)) == self._env

    def _read(self) -> None:
        pygame = self._pygame
        self._screen()
        if pygame.display.get_surface() is None:
            pygame.display.set_mode(_SIZE)
            pygame.display.set_caption(_TITLE)
        for event in pygame.event.get():
            if event.type not in (pygame.KEYDOWN, pygame.KEYUP) or event.key not in self._actions:
                continue
            if event.key in self._held:
                self._held.remove(event.key)
            if event.type == pygame.KEYDOWN:
                self._held.append(event.key)
