"""``python -m plugrl_gym.serve``: a policy and its learner, for clients anywhere."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plugrl_gym.commands.access import add_server_options, server_options
from plugrl_gym.commands.agents import (
    check_run_dir,
    default_run_dir,
    make_agent,
)
from plugrl_gym.commands.entry import Leash, one_line, run_command
from plugrl_gym.commands.options import (
    CommandParser,
    add_learner_options,
    add_output_options,
    count,
    port,
    seconds,
)
from plugrl_gym.commands.output import Output
from plugrl_gym.commands.progress import Reading, Reporter, server_reading
from plugrl_gym.commands.result import make_result, sentence, write_result
from plugrl_gym.commands.resuming import continued, settled, totals
from plugrl_gym.commands.trained import add_trained_options, check_trained_options
from plugrl_gym.errors import PlugRLError, UsageError
from plugrl_gym.server import PlugRLServer, RunSnapshot

__all__ = ["main"]

PROG = "plugrl-gym serve"

_EXAMPLES = """\
  plugrl-gym serve --algo ppo --total-timesteps 20000
  plugrl-gym serve --algo random --horizon 4
  plugrl-gym serve --load runs/cartpole/model.zip --no-learn
  plugrl-gym serve --host 0.0.0.0 --api-key-file key.txt   clients on other machines

