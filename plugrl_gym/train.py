"""``python -m plugrl_gym.train``: a server and a client on this machine, as two processes."""

from __future__ import annotations

if __name__ == "__main__":
    from plugrl_gym.commands.starting import quiet_interrupt

    quiet_interrupt("plugrl-gym train")

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from plugrl_gym.agents.sb3.runs.config_file import read_config
from plugrl_gym.agents.sb3.settings.choice import (
    DEFAULT_TIMESTEPS,
    SettingsChoice,
    first_said,
)
from plugrl_gym.agents.sb3.settings.hyperparameter_file import HyperparameterFile
from plugrl_gym.commands.agents import default_run_dir
from plugrl_gym.commands.children import describe_end, wait_for_first
from plugrl_gym.commands.entry import EXIT_USAGE, one_line, run_command
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
from plugrl_gym.commands.recording import Recording, add_recording_options
from plugrl_gym.commands.reports import ReportingChild
from plugrl_gym.commands.result import first_reaching, sentence
from plugrl_gym.commands.resuming import check_run_dir, settled
from plugrl_gym.commands.summary import summary
from plugrl_gym.display import Pause, Reading, Reporter
from plugrl_gym.errors import UsageError
from plugrl_gym.plotting import learning_curve

__all__ = ["main"]

PROG = "plugrl-gym train"

_EXAMPLES = """\
  plugrl-gym train CartPole-v1 --algo ppo --seed 0
  plugrl-gym train Pendulum-v1 --num-envs 16 --total-timesteps 100000 --run-dir runs/pendulum
  plugrl-gym train Acrobot-v1 -P n_steps=128 -P learning_rate=lin_0.001
  plugrl-gym train --resume runs/pendulum --total-timesteps 200000

The run directory then holds model.zip, which Stable-Baselines3 loads, progress.csv, result.json
and, with the extra plot, learning_curve.png. Ctrl-C saves what was learned and stops; --resume DIR
goes on."""

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
    add_recording_options(parser)
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
        if options.num_envs is None and config.get("num_envs") is not None:
            chosen["num_envs"] = _in_each(config["num_envs"], options.procs)
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


def _in_each(num_envs: int, procs: int) -> int:
    """The envs of one of ``procs`` processes, of a run with ``num_envs`` in all."""
    if num_envs % procs:
        raise UsageError(f"--procs {procs}: the run has {num_envs} envs, which cannot be shared")
    return num_envs // procs


