"""A user's file of settings, as rl-baselines3-zoo has them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from plugrl_gym.agents.sb3.settings.presets import Preset, make_preset
from plugrl_gym.errors import UsageError

__all__ = ["HyperparameterFile"]

# rl-baselines3-zoo's names -> ours.
_RENAMED: Final = {"n_envs": "num_envs", "n_timesteps": "total_timesteps"}
_OF_THE_ENVS: Final = frozenset(
    {"env_wrapper", "vec_env_wrapper", "frame_stack", "env_kwargs", "monitor_kwargs"}
)
# YAML 1.1 takes 1e-3 for text, for want of a point.
_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+")
_ATARI: Final = re.compile(r"ALE/|.*NoFrameskip-v\d+")
_MOST_NAMES: Final = 20


class HyperparameterFile:
    """A YAML or TOML file with settings of one run, or by env id with those of several.

    Beside arguments of the algorithm's constructor it may have ``n_envs``, ``n_timesteps``,
    ``policy``, ``normalize``, and ``noise_type`` with ``noise_std``.

    Args:
        path: TOML by its ending, else YAML.

    Raises:
        UsageError: It cannot be read, or holds something else.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path = Path(path)
        content = _load(path)
        if not (isinstance(content, dict) and content and all(isinstance(n, str) for n in content)):
            raise UsageError(f"{path}: expected settings, as 'n_steps: 128', got {content!r:.60}")
        self._content: dict[str, Any] = content
        # A file with nothing but policy_kwargs is a mapping of mappings, too.
        kwargs = any(name.endswith("_kwargs") for name in content)
        self._by_env = not kwargs and all(isinstance(v, dict) for v in content.values())

    def settings_for(self, algorithm: str, env_id: str | None) -> Preset | None:
        """The settings for an env.

        Args:
            algorithm: Lower case, as ``"ppo"``.
            env_id: None while nobody has said it.

        Returns:
            None where that hangs on the env, and its id is None.

        Raises:
            UsageError: There are none for this env, or one of them cannot be.
        """
        if not self._by_env:
            return self._preset(algorithm, env_id, self._content, str(self._path))
        if env_id is None:
            return None
        name = self._name(env_id)
        return self._preset(algorithm, env_id, self._content[name], f"{self._path}, {name}")

    def _name(self, env_id: str) -> str:
        fallback = "atari" if _ATARI.match(env_id) else "default"
        for name in (env_id, fallback):
            if name in self._content:
                return name
        close = get_close_matches(env_id, self._content, 1)
        names = ", ".join(list(self._content)[:_MOST_NAMES])
        there = f"did you mean {close[0]!r}?" if close else f"it has {names}"
        raise UsageError(f"{self._path} has no settings for {env_id!r}; {there}")

    def _preset(
        self, algorithm: str, env_id: str | None, given: Mapping[str, Any], source: str
    ) -> Preset:
        settings = {_RENAMED.get(name, name): _number(value) for name, value in given.items()}
        for name in _OF_THE_ENVS & settings.keys():
            raise UsageError(
                f"{source}: {name} changes the envs, which are at the client: give it there"
            )
        if settings.pop("callback", None) is not None:
            raise UsageError(f"{source}: callback can only be given in Python, to SB3Agent")
        for name in ("num_envs", "total_timesteps"):
            if name in settings:
                settings[name] = _count(settings[name], source, name)
        _join_noise(settings, source)
        return make_preset(algorithm, env_id, source, settings)


def _load(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path}: {error}") from error
    return _load_yaml(path, text)


def _load_yaml(path: Path, text: str) -> object:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise UsageError(
            f'{path}: YAML needs pyyaml, which is not installed: pip install "plugrl-gym[sb3]"'
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or "no YAML"
        raise UsageError(f"{path}{line}: {problem}") from error


def _number(value: Any) -> Any:
    """The value, with text that is a number in YAML 1.2 as one."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    if isinstance(value, dict):
        return {name: _number(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_number(part) for part in value]
    return value


def _count(value: object, source: str, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value % 1:
        theirs = {ours: theirs for theirs, ours in _RENAMED.items()}
        raise UsageError(
            f"{source}: {theirs[name]}: expected a whole number from 1 up, got {value!r}"
        )
    return int(value)


def _join_noise(settings: dict[str, Any], source: str) -> None:
    """``noise_type`` and ``noise_std`` as the one argument that they stand for."""
    kind, sigma = settings.pop("noise_type", None), settings.pop("noise_std", None)
    if kind is None and sigma is None:
        return
    if kind is None or sigma is None:
        raise UsageError(f"{source}: noise_type and noise_std go together")
    settings["action_noise"] = f"{kind}:{sigma}"
