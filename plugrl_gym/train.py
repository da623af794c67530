"""``python -m plugrl_gym.train``: a server and a client on this machine, as two processes."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from plugrl_gym.agents.sb3.runs.config_file import read_config
from plugrl_gym.agents.sb3.settings.choice import (
    DEFAULT_TIMESTEPS,
    SettingsChoice,
    first_said,
)
from plugrl_gym.agents.sb3.settings.hyperparameter_file import HyperparameterFile
from plugrl_gym.commands.agents import check_run_dir, default_run_dir
from plugrl_gym.commands.children import Child, describe_end, wait_for_first
from plugrl_gym.commands.entry import EXIT_USAGE, run_command
from plugrl_gym.commands.environments import DEFAULT_NUM_ENVS, check_env_id
from plugrl_gym.commands.forwarding import said_again
from plugrl_gym.commands.options import (
    CommandParser,
    add_env_options,
    add_evaluation_options,
    add_learner_options,
    add_output_options,
)
from plugrl_gym.commands.output import Output
from plugrl_gym.commands.result import first_reaching, sentence
from plugrl_gym.commands.resuming import settled
from plugrl_gym.errors import UsageError

__all__ = ["main"]

PROG = "plugrl-gym train"

_EXAMPLES = """\
  plugrl-gym train CartPole-v1 --algo ppo --seed 0
  plugrl-gym train Pendulum-v1 --num-envs 16 --total-timesteps 100000 --run-dir runs/pendulum
  plugrl-gym train Acrobot-v1 -P n_steps=128 -P learning_rate=lin_0.001
  plugrl-gym train --resume runs/pendulum --total-timesteps 200000