Then start a client where the envs are:  plugrl-gym rollout CartPole-v1
Ctrl-C saves what was learned and stops."""


def _parser() -> CommandParser:
    parser = CommandParser(
        PROG,
        "Serve a policy: choose the actions of clients' envs and learn from what comes of them.",
        _EXAMPLES,
    )
    _add_where(parser)
    add_learner_options(parser)
    add_trained_options(parser)
    _add_clients(parser)
    add_server_options(parser)
    add_output_options(parser).add_argument(
        "--no-run-dir", action="store_true", help="write no files"
    )
    return parser


def _add_where(parser: CommandParser) -> None:
    group = parser.add_argument_group("where")
    group.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 or :: lets other machines connect, which needs a key "
        "(default: 127.0.0.1)",
    )
    group.add_argument(
        "--port", type=port, default=8000, metavar="N", help="0 takes any free port (default: 8000)"
    )
    group.add_argument(
        "--url-file",
        type=Path,
        metavar="FILE",
        help="write the URL for clients into FILE once they can connect",
    )


def _add_clients(parser: CommandParser) -> None:
    group = parser.add_argument_group("clients")
    group.add_argument(
        "--num-envs",
        type=count,
        metavar="N",
        help="an update comes every n_steps, or train_freq, times this number of steps, from "
        "however many clients (default: the first client's number of envs)",
    )
    group.add_argument(
        "--eval-episodes",
        type=count,
        default=10,
        metavar="M",
        help="episodes of one evaluation, which a client that evaluates plays under one policy "
        "(default: 10)",
    )
    group.add_argument(
        "--env-id",
        metavar="ID",
        help="the env that clients run, for clients that do not declare their spaces",
    )
    group.add_argument(
        "--observation-space",
        metavar="SPACE",
        help="the same, in words: 'Box(-1, 1, (3,))', 'Dict(a=Discrete(2), b=Box(0, inf, (1,)))'",
    )
    group.add_argument("--action-space", metavar="SPACE", help="likewise: 'Discrete(2)'")
    # For `train`, which knows the env before a client declares it.
    group.add_argument("--for-env", metavar="ID", help=argparse.SUPPRESS)
    # For `train`, whose client may evaluate after the last update.
    group.add_argument("--final-evaluation", action="store_true", help=argparse.SUPPRESS)
    group.add_argument(
        "--feedback-timeout",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long a client may run one chunk of actions before it counts as lost "
        "(default: 60)",
    )
    group.add_argument(
        "--batch-wait",
        type=seconds,
        default=0.002,
        metavar="SECONDS",
        help="how long a request may wait for those of other clients, to be answered together "
        "with them (default: 0.002)",
    )


class _Run:
    """One run of the server, from the options to the result."""

    def __init__(self, options: argparse.Namespace, output: Output) -> None:
        self._options = options
        self._output = output
        self._leash = Leash(held=options.parent is not None)
        _check_url_file(options.url_file)
        self._run_dir = _run_dir(options)
        access = server_options(options)
        self._keyed = access["api_key"] is not None
        self._agent = make_agent(options, self._run_dir, output)
        self._server = PlugRLServer(
            self._agent,
            options.host,
            options.port,
            feedback_timeout=options.feedback_timeout,
            batch_wait=options.batch_wait,
            **access,
            on_listening=self._announce,
        )

        self._earlier: Mapping[str, Any] = getattr(self._agent, "noted", {})
        if hasattr(self._agent, "note_with"):
            self._agent.note_with(lambda: totals(self._snapshot()))

    def __call__(self) -> int:
        self._leash.on_end = self._server.request_shutdown
        url_file = self._options.url_file
        try:
            if url_file is not None:
                url_file.unlink(missing_ok=True)  # of an earlier server
            with Reporter(self._read, self._output):
                finished = self._server.serve()
            self._conclude(finished)
        except OSError as error:
            if isinstance(error, PlugRLError):
                raise
            raise UsageError(one_line(error)) from error  # a full disk, a lost directory
        finally:
            if url_file is not None:
                with contextlib.suppress(OSError):
                    url_file.unlink(missing_ok=True)
        return 0

    def _announce(self, server: PlugRLServer) -> None:
        if self._run_dir is not None:
            # What lies there is of an earlier run, and would be taken for this one's.
            (self._run_dir / "result.json").unlink(missing_ok=True)
        if self._options.url_file is not None:
            unfinished = self._options.url_file.with_name(f".{self._options.url_file.name}.part")
            unfinished.write_text(f"{server.url}\n", encoding="utf-8")
            os.replace(unfinished, self._options.url_file)
        if self._options.parent is None:
            self._output.say(_introduction(self._options, server, self._keyed))

    def _read(self) -> Reading | None:
        learning = self._agent.learning_due
        own = self._server.statistics.snapshot()
        snapshot = replace(self._snapshot(), steps_per_second=own.steps_per_second)
        evaluation = getattr(getattr(self._agent, "evaluations", None), "last", None)
        return server_reading(snapshot, self._agent.total_timesteps, learning, evaluation)

    def _snapshot(self) -> RunSnapshot:
        """The run so far, with what earlier processes did of it."""
        return continued(self._server.statistics.snapshot(), self._earlier)

    def _conclude(self, finished: bool) -> None:
        run, options = self._snapshot(), self._options
        counters = getattr(self._agent, "counters", None)
        result = make_result(
            options.algo,
            self._agent.env_id,
            options.seed,
            run,
            counters,
            finished,
            getattr(self._agent, "evaluations", None),
        )
        saved = self._run_dir is not None and (run.clients_seen > 0 or bool(self._earlier))
        if saved:
            assert self._run_dir is not None
            write_result(self._run_dir / "result.json", result)
        self._output.result({**result, "run_dir": str(self._run_dir) if saved else None})
        if options.parent is None:
            how = "The run is over" if finished else "Stopped"
            where = f"; files: {self._run_dir}" if saved else ""
            self._output.say(f"{how}: {sentence(result)}{where}")


def _run_dir(options: argparse.Namespace) -> Path | None:
    if options.no_run_dir:
        return None
    run_dir: Path | None = options.run_dir
    if run_dir is None and options.algo != "random" and not options.no_learn:
        run_dir = default_run_dir(options.algo)
    if run_dir is not None:
        check_run_dir(run_dir)
    return run_dir


def _check_url_file(url_file: Path | None) -> None:
    if url_file is not None and not url_file.absolute().parent.is_dir():
        raise UsageError(f"--url-file {url_file}: there is no directory {url_file.parent}")


def _introduction(options: argparse.Namespace, server: PlugRLServer, keyed: bool) -> str:
    first, *others = server.urls()
    also = f" (from other machines: {', '.join(others)})" if others else ""
    command = f"python -m plugrl_gym.rollout {options.env_id or 'CartPole-v1'}"
    if first != "ws://127.0.0.1:8000":
        command += f" --url {first}"
    if options.tls_cert is not None:
        command += f" --ca-file {options.tls_cert}"
    needs = "\nClients need the key, as --api-key-file FILE or PLUGRL_API_KEY." if keyed else ""
    what, end = options.algo, "Ctrl-C saves and stops"
    if options.no_learn:
        what, end = f"{options.load} ({options.algo}), which does not learn,", "Ctrl-C stops"
    return (
        f"Serving {what} at {first}{also}; {end}.\nNow run in another terminal:  {command}{needs}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    prog = options.parent or PROG

    def body() -> int:
        child = options.parent is not None
        with Output(prog, options.quiet, options.json, child).opened() as output:
            check_trained_options(options)
            return _Run(settled(options), output)()

    return run_command(prog, body)


if __name__ == "__main__":
    sys.exit(main())
