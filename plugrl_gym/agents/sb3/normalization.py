"""Running statistics of observations and rewards, by SB3's own VecNormalize.

SB3 normalises what its envs return. Here the envs are at the clients, so a VecNormalize stands
around the stand-in for them: SB3 finds it there, replay buffers normalise with it what they
sample, and its file is one that plain SB3 loads. It counts only what a :class:`Normalizer` is told
to count.
"""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from plugrl_gym.agents.sb3.policy_spaces import PolicyObservation
from plugrl_gym.agents.sb3.runs.disk import replace_file
from plugrl_gym.agents.sb3.settings.expressions import read_expression
from plugrl_gym.agents.sb3.settings.values import Mismatch, expected, read_value, there_is
from plugrl_gym.errors import UsageError

__all__ = ["Normalizer", "normalize_arguments", "normalized_envs", "policy_input_space"]

_PARAMETERS: Final = inspect.signature(VecNormalize).parameters
_OWN: Final = ("venv", "training")
_WORDS: Final = {"true": True, "false": False, "none": None}
#: What a file of VecNormalize tells, beside the spaces.
_SETTINGS: Final = tuple(name for name in _PARAMETERS if name not in _OWN)


def normalize_arguments(given: object, where: str = "") -> dict[str, Any] | Literal[False] | None:
    """What a user said of normalising, as arguments of VecNormalize.

    Args:
        given: True, False or None, VecNormalize's arguments by name, or a str with either as
            rl-baselines3-zoo writes them: ``"dict(norm_obs=True, norm_reward=False)"``.
        where: Begins the text of an error.

    Returns:
        False and None as they are.

    Raises:
        UsageError: It is something else, or VecNormalize takes no such argument.

    Example:
        >>> normalize_arguments(True), normalize_arguments("dict(norm_reward=False)")
        ({}, {'norm_reward': False})
    """
    value = given
    try:
        if isinstance(value, str):
            value = _WORDS[value.lower()] if value.lower() in _WORDS else read_expression(value)
        if value is None or value is False:
            return value
        if value is True:
            return {}
        if isinstance(value, Mapping):
            return {name: _checked(name, argument) for name, argument in value.items()}
    except ValueError as error:
        raise UsageError(f"{where}normalize: {error}") from error
    raise UsageError(
        f"{where}normalize: expected true, false or arguments of VecNormalize, got {given!r}"
    )


def _checked(name: str, value: Any) -> Any:
    if name not in _SETTINGS:
        raise ValueError(f"VecNormalize has no setting {name!r} here; {there_is(name, _SETTINGS)}")
    kind = _PARAMETERS[name].annotation
    try:
        read = read_value(value, kind)
    except Mismatch as mismatch:
        detail = str(mismatch) or f"expected {expected(kind)}, got {value!r}"
        raise ValueError(f"{name}: {detail}") from mismatch
    if isinstance(read, float) and read < 0:
        raise ValueError(f"{name}: {read} is less than 0")
    return read


def normalized_envs(venv: VecEnv, arguments: Mapping[str, Any]) -> VecNormalize:
    """Stand-in envs with the statistics around them.

    Args:
        venv: The stand-in.
        arguments: Of VecNormalize. Where they name no ``norm_obs_keys``, all numbers of a Dict
            are normalised. Images, and what SB3 makes one-hot vectors of, are not.

    Raises:
        UsageError: VecNormalize does not take them for these observations.
    """
    space, arguments = venv.observation_space, dict(arguments)
    if isinstance(space, spaces.Dict):
        numbers = [key for key, part in space.items() if _is_numbers(part)]
        keys = arguments.get("norm_obs_keys")
        for key in [] if keys is None else keys:
            if key not in numbers:
                raise UsageError(
                    f"normalize: norm_obs_keys: {key!r} is not among the numbers that the policy "
                    f"sees, {', '.join(numbers) or 'none'}"
                )
        arguments["norm_obs_keys"] = numbers if keys is None else keys
        some = bool(arguments["norm_obs_keys"])
    else:
        some = _is_numbers(space)
    if not some:
        arguments["norm_obs"] = False
    try:
        # Not training: SB3 resets the stand-in before it learns, and that would be counted.
        return VecNormalize(venv, training=False, **arguments)
    except ValueError as error:
        raise UsageError(f"normalize: {error}") from error