class _Training:
    """One training, from the options to the result."""

    def __init__(self, options: argparse.Namespace, output: Output) -> None:
        self._options = _complete(settled(options))
        check_env_id(self._options.env_id)
        self._output = output
        self._pause = Pause()
        self._server: ReportingChild | None = None
        self._run_dir: Path = self._options.run_dir
        check_run_dir(self._options, self._run_dir)
        # What the client would refuse is refused before torch is loaded.
        self._recording = Recording(argparse.Namespace(**vars(self._options), probe=False))

    def __call__(self) -> int:
        options, run_dir = self._options, self._run_dir
        processes = f" in each of {options.procs} processes" if options.procs > 1 else ""
        self._output.say(
            f"Training {options.algo} on {options.env_id} x {options.num_envs}{processes}; "
            f"files: {run_dir}"
        )
        try:
            with Reporter(self._read, self._output.surface()):
                self._train()
                self._draw_learning_curve()
        except _SideFailed as failed:
            if failed.reason is not None:
                print(f"{self._output.prog}: {failed.reason}", file=sys.stderr)
            return failed.code
        except KeyboardInterrupt:
            self._tell_what_is_saved()
            raise
        result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
        files = summary(run_dir, options.env_id, True, "plugrl_gym.train")
        recorded = "".join(f"\n  {path}" for path in self._recording.places)
        self._output.say(f"Done: {sentence(result)}{recorded}{files}")
        reached = None if options.goal is None else self._goal_reached(result, options.goal)
        self._output.result({**result, "run_dir": str(run_dir)})
        return 1 if reached is False else 0

    def _draw_learning_curve(self) -> None:
        try:
            with self._pause("drawing the learning curve"):
                learning_curve(self._run_dir)
        except UsageError as error:
            self._output.above.write(f"No learning_curve.png: {one_line(error)}\n")

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

    def _read(self) -> Reading | None:
        """What the server tells, or what is waited for."""
        pause = self._pause.words()
        if pause:
            return Reading(pause=pause)
        return None if self._server is None else self._server.reading

    def _train(self) -> None:
        with tempfile.TemporaryDirectory(prefix="plugrl-") as directory:
            url_file = Path(directory) / "url"
            with self._serve(url_file) as server:
                self._server = server
                with self._pause("starting the server, which loads torch"):
                    url = _await_url(url_file, server)
                self._output.say(f"Watch it in a browser:  http{url.removeprefix('ws')}/")
                with self._client(url) as client:
                    try:
                        self._watch(server, client)
                    except KeyboardInterrupt:
                        self._interrupted(server, client)
                        raise

    def _serve(self, url_file: Path) -> ReportingChild:
        options = self._options
        # A class that is none of ours has no name for --algo; the run itself names it.
        algo = None if ":" in options.algo else options.algo
        said = argparse.Namespace(**{**vars(options), "algo": algo})
        given = said_again(add_learner_options, said)
        given += ["--port=0", f"--url-file={url_file}", f"--for-env={options.env_id}"]
        if options.algo != "random":
            given += [f"--num-envs={options.num_envs * options.procs}"]
            given += [f"--eval-episodes={options.eval_episodes}"]
            given += [] if options.eval_every is None else ["--final-evaluation"]
        return ReportingChild("plugrl_gym.serve", [*given, *self._manner()], self._relay)

    def _client(self, url: str) -> ReportingChild:
        options = self._options
        given = said_again(_add_env_options, options)
        given += said_again(add_evaluation_options, options)
        given += said_again(add_recording_options, options)
        given += [] if options.seed is None else [f"--seed={options.seed}"]
        given += [f"--url={url}", *self._manner(quiet=True)]
        return ReportingChild("plugrl_gym.rollout", [options.env_id, *given], self._relay)

    def _manner(self, quiet: bool = False) -> list[str]:
        """How a side is to talk, which is heard here."""
        output = self._output
        loud = ["--verbose"] if output.verbose else ["--quiet"] if quiet or output.quiet else []
        return [*loud, f"--parent={output.prog}"]

    def _relay(self, line: str) -> None:
        """Say what a side says, but not that it was ended: that is this command's doing."""
        if line != f"{self._output.prog}: interrupted":
            self._output.above.write(f"{line}\n")

    def _watch(self, server: ReportingChild, client: ReportingChild) -> None:
        """Wait for both to end well.

        Raises:
            _SideFailed: One did not.
        """
        wait_for_first([server, client])
        if server.code is None and client.code != 0:
            self._end(server, _SAVE_SECONDS)
            if server.code == 0:
                _blame_client(client)
        with self._pause("saving"):
            server.wait(_SAVE_SECONDS)
        if server.code != 0:
            self._end(client, _CLIENT_SECONDS)
            _blame_server(server)
        with self._pause("ending the client"):
            ended = client.wait(_CLIENT_SECONDS)
        if not ended or client.code != 0:
            client.end(0.0)
            _blame_client(client)

    def _end(self, side: ReportingChild, patience: float) -> None:
        with self._pause("saving" if side is self._server else "ending the client"):
            side.end(patience)

    def _interrupted(self, server: ReportingChild, client: ReportingChild) -> None:
        """Ctrl-C: the client first, for it would look for a new server."""
        self._end(client, _CLIENT_SECONDS)
        self._end(server, _SAVE_SECONDS)

    def _tell_what_is_saved(self) -> None:
        server, model = self._server, self._run_dir / "model.zip"
        if server is None or server.code != 0:
            return
        if model.exists():
            self._output.say(f"What was learned so far: {model}")
            self._output.say(f"Go on with:  python -m plugrl_gym.train --resume {self._run_dir}")
        if server.result is not None and not self._output.told:
            self._output.result(server.result)


def _await_url(url_file: Path, server: ReportingChild) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while not url_file.exists():
        if server.code is not None:
            _blame_server(server)
        if time.monotonic() > deadline:
            raise _SideFailed(1, f"the server did not start within {_START_SECONDS:.0f} s")
        time.sleep(0.05)
    return url_file.read_text(encoding="utf-8").strip()


def _blame_server(server: ReportingChild) -> NoReturn:
    server.hear_out()
    if server.code == EXIT_USAGE:
        raise _SideFailed(EXIT_USAGE)  # its one line has been heard
    raise _SideFailed(
        1, f"the server {describe_end(server.code)}, and the client was ended with it"
    )


def _blame_client(client: ReportingChild) -> NoReturn:
    client.hear_out()
    if client.code == EXIT_USAGE:
        raise _SideFailed(EXIT_USAGE)  # its one line has been heard
    raise _SideFailed(
        1, f"the client {describe_end(client.code)}, and the server was ended with it"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)

    def body() -> int:
        with Output.of(PROG, options).opened() as output:
            return _Training(options, output)()

    return run_command(options.parent or PROG, body)


if __name__ == "__main__":
    sys.exit(main())
