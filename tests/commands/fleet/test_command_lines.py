"""What each of several client processes is told."""

from __future__ import annotations

import argparse

from plugrl_gym import rollout
from plugrl_gym.commands.fleet import command_lines, environment


def told(*arguments):
    """The options of each process, as it parses them."""
    lines = command_lines(rollout.add_options, rollout._options(list(map(str, arguments))))
    return [rollout._options(line) for line in lines]


def test_seeds_are_those_that_one_process_with_all_envs_would_give():
    processes = told("CartPole-v1", "--procs", 3, "--num-envs", 4, "--seed", 7)
    seeds = [own.seed + env for own in processes for env in range(own.num_envs)]
    assert seeds == list(range(7, 7 + 12))


def test_without_a_number_of_envs_seeds_are_as_far_apart_as_the_default():
    assert [own.seed for own in told("CartPole-v1", "--procs", 2, "--seed", 0)] == [0, 8]


def test_without_a_seed_none_is_told():
    assert [own.seed for own in told("CartPole-v1", "--procs", 2)] == [None, None]


def test_every_other_option_is_passed_on():
    given = ["Pendulum-v1", "--procs", "2", "--num-envs", "3", "--vector", "async"]
    given += ["--autoreset", "next-step", "--env-kwargs", "g=-9.8", "--max-steps", "50"]
    given += ["--url", "ws://10.0.0.1:1", "--reconnect-timeout", "none", "--connect-timeout", "4"]
    parsed = rollout._options(given)
    for own in told(*given):
        for name, value in vars(parsed).items():
            if name not in ("procs", "seed", "quiet"):
                assert getattr(own, name) == value, name
        assert (own.procs, own.quiet) == (1, True)


def test_the_probe_needs_no_env():
    assert [own.probe for own in told("--probe", "--procs", 2)] == [True, True]


def test_the_first_process_evaluates_for_all():
    evaluating = told("CartPole-v1", "--procs", 4, "--eval-every", 1000)
    assert [own.eval_every for own in evaluating] == [250, None, None, None]
    assert told("CartPole-v1", "--procs", 4, "--eval-every", 2)[0].eval_every == 1


def test_a_verbose_command_has_verbose_processes():
    assert [own.verbose for own in told("CartPole-v1", "--procs", 2, "-v")] == [True, True]


def test_a_key_goes_by_the_environment(tmp_path):
    (tmp_path / "key").write_text("secret\n")
    for given in (["--api-key", "secret"], ["--api-key-file", str(tmp_path / "key")]):
        options = rollout._options(["CartPole-v1", "--procs", "2", *given])
        for line in command_lines(rollout.add_options, options):
            assert not any("key" in word or "secret" in word for word in line)
    assert environment("secret")["PLUGRL_API_KEY"] == "secret"
    assert environment(None)["PLUGRL_API_KEY"] == ""


def test_a_namespace_is_left_as_it_was():
    options = rollout._options(["CartPole-v1", "--procs", "2", "--seed", "1"])
    before = argparse.Namespace(**vars(options))
    command_lines(rollout.add_options, options)
    assert options == before
