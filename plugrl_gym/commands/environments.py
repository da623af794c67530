"""Envs from what a user types."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import gymnasium as gym
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from plugrl_gym.commands.entry import one_line
from plugrl_gym.commands.naming import imported
from plugrl_gym.conformance.probe_env import ProbeVectorEnv
from plugrl_gym.errors import UsageError

__all__ = ["DEFAULT_NUM_ENVS", "MakeFirst", "check_env_id", "make_envs", "probe_envs", "spaces_of"]

DEFAULT_NUM_ENVS: Final = 8

#: (a function that makes an env) -> an env made by it, and perhaps wrapped.
MakeFirst: TypeAlias = Callable[[Callable[..., gym.Env[Any, Any]]], gym.Env[Any, Any]]

#: How the ids of well-known packages begin; importing one registers its envs with Gymnasium.
_PACKAGES: Final = {"ALE/": "ale_py", "MiniGrid-": "minigrid", "BabyAI-": "minigrid"}


def check_env_id(env_id: str) -> None:
    """Find a misspelt id without making an env.

    Raises:
        UsageError: Gymnasium knows no such env; the text has its suggestion.
    """
    name = env_id.rpartition(":")[2]
    with _explained(env_id, {}):
        _register(env_id)
        if "-v" in name:  # make() completes an id without a version, spec() does not
            gym.spec(name)


def make_envs(
    env_id: str,
    num_envs: int,
    vector: str,
    autoreset: str,
    env_kwargs: Mapping[str, Any],
    make_first: MakeFirst | None = None,
) -> VectorEnv[Any, Any, Any]:
    """A vector env of registered envs.

    Args:
        env_id: As registered with Gymnasium; ``module:id`` imports the module first.
        num_envs: How many.
        vector: ``"sync"`` or ``"async"``.
        autoreset: ``"same-step"``, ``"next-step"`` or ``"disabled"``.
        env_kwargs: For each env.
        make_first: Makes the first env, with a function that makes one; takes arguments for it
            that ``env_kwargs`` win over. None for one as the others.

    Raises:
        UsageError: The env is unknown, not installed, or does not take ``env_kwargs``.
    """
    mode = AutoresetMode[autoreset.replace("-", "_").upper()]
    with _explained(env_id, env_kwargs), _workers_signals():
        _register(env_id)
        if make_first is not None:
            return _make_with_first(make_first, env_id, num_envs, vector, mode, env_kwargs)
        return gym.make_vec(
            env_id,
            num_envs=num_envs,
            vectorization_mode=vector,
            vector_kwargs={"autoreset_mode": mode},
            **env_kwargs,
        )


def _make_with_first(
    make_first: MakeFirst,
    env_id: str,
    num_envs: int,
    vector: str,
    mode: AutoresetMode,
    env_kwargs: Mapping[str, Any],
) -> VectorEnv[Any, Any, Any]:
    def make(**more: Any) -> gym.Env[Any, Any]:
        _register(env_id)  # a process of its own has not yet
        return gym.make(env_id, **{**more, **env_kwargs})

    kind = AsyncVectorEnv if vector == "async" else SyncVectorEnv
    envs = kind([lambda: make_first(make), *[make] * (num_envs - 1)], autoreset_mode=mode)
    name = env_id.rpartition(":")[2]
    envs.spec = gym.spec(name) if "-v" in name else None
    return envs


def probe_envs(num_envs: int, action_dim: int, autoreset: str) -> VectorEnv[Any, Any, Any]:
    """The probe environment (SPEC 10); arguments as for :func:`make_envs`.

    Raises:
        UsageError: More envs than it can have.
    """
    mode = AutoresetMode[autoreset.replace("-", "_").upper()]
    try:
        return ProbeVectorEnv(num_envs, action_dim, mode)
    except ValueError as error:
        raise UsageError(f"--probe: {one_line(error)}") from error


def spaces_of(env_id: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation and action space of a registered env, which is made and closed for that.

    Raises:
        UsageError: As :func:`make_envs`.
    """
    with _explained(env_id, {}):
        _register(env_id)
        env = gym.make(env_id)
    try:
        return env.observation_space, env.action_space
    finally:
        env.close()


def _register(env_id: str) -> None:
    """Import the package that brings an env: the ``module`` of ``module:id``, or a known one."""
    module, colon, name = env_id.rpartition(":")
    if colon:
        imported(module)
        return
    package = next((p for start, p in _PACKAGES.items() if name.startswith(start)), None)
    if package is None:
        return
    try:
        imported(package)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"env {env_id!r} comes with the package {package.replace('_', '-')}, which is not "
            'installed: pip install "plugrl-gym[envs]"'
        ) from error


@contextlib.contextmanager
def _explained(env_id: str, env_kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Turn what Gymnasium says about the user's choice of env into one sentence."""
    try:
        yield
    except gym.error.Error as error:
        raise UsageError(f"env {env_id!r}: {one_line(error)}") from error
    except ImportError as error:
        raise UsageError(f"env {env_id!r}: {one_line(error)}") from error
    except TypeError as error:
        if "keyword argument" not in str(error) or not env_kwargs:
            raise
        raise UsageError(f"env {env_id!r}: --env-kwargs: {one_line(error)}") from error


@contextlib.contextmanager
def _workers_signals() -> Iterator[None]:
    """Processes started meanwhile leave Ctrl-C to this one, which ends them by SIGTERM; else each
    would print a traceback of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    wanted = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
