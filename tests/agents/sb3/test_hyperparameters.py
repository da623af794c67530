"""Constructor arguments of every algorithm: their names, their types, and what text stands for."""

from __future__ import annotations

import doctest
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.model import ModelPlan
from plugrl_gym.agents.sb3.settings import expressions, noise, values
from plugrl_gym.agents.sb3.settings.algorithms import ALGORITHMS, find_algorithm
from plugrl_gym.agents.sb3.settings.expressions import read_expression
from plugrl_gym.agents.sb3.settings.hyperparameters import check_hyperparameters
from plugrl_gym.errors import UsageError


def refused(algorithm: str, **given: Any) -> str:
    with pytest.raises(UsageError) as caught:
        check_hyperparameters(find_algorithm(algorithm), given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read(algorithm: str, name: str, value: Any) -> Any:
    return check_hyperparameters(find_algorithm(algorithm), {name: value})[name]


# -- names and types ---------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_refuses_an_unknown_name(algorithm: str) -> None:
    title = find_algorithm(algorithm).__name__
    assert refused(algorithm, learning_rat=1.0) == (
        f"{title} has no hyperparameter 'learning_rat'; did you mean 'learning_rate'?"
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_refuses_an_ill_typed_value(algorithm: str) -> None:
    title = find_algorithm(algorithm).__name__
    assert refused(algorithm, gamma="high") == f"gamma of {title}: expected float, got 'high'"
    assert refused(algorithm, learning_rate=[1]) == (
        f"learning_rate of {title}: expected float or a schedule (a function, or as 'lin_0.001'), "
        "got [1]"
    )
    assert refused(algorithm, policy_kwargs={"net_arch": "64"}).startswith(
        f"net_arch in policy_kwargs of {title}: expected list or "
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_takes_its_own_defaults(algorithm: str) -> None:
    import inspect

    cls = find_algorithm(algorithm)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(cls).parameters.items()
        if name not in ("policy", "env", "seed", "_init_setup_model")
    }
    assert check_hyperparameters(cls, defaults) == defaults


@pytest.mark.parametrize(
    ("algorithm", "name", "value", "sentence"),
    [
        ("ppo", "batch_size", "abc", "batch_size of PPO: expected int, got 'abc'"),
        ("dqn", "buffer_size", 1.5, "buffer_size of DQN: expected int, got 1.5"),
        ("sac", "train_freq", [1], "train_freq of SAC: expected int or (int, str), got [1]"),
        ("sac", "train_freq", "1", "train_freq of SAC: expected int or (int, str), got '1'"),
        ("sac", "ent_coef", [0.1], "ent_coef of SAC: expected str or float, got [0.1]"),
        ("qrdqn", "max_grad_norm", "x", "max_grad_norm of QRDQN: expected float or None, got 'x'"),
        ("crossq", "gamma", float("inf"), "gamma of CrossQ: inf is not a finite number"),
        ("sac", "ent_coef", "nan", "ent_coef of SAC: nan is not a finite number"),
        ("tqc", "target_entropy", "-inf", "target_entropy of TQC: -inf is not a finite number"),
        (
            "td3",
            "target_policy_noise",
            -1.0,
            "target_policy_noise of TD3: expected a number from 0 up, got -1.0",
        ),
        (
            "ppo",
            "stats_window_size",
            -1,
            "stats_window_size of PPO: expected a number from 0 up, got -1",
        ),
        ("crossq", "gamma", 1.01, "gamma of CrossQ: expected a number from 0 to 1, got 1.01"),
        ("dqn", "batch_size", 0, "batch_size of DQN: expected a number from 1 up, got 0"),
        ("td3", "train_freq", 0, "train_freq of TD3: expected a number from 1 up, got 0"),
        (
            "sac",
            "train_freq",
            (0, "episode"),
            "train_freq of SAC: expected a number from 1 up, got (0, 'episode')",
        ),
        (
            "tqc",
            "gradient_steps",
            -2,
            "gradient_steps of TQC: expected a number from -1 up, got -2",
        ),
        (
            "td3",
            "action_noise",
            "gauss:0.1",
            "action_noise of TD3: expected action noise (as 'normal:0.1' or "
            "'ornstein-uhlenbeck:0.5') or None, got 'gauss:0.1'",
        ),
        (
            "tqc",
            "replay_buffer_class",
            "HerReplayBuffer",
            "replay_buffer_class of TQC: expected a class or None, got 'HerReplayBuffer'",
        ),
        ("trpo", "policy_kwargs", "big", "policy_kwargs of TRPO: expected dict or None, got 'big'"),
        (
            "ppo",
            "policy_kwargs",
            "dict(net_arch=f(3))",
            "policy_kwargs of PPO: 'f(3)' is neither a literal, dict(name=value) nor a name",
        ),
        (
            "ppo",
            "policy_kwargs",
            {"net_arc": [8]},
            "policy_kwargs of PPO has no 'net_arc'; did you mean 'net_arch'?",
        ),
        (
            "a2c",
            "policy_kwargs",
            {"activation_fn": "Relu"},
            "activation_fn in policy_kwargs of A2C: torch.nn has no Module named 'Relu'; "
            "did you mean 'ReLU'?",
        ),
        (
            "a2c",
            "policy_kwargs",
            {"optimizer_class": "ReLU"},
            "optimizer_class in policy_kwargs of A2C: torch.optim has no Optimizer named 'ReLU'",
        ),
        (
            "ppo",
            "policy_kwargs",
            {"net_arch": {"pi": ["x"]}},
            "net_arch in policy_kwargs of PPO: expected list or dict or None, got {'pi': ['x']}",
        ),
        ("ppo", "n_envs", 8, "n_envs is no hyperparameter here: it is the argument num_envs"),
    ],
)
def test_a_value_of_another_type_is_refused(
    algorithm: str, name: str, value: object, sentence: str
) -> None:
    assert refused(algorithm, **{name: value}).startswith(sentence)


# -- what text and literals stand for ----------------------------------------------------------


def test_a_list_stands_for_a_tuple() -> None:
    assert read("sac", "train_freq", [1, "episode"]) == (1, "episode")


def test_a_whole_float_stands_for_an_int() -> None:
    value = read("dqn", "buffer_size", 1e5)
    assert (value, type(value)) == (100_000, int)


def test_a_schedule_is_read_from_text() -> None:
    schedule = read("tqc", "learning_rate", "lin_7.3e-4")
    assert isinstance(schedule, LinearSchedule)
    assert schedule(0.5) == pytest.approx(3.65e-4)


@pytest.mark.parametrize("text", ["lin_", "lin_1.2.3", "lin_-1", "lin_1e999", "lin_x", "exp_1"])
def test_text_that_is_no_schedule_is_refused(text: str) -> None:
    assert refused("ppo", clip_range=text).endswith(
        f"(a function, or as 'lin_0.001'), got {text!r}"
    )


def test_a_named_value_that_may_be_text_stays_text() -> None:
    assert read("sac", "ent_coef", "auto_0.1") == "auto_0.1"
    assert read("sac", "device", "cpu") == "cpu"


@pytest.mark.parametrize("name", ["ReLU", "nn.ReLU", "th.nn.ReLU", "torch.nn.ReLU"])
def test_classes_of_torch_go_by_name(name: str) -> None:
    given = read("sac", "policy_kwargs", {"activation_fn": name, "net_arch": (64, 64)})
    assert given == {"activation_fn": torch.nn.ReLU, "net_arch": [64, 64]}


def test_policy_arguments_are_read_from_an_expression() -> None:
    text = (
        "dict(log_std_init=-2, ortho_init=False, net_arch=dict(pi=[256], vf=[256]), "
        "activation_fn=nn.GELU, optimizer_class=RMSpropTFLike, optimizer_kwargs=dict(eps=1e-5),"
        "features_extractor_class=FlattenExtractor)"
    )
    assert read("ppo", "policy_kwargs", text) == {
        "log_std_init": -2,
        "ortho_init": False,
        "net_arch": {"pi": [256], "vf": [256]},
        "activation_fn": torch.nn.GELU,
        "optimizer_class": RMSpropTFLike,
        "optimizer_kwargs": {"eps": 1e-5},
        "features_extractor_class": FlattenExtractor,
    }


def test_the_arguments_of_an_own_policy_are_those_of_its_constructor() -> None:
    class Own(ActorCriticPolicy):
        def __init__(self, *args: Any, depth: int, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    given = {"policy_kwargs": {"depth": 3, "anything": "goes"}}
    assert check_hyperparameters(PPO, given, policy=Own) == given
    with pytest.raises(UsageError, match="depth in policy_kwargs of PPO: expected int, got 'x'"):
        check_hyperparameters(PPO, {"policy_kwargs": {"depth": "x"}}, policy=Own)


@pytest.mark.parametrize(
    "text", ["f(3)", "dict(3)", "dict(**x)", "{**{}}", "a[0]", "a if b else c", "lambda: 0", "("]
)
def test_an_expression_is_never_evaluated(text: str) -> None:
    with pytest.raises(ValueError):
        read_expression(text)


def test_what_was_given_is_left_alone() -> None:
    given = {"policy_kwargs": {"activation_fn": "ReLU"}}
    check_hyperparameters(PPO, given)
    assert given == {"policy_kwargs": {"activation_fn": "ReLU"}}


# -- exploration noise -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [("normal:0.1", NormalActionNoise), ("ornstein-uhlenbeck:0.1", OrnsteinUhlenbeckActionNoise)],
)
@pytest.mark.parametrize("algorithm", [TD3, DDPG, SAC])
def test_noise_is_made_for_as_many_dimensions_as_there_are(
    algorithm: type[TD3], text: str, kind: type[NormalActionNoise]
) -> None:
    checked = check_hyperparameters(algorithm, {"action_noise": text, "buffer_size": 10})
    numbers = spaces.Box(-2.0, 2.0, (3,), np.float32)
    model = ModelPlan(algorithm, checked).build(numbers, numbers, 1)
    assert type(model.action_noise) is kind
    assert model.action_noise._sigma.tolist() == [0.1] * 3
    assert model.action_noise._mu.tolist() == [0.0] * 3


@pytest.mark.parametrize("text", ["normal", "normal:", "normal:-1", "normal:nan", ":0.1", "0.1"])
def test_noise_that_has_no_kind_or_scale_is_refused(text: str) -> None:
    assert "expected action noise" in refused("ddpg", action_noise=text)


def test_discrete_actions_have_no_noise() -> None:
    with pytest.raises(UsageError, match="DQN has no hyperparameter 'action_noise'"):
        check_hyperparameters(DQN, {"action_noise": "normal:0.1"})


# -- policies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_refuses_a_policy_that_it_has_not(algorithm: str) -> None:
    title = find_algorithm(algorithm).__name__
    with pytest.raises(UsageError, match=rf"^{title} has no policy 'Deep'; it has MlpPolicy"):
        SB3Agent(algorithm, policy="Deep")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_takes_the_policy_that_the_user_names(algorithm: str) -> None:
    cls = find_algorithm(algorithm)
    actions: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (2,), np.float32)
    if algorithm in ("dqn", "qrdqn"):
        actions = spaces.Discrete(3)
    seen: dict[str, spaces.Space[Any]] = {
        "MlpPolicy": spaces.Box(-1.0, 1.0, (3,), np.float32),
        "CnnPolicy": spaces.Box(0, 255, (3, 36, 36), np.uint8),
        "MultiInputPolicy": spaces.Dict({"a": spaces.Box(-1.0, 1.0, (3,), np.float32)}),
    }
    small = {} if cls.__name__ in ("PPO", "A2C", "TRPO") else {"buffer_size": 4}
    for name, policy in cls.policy_aliases.items():
        model = ModelPlan(cls, small, name).build(seen[name], actions, 1)
        assert type(model.policy) is policy


@pytest.mark.parametrize(
    ("policy", "space", "sentence"),
    [
        ("CnnPolicy", spaces.Box(-1.0, 1.0, (3,), np.float32), "CnnPolicy takes uint8 images"),
        (
            "MultiInputPolicy",
            spaces.Box(-1.0, 1.0, (3,), np.float32),
            "MultiInputPolicy takes a Dict",
        ),
        ("MlpPolicy", spaces.Dict({"a": spaces.Discrete(2)}), "MlpPolicy takes no Dict"),
    ],
)
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_policy_that_cannot_see_the_observations_is_refused(
    algorithm: str, policy: str, space: spaces.Space[Any], sentence: str
) -> None:
    numbers = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    with pytest.raises(UsageError, match=sentence):
        SB3Agent(algorithm, policy=policy, observation_space=space, action_space=numbers)


@pytest.mark.parametrize("module", [expressions, noise, values])
def test_the_examples_in_docstrings_are_true(module: Any) -> None:
    tried = doctest.testmod(module)
    assert (tried.failed, tried.attempted > 0) == (0, True)
