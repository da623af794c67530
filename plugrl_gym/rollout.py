"""``python -m plugrl_gym.rollout``: step envs here with the actions of a server elsewhere."""

from __future__ import annotations

if __name__ == "__main__":
    from plugrl_gym.commands.starting import quiet_interrupt

    quiet_interrupt("plugrl-gym rollout")

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from gymnasium.vector import VectorEnv

from plugrl_gym.client import (
    EvaluationSummary,
    PeriodicEvaluation,
    PlugRLVectorEnv,
    RunSummary,
    Takeover,
)
from plugrl_gym.client.evaluation import Evaluation
from plugrl_gym.client.loop import summed_up
from plugrl_gym.client.progress import ClientProgress
from plugrl_gym.commands.entry import Leash, interrupt_main, run_command
from plugrl_gym.commands.environments import (
    DEFAULT_NUM_ENVS,
    MakeFirst,
    check_env_id,
    make_envs,
    probe_envs,
)
from plugrl_gym.commands.fleet import Fleet, command_lines, environment
from plugrl_gym.commands.keys import add_key_options, read_key
from plugrl_gym.commands.options import (
    CommandParser,
    add_env_options,
    add_evaluation_options,
    add_output_options,
    collected,
    count,
    seconds,
    seconds_or_none,
    whole,
)
from plugrl_gym.commands.output import Output
from plugrl_gym.commands.recording import Recording, add_recording_options
from plugrl_gym.commands.result import imbalance
from plugrl_gym.commands.stages import stage_table
from plugrl_gym.commands.takeover import add_takeover_options, find_takeover
from plugrl_gym.display import Pause, Reading, Reporter
from plugrl_gym.errors import RunFinished

__all__ = ["add_options", "judgement", "main"]

PROG = "plugrl-gym rollout"

# Far from the seeds of the training envs, which count from --seed.
_EVALUATION_SEED: Final = 1_000_003