def _is_numbers(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and not is_image_space(space)


def policy_input_space(model: BaseAlgorithm) -> spaces.Space[Any]:
    """The model's observation space, float32 where its integers are normalised.

    A rollout buffer takes its dtype from there.
    """
    envs, space = model.get_vec_normalize_env(), model.observation_space
    if envs is None or not envs.norm_obs:
        return space
    if isinstance(space, spaces.Dict):
        keys = envs.norm_obs_keys or []
        return spaces.Dict([(k, _floats(p) if k in keys else p) for k, p in space.items()])
    return _floats(space)


def _floats(space: spaces.Space[Any]) -> spaces.Space[Any]:
    assert isinstance(space, spaces.Box)
    if space.dtype.kind == "f":
        return space
    return spaces.Box(-np.inf, np.inf, space.shape, np.float32)


class Normalizer:
    """Counts what a policy sees and earns, and normalises it.

    Each observation that the policy acts on for a learning client is counted once, before it is
    normalised, together with the others of its batch. So in lockstep the statistics are those of
    SB3's own VecNormalize, byte for byte, except for the last observation of the run, which
    nothing acts on. Rewards are counted and normalised as they come, by SB3's discounted return
    of each env; a chunk counts once, with its own reward and discount.

    One thing differs: SB3 knows the first observation of the next episode, and has counted it,
    when it normalises what an episode that was truncated, or a rollout, ended with. Here that
    observation has not come yet, so the values there are estimated without it.

    Args:
        envs: Of one model.
    """

    def __init__(self, envs: VecNormalize) -> None:
        self._envs = envs

    @classmethod
    def of(cls, model: BaseAlgorithm) -> Normalizer | None:
        """That of a model; None for one without."""
        envs = model.get_vec_normalize_env()
        return None if envs is None else cls(envs)

    def see(self, observation: PolicyObservation) -> PolicyObservation:
        """Count n rows that the policy acts on now; returns them normalised (copies)."""
        self._count(observation)
        return self.normalize(observation)

    def normalize(self, observation: PolicyObservation) -> PolicyObservation:
        """Rows, or a single one, by the statistics as they are (copies)."""
        normalized: PolicyObservation = self._envs.normalize_obs(observation)
        return normalized

    def foresee(
        self, observation: PolicyObservation, unseen: npt.NDArray[np.bool_]
    ) -> PolicyObservation:
        """Rows by the statistics as they will be once the policy has seen some of them (copies).

        Args:
            observation: n rows.
            unseen: bool [n], those that are yet to be counted.
        """
        if not (self._envs.norm_obs and unseen.any()):
            return self.normalize(observation)
        present = self._envs.obs_rms
        self._envs.obs_rms = copy.deepcopy(present)
        try:
            self._count(
                {key: part[unseen] for key, part in observation.items()}
                if isinstance(observation, dict)
                else observation[unseen]
            )
            return self.normalize(observation)
        finally:
            self._envs.obs_rms = present

    def __deepcopy__(self, memo: dict[int, Any]) -> Normalizer:
        """A copy that later counting does not change; SB3's own cannot be saved."""
        twin = object.__new__(VecNormalize)
        vars(twin).update(vars(self._envs))
        twin.ret_rms = copy.deepcopy(self._envs.ret_rms)
        if twin.norm_obs:
            twin.obs_rms = copy.deepcopy(self._envs.obs_rms)
        return Normalizer(twin)

    def _count(self, observation: PolicyObservation) -> None:
        if not self._envs.norm_obs:
            return
        statistics: Any = self._envs.obs_rms
        if isinstance(observation, dict):
            for key, of_key in statistics.items():
                of_key.update(observation[key])
        else:
            statistics.update(observation)

    def rewards(
        self, reward: npt.NDArray[np.float32], returns: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float32]:
        """Count the rewards of n transitions; returns them normalised (a copy).

        Args:
            reward: float32 [n].
            returns: float64 [n], of each env so far: what it was times the discount, plus the
                reward.
        """
        self._envs.ret_rms.update(returns)
        normalized: npt.NDArray[np.float32] = self._envs.normalize_reward(reward)
        return normalized

    def save(self, path: Path) -> None:
        """Write what ``VecNormalize.load(path, venv)`` of plain SB3 reads: whole, then renamed."""
        self._envs.training = True  # as a file of SB3's own learning has it
        try:
            content = pickle.dumps(self._envs)
        finally:
            self._envs.training = False
        replace_file(path, lambda file: file.write(content))

    def load(self, path: Path, chosen: Mapping[str, Any] | None = None) -> None:
        """Go on from a file of :meth:`save` or of plain SB3: its statistics and its settings.

        The file may run code when it is read, so its path must be the operator's.

        Args:
            path: Of the file.
            chosen: Arguments of VecNormalize, as these envs have them, that win over the file's.

        Raises:
            UsageError: There is no such file, or its observations are others.
        """
        try:
            with path.open("rb") as file:
                stored = pickle.load(file)
        except Exception as error:  # whatever the bytes make pickle do
            raise UsageError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
        if not isinstance(stored, VecNormalize):
            raise UsageError(f"{path} holds a {type(stored).__name__}, not a VecNormalize")
        ours, theirs = (_shapes(envs.observation_space) for envs in (self._envs, stored))
        if ours != theirs:
            raise UsageError(f"{path} has observations {theirs}, this run has {ours}")
        for name in set(_SETTINGS).difference(chosen or ()):
            setattr(self._envs, name, getattr(stored, name))
        self._envs.ret_rms = stored.ret_rms
        if stored.norm_obs:
            self._envs.obs_rms = self._known_statistics(stored.obs_rms)

    def _known_statistics(self, stored: Any) -> Any:
        """Those of a file; its own for a key of a Dict that the file did not normalise."""
        if not (self._envs.norm_obs and isinstance(stored, dict)):
            return stored
        fresh: Any = self._envs.obs_rms
        return {key: stored.get(key, fresh.get(key)) for key in self._envs.norm_obs_keys or ()}


def _shapes(space: spaces.Space[Any]) -> object:
    if isinstance(space, spaces.Dict):
        return {key: part.shape for key, part in space.items()}
    return space.shape