The run directory then holds model.zip, which Stable-Baselines3 loads, progress.csv and
result.json. Ctrl-C saves what was learned and stops; --resume DIR goes on."""

_FILES: Final = (
    "model.zip",
    "vecnormalize.pkl",
    "best_model.zip",
    "progress.csv",
    "evaluations.csv",
    "result.json",
)
# Importing torch from a slow disk takes its time.
_START_SECONDS: Final = 300.0
# The end of an update that is under way, and saving.
_SAVE_SECONDS: Final = 120.0
_CLIENT_SECONDS: Final = 30.0


class _SideFailed(Exception):
    """One side ended early.

    Args:
        code: This command's exit code.
        reason: One sentence; None where the side has said it itself.
    """

    def __init__(self, code: int, reason: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def _parser() -> CommandParser:
    parser = CommandParser(
        PROG,
        "Train on one machine: a server that learns and a client that owns the envs, as two "
        "processes.",
        _EXAMPLES,
    )
    parser.add_argument(
        "env_id",
        metavar="ENV_ID",
        nargs="?",
        help="an env that is registered with Gymnasium, as CartPole-v1; may be left out with "
        "--resume",
    )
    add_learner_options(parser)
    _add_env_options(parser)
    add_evaluation_options(parser)
    parser.add_argument(
        "--goal",
        type=float,
        metavar="RETURN",
        help="say whether the mean return of 100 episodes reached RETURN; exit with 1 if not",
    )
    add_output_options(parser)
    return parser


def _add_env_options(parser: argparse.ArgumentParser) -> None:
    add_env_options(parser, f"the preset's number; else {DEFAULT_NUM_ENVS}")


def _complete(options: argparse.Namespace) -> argparse.Namespace:
    """The options with what a run, a file, a preset or we choose where the user chose nothing."""
    if options.resume is not None:
        config = read_config(options.resume)
        own = {name: config.get(name) for name in ("env_id", "num_envs", "total_timesteps")}
        chosen = {name: getattr(options, name) or value for name, value in own.items()}
        options = argparse.Namespace(**{**vars(options), **chosen})
    if options.env_id is None:
        raise UsageError("say which env to train on, as CartPole-v1")
    preset = "none" if options.load is not None and options.preset == "auto" else options.preset
    file = None if options.hyperparams is None else HyperparameterFile(options.hyperparams)
    settings = SettingsChoice(options.algo, preset, file).settings_for(options.env_id)
    num_envs = first_said(settings, "num_envs") or DEFAULT_NUM_ENVS
    total_timesteps = first_said(settings, "total_timesteps") or DEFAULT_TIMESTEPS
    chosen = {
        "run_dir": options.run_dir or default_run_dir(options.algo),
        "num_envs": options.num_envs or num_envs,
        "total_timesteps": options.total_timesteps or total_timesteps,
    }
    return argparse.Namespace(**{**vars(options), **chosen})


class _Training:
    """One training, from the options to the result."""

    def __init__(self, options: argparse.Namespace, output: Output) -> None:
        self._options = _complete(settled(options))
        check_env_id(self._options.env_id)
        self._output = output
        self._run_dir: Path = self._options.run_dir
        check_run_dir(self._run_dir)

    def __call__(self) -> int:
        options, run_dir = self._options, self._run_dir
        self._output.say(
            f"Training {options.algo} on {options.env_id} x {options.num_envs}; files: {run_dir}"
        )
        try:
            self._train()
        except _SideFailed as failed:
            if failed.reason is not None:
                print(f"{self._output.prog}: {failed.reason}", file=sys.stderr)
            return failed.code
        result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
        self._output.say(f"Done: {sentence(result)}")
        for name in _FILES:
            if (run_dir / name).exists():
                self._output.say(f"  {run_dir / name}")
        reached = None if options.goal is None else self._goal_reached(result, options.goal)
        self._output.result({**result, "run_dir": str(run_dir)})
        return 1 if reached is False else 0

    def _goal_reached(self, result: dict[str, Any], goal: float) -> bool:
        """Say whether the goal was reached in time."""
        progress, total = self._run_dir / "progress.csv", self._options.total_timesteps
        step = first_reaching(progress, result, goal, total)
        within = f"within {total:,} env steps"
        if step is None:
            verdict = f"Goal missed: the mean return of 100 episodes did not reach {goal:g}"
        else:
            verdict = (
                f"Goal reached: the mean return of the last 100 episodes was at least {goal:g} "
                f"after {step:,} env steps,"
            )
        self._output.above.write(f"{verdict} {within}.\n")
        return step is not None

    def _train(self) -> None:
        with tempfile.TemporaryDirectory(prefix="plugrl-") as directory:
            folder = Path(directory)
            with (folder / "client.log").open("w+b") as log, self._serve(folder / "url") as server:
                url = _await_url(folder / "url", server)
                with self._client(url, log) as client:
                    try:
                        self._watch(server, client, log)
                    except KeyboardInterrupt:
                        self._interrupted(server, client)
                        raise

    def _serve(self, url_file: Path) -> Child:
        options = self._options
        # A class that is none of ours has no name for --algo; the run itself names it.
        algo = None if ":" in options.algo else options.algo
        said = argparse.Namespace(**{**vars(options), "algo": algo})
        given = said_again(add_learner_options, said)
        given += ["--port=0", f"--url-file={url_file}", f"--num-envs={options.num_envs}"]
        given += [f"--for-env={options.env_id}", f"--eval-episodes={options.eval_episodes}"]
        given += [] if options.eval_every is None else ["--final-evaluation"]
        given += ["--quiet"] if options.quiet else []
        return Child("plugrl_gym.serve", [*given, f"--parent={self._output.prog}"])

    def _client(self, url: str, log: IO[bytes]) -> Child:
        options = self._options
        given = said_again(_add_env_options, options)
        given += said_again(add_evaluation_options, options)
        given += [] if options.seed is None else [f"--seed={options.seed}"]
        given += [f"--url={url}", "--quiet", f"--parent={self._output.prog}"]
        return Child("plugrl_gym.rollout", [options.env_id, *given], log)

    def _watch(self, server: Child, client: Child, log: IO[bytes]) -> None:
        """Wait for both to end well.

        Raises:
            _SideFailed: One did not.
        """
        wait_for_first([server, client])
        if server.code is None and client.code != 0:
            server.end(_SAVE_SECONDS)
            if server.code == 0:
                _blame_client(client.code, log)
        server.wait(_SAVE_SECONDS)
        if server.code != 0:
            client.end(_CLIENT_SECONDS)
            _blame_server(server.code)
        if not client.wait(_CLIENT_SECONDS) or client.code != 0:
            client.end(0.0)
            _blame_client(client.code, log)
        _relay(log)

    def _interrupted(self, server: Child, client: Child) -> None:
        """Ctrl-C: the client first, for it would look for a new server."""
        client.end(_CLIENT_SECONDS)
        server.end(_SAVE_SECONDS)
        model = self._run_dir / "model.zip"
        if server.code == 0 and model.exists():
            self._output.say(f"What was learned so far: {model}")


def _await_url(url_file: Path, server: Child) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while not url_file.exists():
        if server.code is not None:
            _blame_server(server.code)
        if time.monotonic() > deadline:
            raise _SideFailed(1, f"the server did not start within {_START_SECONDS:.0f} s")
        time.sleep(0.05)
    return url_file.read_text(encoding="utf-8").strip()


def _blame_server(code: int | None) -> NoReturn:
    if code == EXIT_USAGE:
        raise _SideFailed(EXIT_USAGE)  # its one line is on stderr
    raise _SideFailed(1, f"the server {describe_end(code)}, and the client was ended with it")


def _blame_client(code: int | None, log: IO[bytes]) -> NoReturn:
    _relay(log)
    if code == EXIT_USAGE:
        raise _SideFailed(EXIT_USAGE)  # its one line was in the log
    raise _SideFailed(1, f"the client {describe_end(code)}, and the server was ended with it")


def _relay(log: IO[bytes]) -> None:
    log.seek(0)
    text = log.read().decode("utf-8", "replace")
    sys.stderr.write(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)

    def body() -> int:
        with Output(options.parent or PROG, options.quiet, options.json).opened() as output:
            return _Training(options, output)()

    return run_command(options.parent or PROG, body)


if __name__ == "__main__":
    sys.exit(main())