_EXAMPLES = """\
  plugrl-gym rollout CartPole-v1
  plugrl-gym rollout Pendulum-v1 --num-envs 16 --url ws://192.168.1.20:8000
  plugrl-gym rollout my_package.envs:MyEnv-v0 --vector async --max-episodes 100
  plugrl-gym rollout CartPole-v1 --eval --max-episodes 20

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
    add_options(parser)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    _add_server(parser)
    add_env_options(parser, str(DEFAULT_NUM_ENVS))
    _add_length(parser)
    add_evaluation_options(parser).add_argument(
        "--eval",
        action="store_true",
        help="only evaluate: the server gives the most likely actions and learns nothing from "
        "them; with --max-episodes each env contributes an equal share, its first ones, so that "
        "short episodes are not favoured",
    )
    add_takeover_options(parser)
    add_recording_options(parser)
    _add_probe(parser)
    add_output_options(parser).add_argument(
        "--stats",
        action="store_true",
        help="at the end print how long env, encode, exchange, wire and decode took: p50, p95, p99",
    )


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url",
        default="ws://127.0.0.1:8000",
        help="where the server is; host:port will do (default: ws://127.0.0.1:8000)",
    )
    add_key_options(group, "for a server that wants a key")
    group.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="for wss://: trust the certificates in this PEM file, an authority's or the server's "
        "own (default: those that the system trusts)",
    )
    group.add_argument(
        "--connect-timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long to try to reach it (default: 30)",
    )
    group.add_argument(
        "--reconnect-timeout",
        type=seconds_or_none,
        default=300.0,
        metavar="SECONDS",
        help="how long to try again after a lost connection; none for ever (default: 300)",
    )
    group.add_argument(
        "--liveness-timeout",
        type=seconds_or_none,
        default=60.0,
        metavar="SECONDS",
        help="a server of which nothing comes for so long, not even the answer to a ping, counts "
        "as gone; none for servers that cannot answer while they learn (default: 60)",
    )


def _add_length(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("length")
    group.add_argument("--seed", type=whole, metavar="N", help="seed of the envs (default: none)")
    group.add_argument(
        "--max-steps", type=count, metavar="N", help="stop after N env steps, over all envs"
    )
    group.add_argument(
        "--max-episodes", type=count, metavar="N", help="stop after N episodes, over all envs"
    )


def _add_probe(parser: argparse.ArgumentParser) -> None:
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
    if options.eval_every is not None and (options.eval or options.probe):
        parser.error(f"--eval-every does not go with {'--eval' if options.eval else '--probe'}")
    if options.eval and options.takeover is not None:
        parser.error("--takeover does not go with --eval, which judges the policy alone")
    return options


def _make(
    options: argparse.Namespace, num_envs: int, make_first: MakeFirst | None = None
) -> VectorEnv[Any, Any, Any]:
    if options.probe:
        return probe_envs(num_envs, options.action_dim, options.autoreset)
    return make_envs(
        options.env_id,
        num_envs,
        options.vector,
        options.autoreset,
        collected(options.env_kwargs),
        make_first,
    )


def _make_shown(
    options: argparse.Namespace, output: Output, make_first: MakeFirst | None
) -> VectorEnv[Any, Any, Any]:
    """Make the envs, and tell so where that takes long."""
    num_envs, pause = options.num_envs or DEFAULT_NUM_ENVS, Pause()

    def read() -> Reading | None:
        words = pause.words()
        return Reading(pause=words) if words else None

    # No thread may run where AsyncVectorEnv forks.
    apart = options.vector == "async"
    if apart:
        output.say(f"Starting {num_envs} envs, each in a process of its own.")
    with Reporter(read, None if apart else output.surface()), pause("making the envs"):
        return _make(options, num_envs, make_first)


def _run_fleet(options: argparse.Namespace, output: Output) -> int:
    """``--procs P``: the same command P times."""
    if not options.probe:
        check_env_id(options.env_id)
    api_key = read_key(options)
    Recording(options)  # refuses what the processes would
    lines = command_lines(add_options, options)
    total = None if options.max_steps is None else options.max_steps * options.procs
    about = {"env_id": _env_id(options), "num_envs": options.num_envs or DEFAULT_NUM_ENVS}
    fleet = Fleet(lines, output, total, environment(api_key), options.stats)
    return fleet.run({**about, "seed": options.seed})


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
    api_key, takeover = read_key(options), find_takeover(options)
    recording = Recording(options)
    made = _make_shown(options, output, recording.make_first)
    forcefully = {"terminate": True} if options.vector == "async" else {}

    def connect(inner: VectorEnv[Any, Any, Any], mode: str, patience: float) -> PlugRLVectorEnv:
        return PlugRLVectorEnv(
            inner,
            options.url,
            mode=mode,
            api_key=api_key,
            ca_file=options.ca_file,
            connect_timeout=patience,
            reconnect_timeout=options.reconnect_timeout,
            liveness_timeout=options.liveness_timeout,
            metadata_timeout=min(20.0, max(patience, 1.0)),
            on_wait=lambda seconds, what: None,  # the live line tells of it
        )

    with recording.over(made, output) as inner, _closing(inner, forcefully):
        mode = "eval" if options.eval else "train"
        envs = connect(inner, mode, options.connect_timeout)
        judged = Evaluation(envs, options.max_episodes, options.max_steps) if options.eval else None
        started, progress = time.monotonic(), ClientProgress(envs, options.max_steps)
        try:
            with _closing(envs, forcefully):
                if judged is not None:
                    return _evaluate(judged, envs, options, progress, output)
                with _evaluating(envs, options, connect) as evaluation:
                    return _drive(envs, options, progress, output, evaluation, takeover)
        except KeyboardInterrupt:
            if output.told:
                raise  # while closing
            if judged is not None:
                _tell_judgement(judged.summary(), "Interrupted: ", envs, options, output)
            else:
                _tell(summed_up(envs, started), "Interrupted", envs, options, output)
            raise


@contextmanager
def _evaluating(
    envs: PlugRLVectorEnv,
    options: argparse.Namespace,
    connect: Callable[[VectorEnv[Any, Any, Any], str, float], PlugRLVectorEnv],
) -> Iterator[PeriodicEvaluation | None]:
    """What ``--eval-every`` asks for, with envs of its own; None without it."""
    if options.eval_every is None:
        yield None
        return
    inner = _make(options, min(envs.num_envs, options.eval_episodes))
    with _closing(inner, {"terminate": True} if options.vector == "async" else {}):
        yield PeriodicEvaluation(
            envs,
            inner,
            # Where the server is gone the training connection waits for it.
            lambda inner: connect(inner, "eval", min(options.connect_timeout, 5.0)),
            options.eval_every,
            options.eval_episodes,
            None if options.seed is None else options.seed + _EVALUATION_SEED,
        )


def _evaluate(
    judged: Evaluation,
    envs: PlugRLVectorEnv,
    options: argparse.Namespace,
    progress: ClientProgress,
    output: Output,
) -> int:
    with Reporter(progress.read, output.surface()):
        summary = judged.run(options.seed)
    _tell_judgement(summary, "", envs, options, output)
    return 0


def _tell_judgement(
    summary: EvaluationSummary,
    mark: str,
    envs: PlugRLVectorEnv,
    options: argparse.Namespace,
    output: Output,
) -> None:
    """Say what was found; ``mark`` begins the sentence."""
    output.say(f"{mark}{judgement(summary, options.max_episodes)}")
    _show_stats(envs, options, output)
    output.result(_about(envs, options) | {"mode": "eval"} | summary.to_dict())


def judgement(summary: EvaluationSummary, wanted: int | None) -> str:
    """An evaluation in words."""
    end = "The server ended the run: " if summary.finished else ""
    number = f"{len(summary.returns):,}"
    if wanted is not None and len(summary.returns) < wanted:
        number += f" of {wanted:,}"
    if summary.mean_return is None:
        return f"{end}{number} episodes ended in {summary.env_steps:,} env steps."
    return (
        f"{end}{number} episodes: mean return {summary.mean_return:.2f} ± "
        f"{summary.std_return:.2f}, mean length {summary.mean_length:.1f}"
    )


def _drive(
    envs: PlugRLVectorEnv,
    options: argparse.Namespace,
    progress: ClientProgress,
    output: Output,
    evaluation: PeriodicEvaluation | None,
    takeover: Takeover | None,
) -> int:
    if evaluation is not None:
        progress.pause = evaluation.pause
    try:
        with Reporter(progress.read, output.surface()):
            summary = envs.run(
                seed=options.seed,
                max_steps=options.max_steps,
                max_episodes=options.max_episodes,
                between_steps=evaluation,
                takeover=takeover,
            )
    except RunFinished:
        output.say("The server's run was over before this client's first step.")
        output.result({"env_id": _env_id(options), "env_steps": 0, "finished": True})
        return 0
    end = "The server ended the run" if summary.finished else "The limit was reached"
    _tell(summary, end, envs, options, output)
    return 0


def _tell(
    summary: RunSummary,
    end: str,
    envs: PlugRLVectorEnv,
    options: argparse.Namespace,
    output: Output,
) -> None:
    """Say what was done; ``end`` begins the sentence."""
    mean, last = summary.mean_return, min(summary.episodes, 100)
    output.say(
        f"{end}: {summary.env_steps:,} env steps in {summary.wall_seconds:,.0f} s "
        f"({summary.steps_per_second:,.0f} steps/s); {summary.episodes:,} episodes"
        + ("" if mean is None else f", mean return {mean:.1f} over the last {last}")
        + _taken_over(summary)
        + imbalance(summary.books)
    )
    _show_stats(envs, options, output)
    output.result(_about(envs, options) | summary.to_dict())


def _about(envs: PlugRLVectorEnv, options: argparse.Namespace) -> dict[str, Any]:
    """What a result for programs begins with."""
    return {"env_id": _env_id(options), "num_envs": envs.num_envs, "seed": options.seed}


def _env_id(options: argparse.Namespace) -> str:
    return "probe" if options.probe else str(options.env_id)


def _taken_over(summary: RunSummary) -> str:
    if not summary.overridden_steps:
        return ""
    return f"; {summary.overridden_steps / summary.env_steps:.1%} of the steps overridden"


def _show_stats(envs: PlugRLVectorEnv, options: argparse.Namespace, output: Output) -> None:
    if options.stats:
        output.say(stage_table(envs.stats.latency()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _options(arguments)

    def body() -> int:
        leash = Leash(held=options.parent is not None)
        leash.on_end = interrupt_main
        with Output.of(PROG, options).opened() as output:
            return _run(options, output) if options.procs == 1 else _run_fleet(options, output)

    return run_command(options.parent or PROG, body)


if __name__ == "__main__":
    sys.exit(main())
