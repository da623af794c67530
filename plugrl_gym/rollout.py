"""``python -m plugrl_gym.rollout``: step envs here with the actions of a server elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gymnasium.vector import VectorEnv

from plugrl_gym.client import PlugRLVectorEnv
from plugrl_gym.commands.entry import Leash, interrupt_main, run_command
from plugrl_gym.commands.environments import DEFAULT_NUM_ENVS, make_envs, probe_envs
from plugrl_gym.commands.options import (
    CommandParser,
    add_env_options,
    add_output_options,
    collected,
    count,
    seconds,
    whole,
)
from plugrl_gym.commands.output import Output
from plugrl_gym.commands.progress import ClientProgress, Reporter
from plugrl_gym.errors import RunFinished

__all__ = ["main"]

PROG = "plugrl-gym rollout"

_EXAMPLES = """\
  plugrl-gym rollout CartPole-v1
  plugrl-gym rollout Pendulum-v1 --num-envs 16 --url ws://192.168.1.20:8000
  plugrl-gym rollout my_package.envs:MyEnv-v0 --vector async --max-episodes 100

Start a server first, here or elsewhere:  plugrl-gym serve --algo ppo
The server chooses the actions and learns; the command ends when the server ends the run."""


def _parser() -> CommandParser:
    parser = CommandParser(
        PROG, "Step envs on this machine with the actions of a server elsewhere.", _EXAMPLES
    )
    parser.add_argument(
        "env_id",
        nargs="?",
        metavar="ENV_ID",
        help="an env that is registered with Gymnasium, as CartPole-v1; module:ID-v0 imports "
        "the module first",
    )
    _add_server(parser)
    add_env_options(parser, str(DEFAULT_NUM_ENVS))
    _add_length(parser)
    _add_probe(parser)
    add_output_options(parser)
    return parser


def _add_server(parser: CommandParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url",
        default="ws://127.0.0.1:8000",
        help="where the server is; host:port will do (default: ws://127.0.0.1:8000)",
    )
    group.add_argument(
        "--api-key",
        default=os.environ.get("PLUGRL_API_KEY"),
        metavar="KEY",
        help="for a server that wants one (default: the environment variable PLUGRL_API_KEY)",
    )
    group.add_argument(
        "--connect-timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long to try to reach it (default: 30)",
    )


def _add_length(parser: CommandParser) -> None:
    group = parser.add_argument_group("length")
    group.add_argument("--seed", type=whole, metavar="N", help="seed of the envs (default: none)")
    group.add_argument(
        "--max-steps", type=count, metavar="N", help="stop after N env steps, over all envs"
    )
    group.add_argument(
        "--max-episodes", type=count, metavar="N", help="stop after N episodes, over all envs"
    )


def _add_probe(parser: CommandParser) -> None:
    group = parser.add_argument_group("testing a server")
    group.add_argument(
        "--probe",
        action="store_true",
        help="run the protocol's probe environment (SPEC.md, section 10) in place of ENV_ID",
    )
    group.add_argument(
        "--action-dim",
        type=count,
        default=3,
        metavar="N",
        help="numbers in each of the probe's actions; as many as the server sends (default: 3)",
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.probe == (options.env_id is not None):
        parser.error("give an ENV_ID, as CartPole-v1, or --probe")
    if options.probe and (options.env_kwargs or options.vector != "sync"):
        parser.error("--probe takes neither --env-kwargs nor --vector")
    return options


def _make(options: argparse.Namespace) -> VectorEnv[Any, Any, Any]:
    num_envs = options.num_envs or DEFAULT_NUM_ENVS
    if options.probe:
        return probe_envs(num_envs, options.action_dim, options.autoreset)
    return make_envs(
        options.env_id,
        num_envs,
        options.vector,
        options.autoreset,
        collected(options.env_kwargs),
    )


@contextmanager
def _closing(envs: VectorEnv[Any, Any, Any], forcefully: dict[str, Any]) -> Iterator[None]:
    """Close the envs; after an error or Ctrl-C without waiting for what they are doing."""
    try:
        yield
    except BaseException:
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's, of a step that was under way
            envs.close(**forcefully)
        raise
    envs.close()


def _run(options: argparse.Namespace, output: Output) -> int:
    leash = Leash(held=options.parent is not None)
    leash.on_end = interrupt_main
    inner = _make(options)
    forcefully = {"terminate": True} if options.vector == "async" else {}
    progress: ClientProgress | None = None

    def on_wait(waited: float, what: str) -> None:
        if progress is not None:
            progress.on_wait(waited, what)

    with _closing(inner, forcefully):
        envs = PlugRLVectorEnv(
            inner,
            options.url,
            api_key=options.api_key,
            connect_timeout=options.connect_timeout,
            metadata_timeout=min(20.0, options.connect_timeout),
            on_wait=on_wait,
        )
        progress = ClientProgress(envs.stats, options.max_steps)
        with _closing(envs, forcefully):
            return _drive(envs, options, progress, output)


def _drive(
    envs: PlugRLVectorEnv, options: argparse.Namespace, progress: ClientProgress, output: Output
) -> int:
    env_id = "probe" if options.probe else options.env_id
    try:
        with Reporter(progress.read, output):
            summary = envs.run(
                seed=options.seed,
                max_steps=options.max_steps,
                max_episodes=options.max_episodes,
            )
    except RunFinished:
        output.say("The server's run was over before this client's first step.")
        output.result({"env_id": env_id, "env_steps": 0, "finished": True})
        return 0
    mean = summary.mean_return
    end = "The server ended the run" if summary.finished else "The limit was reached"
    output.say(
        f"{end}: {summary.env_steps:,} env steps in {summary.wall_seconds:,.0f} s "
        f"({summary.steps_per_second:,.0f} steps/s); {summary.episodes:,} episodes"
        + ("" if mean is None else f", mean return {mean:.1f} over the last 100")
    )
    output.result(
        {"env_id": env_id, "num_envs": envs.num_envs, "seed": options.seed} | summary.to_dict()
    )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _options(arguments)
    prog = options.parent or PROG

    def body() -> int:
        with Output(prog, options.quiet, options.json).opened() as output:
            return _run(options, output)

    return run_command(prog, body)


if __name__ == "__main__":
    sys.exit(main())
