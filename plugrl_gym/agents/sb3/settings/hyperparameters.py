"""The arguments of the algorithms' constructors: names and types."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Final

from stable_baselines3.common.base_class import BaseAlgorithm

from plugrl_gym.agents.sb3.settings.values import Mismatch, expected, read_value, there_is
from plugrl_gym.errors import UsageError

__all__ = ["canonical", "check_hyperparameters", "check_policy"]

# Arguments that the agent gives itself, and names that rl-baselines3-zoo has for other things.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "policy": "it is the argument policy (--policy)",
    "env": "the envs are at the clients",
    "seed": "it is the argument seed (--seed)",
    "n_envs": "it is the argument num_envs (--num-envs)",
    "n_timesteps": "it is the argument total_timesteps (--total-timesteps)",
    "normalize": "it is the argument normalize (--normalize)",
    "noise_type": "say action_noise as 'normal:0.1'",
    "noise_std": "say action_noise as 'normal:0.1'",
    "_init_setup_model": "the model is always set up",
}
# Where SB3 does not look, and would fail in mid run or learn nonsense: the least and the greatest.
_AT_LEAST_1: Final = (1, math.inf)
_SHARE: Final = (0, 1)
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys(("batch_size", "buffer_size", "n_epochs", "n_steps"), _AT_LEAST_1),
    **dict.fromkeys(("policy_delay", "target_update_interval", "train_freq"), _AT_LEAST_1),
    **dict.fromkeys(("cg_max_steps", "n_critic_updates", "sub_sampling_factor"), _AT_LEAST_1),
    **dict.fromkeys(("gamma", "gae_lambda", "tau"), _SHARE),
    **dict.fromkeys(("exploration_fraction",), _SHARE),
    **dict.fromkeys(("exploration_initial_eps", "exploration_final_eps"), _SHARE),
    "gradient_steps": (-1, math.inf),
    **dict.fromkeys(("learning_starts", "stats_window_size"), (0, math.inf)),
    **dict.fromkeys(("target_noise_clip", "target_policy_noise"), (0, math.inf)),
}
# What the model gives its policy.
_OF_THE_MODEL: Final = frozenset({"self", "observation_space", "action_space", "lr_schedule"})


def check_hyperparameters(
    algorithm: type[BaseAlgorithm],
    given: Mapping[str, Any],
    *,
    policy: object = None,
    where: str = "",
) -> dict[str, Any]:
    """Compare arguments with the constructor's signature, and read what text stands for.

    Args:
        algorithm: Whose constructor.
        given: Name -> value, or text as for :func:`~.values.read_value`.
        policy: The class that gets ``policy_kwargs``; anything else for the algorithm's own.
        where: Begins an error's text, as ``"my.yml, CartPole-v1: "``.

    Returns:
        A new dict.

    Raises:
        UsageError: An unknown name, or a value of another type; says what there is.
    """
    for name in given:
        if name in _ELSEWHERE:
            raise UsageError(f"{where}{name} is no hyperparameter here: {_ELSEWHERE[name]}")
    parameters = _parameters(algorithm)
    known = {name: p.annotation for name, p in parameters.items() if name not in _ELSEWHERE}
    title = algorithm.__name__
    checked = _read(given, known, f"{where}{title} has no hyperparameter", f"of {title}", where)
    for name in checked.keys() & _RANGES.keys():
        _check_range(checked[name], *_RANGES[name], f"{where}{name} of {title}")
    if checked.get("policy_kwargs"):
        made = policy if isinstance(policy, type) else algorithm.policy_aliases["MlpPolicy"]
        checked["policy_kwargs"] = _read_policy(made, checked["policy_kwargs"], title, where)
    return {name: canonical(name, value) for name, value in checked.items()}


def canonical(name: str, value: Any) -> Any:
    """One value for all those of a hyperparameter that SB3 does not tell apart.

    Args:
        name: Of the hyperparameter.
        value: As read, or as it comes back from JSON.

    Example:
        >>> canonical("train_freq", (4, "step")), canonical("replay_buffer_kwargs", {})
        (4, None)
    """
    if name == "train_freq" and isinstance(value, tuple | list) and list(value[1:]) == ["step"]:
        return value[0]
    return None if name.endswith("_kwargs") and not value else value


def _check_range(value: Any, least: float, greatest: float, place: str) -> None:
    number = value[0] if isinstance(value, tuple) else value
    if isinstance(number, int | float) and not least <= number <= greatest:
        upper = "up" if greatest == math.inf else f"to {greatest}"
        raise UsageError(f"{place}: expected a number from {least} {upper}, got {value!r}")


def _parameters(constructed: type[Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(constructed, eval_str=True).parameters
    except NameError:  # annotations as text, of what is imported for type checkers only
        return inspect.signature(constructed).parameters


def _read_policy(
    policy: type[Any], given: Mapping[str, Any], title: str, where: str
) -> dict[str, Any]:
    parameters = _parameters(policy)
    known = {name: p.annotation for name, p in parameters.items() if name not in _OF_THE_MODEL}
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        known = {name: known.get(name, Any) for name in given}
    place = f"policy_kwargs of {title}"
    return _read(given, known, f"{where}{place} has no", f"in {place}", where)


def _read(
    given: Mapping[str, Any], known: Mapping[str, Any], unknown: str, place: str, where: str
) -> dict[str, Any]:
    """The values by name, as their annotations want them."""
    read = {}
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"{unknown} {name!r}; {there_is(name, known)}")
        try:
            read[name] = read_value(value, known[name])
        except Mismatch as mismatch:
            why = str(mismatch) or f"expected {expected(known[name])}, got {value!r}"
            raise UsageError(f"{where}{name} {place}: {why}") from mismatch
    return read


def check_policy(algorithm: type[BaseAlgorithm], policy: object, where: str = "") -> None:
    """Find out whether the algorithm has a policy of this name; a class and None pass.

    Raises:
        UsageError: It has none.
    """
    if isinstance(policy, str) and policy not in algorithm.policy_aliases:
        there = there_is(policy, algorithm.policy_aliases)
        raise UsageError(f"{where}{algorithm.__name__} has no policy {policy!r}; {there}")
