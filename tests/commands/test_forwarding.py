"""Options that one command says again to another."""

from __future__ import annotations

import argparse
import doctest
from collections.abc import Callable

import pytest

from plugrl_gym.commands import forwarding
from plugrl_gym.commands.forwarding import given_options, said_again
from plugrl_gym.commands.options import add_env_options, add_learner_options


def add_envs(parser: argparse.ArgumentParser) -> None:
    add_env_options(parser, "one")


def parsed(
    add: Callable[[argparse.ArgumentParser], object], arguments: list[str]
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add(parser)
    return parser.parse_args(arguments)


def every_option(add: Callable[[argparse.ArgumentParser], object]) -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    add(parser)
    return parser._actions


def sample(action: argparse.Action) -> list[str]:
    """A use of the option that differs from its default."""
    flag = action.option_strings[0]
    if action.nargs == 0:
        return [flag]
    if action.choices is not None:
        return [flag, next(str(c) for c in action.choices if c != action.default)]
    for text in ("7", "0.5", "a=-1", "auto", "normal:0.1", "sim-v0"):
        try:
            value = text if action.type is None else action.type(text)
        except (argparse.ArgumentTypeError, ValueError):
            continue
        if value != action.default:
            return [flag, text]
    raise AssertionError(f"no sample for {flag}")


@pytest.mark.parametrize("add", [add_learner_options, add_envs])
def test_every_option_of_a_group_says_itself_again(add):
    actions = every_option(add)
    assert len(actions) > 3
    for action in actions:
        options = parsed(add, sample(action))
        assert getattr(options, action.dest) != action.default
        assert parsed(add, said_again(add, options)) == options


@pytest.mark.parametrize(
    "value", ["-1", "'3'", "x y", "{'net_arch': [64, 64]}", "none", "True", "", "it's", "1e-3"]
)
def test_assignments_say_themselves_again(value):
    options = parsed(add_learner_options, ["-P", f"a={value}", "-P", "b=2"])
    assert parsed(add_learner_options, said_again(add_learner_options, options)) == options


def test_what_holds_its_default_is_not_said():
    assert said_again(add_learner_options, parsed(add_learner_options, [])) == []


def test_a_value_that_begins_with_a_dash_stays_a_value():
    options = parsed(add_learner_options, ["--run-dir=-x"])
    assert said_again(add_learner_options, options) == ["--run-dir=-x"]


def test_a_negated_option_is_said_by_its_negative():
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--colour", action=argparse.BooleanOptionalAction, default=True)

    assert said_again(add, argparse.Namespace(colour=False)) == ["--no-colour"]


def test_given_options_are_named_as_a_user_writes_them():
    options = parsed(add_learner_options, ["-P", "a=1", "--seed", "3"])
    assert given_options(add_learner_options, options) == {
        "hyperparameters": "-P",
        "seed": "--seed",
    }


def test_the_examples_in_docstrings_are_true():
    tried = doctest.testmod(forwarding)
    assert (tried.failed, tried.attempted > 0) == (0, True)
