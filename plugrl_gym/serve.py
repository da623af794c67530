"""``python -m plugrl_gym.serve``: a policy and its learner, for clients anywhere."""

from __future__ import annotations

if __name__ == "__main__":
    from plugrl_gym.commands.starting import quiet_interrupt

    quiet_interrupt("plugrl-gym serve")

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plugrl_gym.commands.access import add_server_options, server_options
from plugrl_gym.commands.agents import default_run_dir, make_agent
from plugrl_gym.commands.entry import Leash, one_line, run_command
from plugrl_gym.commands.naming import check_folder
from plugrl_gym.commands.options import (
    CommandParser,
    add_learner_options,
    add_output_options,
    add_update_options,
    port,
    seconds,
)
from plugrl_gym.commands.output import Output
from plugrl_gym.commands.progress import ServerProgress
from plugrl_gym.commands.result import make_result, sentence, write_result
from plugrl_gym.commands.resuming import check_run_dir, continued, settled, totals
from plugrl_gym.commands.stages import log_columns
from plugrl_gym.commands.summary import summary
from plugrl_gym.commands.trained import add_trained_options, check_trained_options
from plugrl_gym.display import Pause, Reading, Reporter
from plugrl_gym.errors import PlugRLError, RunFailed, UsageError
from plugrl_gym.server import PlugRLServer, RunSnapshot
from plugrl_gym.server.listening import check_address

__all__ = ["add_options", "main"]

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
    add_options(parser)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    _add_where(parser)
    add_learner_options(parser)
    add_trained_options(parser)
    _add_clients(parser)
    add_server_options(parser)
    output = add_output_options(parser)
    output.add_argument("--no-run-dir", action="store_true", help="write no files")
    # For `local_server`: one line of JSON before that of --json, once clients can connect.
    output.add_argument("--announce", action="store_true", help=argparse.SUPPRESS)


def _add_where(parser: argparse.ArgumentParser) -> None:
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


def _add_clients(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("clients")
    add_update_options(group)
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
        self._pause = Pause()
        self._listening = False

    def __call__(self) -> int:
        what = "starting" if self._options.algo == "random" else "loading torch"
        with Reporter(self._read, self._output.surface()):
            with self._pause(what):
                self._build()
            with _failures_of_the_disk():
                finished = self._serve()
        with _failures_of_the_disk():
            self._conclude(finished)
        return 0

    def _serve(self) -> bool:
        """Whether the agent ended the run."""
        url_file = self._options.url_file
        self._leash.on_end = self._server.request_shutdown
        try:
            if url_file is not None:
                url_file.unlink(missing_ok=True)  # of an earlier server
            return self._server.serve()
        finally:
            if url_file is not None:
                with contextlib.suppress(OSError):
                    url_file.unlink(missing_ok=True)

    def _build(self) -> None:
        """Make the agent, which loads torch, and the server."""
        options = self._options = settled(self._options)
        _check_url_file(options.url_file)
        self._run_dir = _run_dir(options)
        access = server_options(options)
        check_address(options.host, options.port)
        self._keyed = access["api_key"] is not None
        self._agent = make_agent(options, self._run_dir, self._output)
        self._progress = ServerProgress(self._agent.total_timesteps)
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
        self._server.board.title = None if self._run_dir is None else self._run_dir.name
        self._server.board.continued = lambda run: continued(run, self._earlier)
        if hasattr(self._agent, "note_with"):
            self._agent.note_with(lambda: totals(self._snapshot()))
        if hasattr(self._agent, "log_with"):
            self._agent.log_with(log_columns(self._server.statistics))

    def _announce(self, server: PlugRLServer) -> None:
        if self._run_dir is not None:
            # What lies there is of an earlier run, and would be taken for this one's.
            (self._run_dir / "result.json").unlink(missing_ok=True)
        if self._options.url_file is not None:
            unfinished = self._options.url_file.with_name(f".{self._options.url_file.name}.part")
            unfinished.write_text(f"{server.url}\n", encoding="utf-8")
            os.replace(unfinished, self._options.url_file)
        if self._options.announce:
            where = None if self._run_dir is None else str(self._run_dir)
            self._output.result({"url": server.url, "run_dir": where})
        if self._options.parent is None:
            self._output.say(_introduction(self._options, server, self._keyed))
        self._pause.begin("waiting for a client")
        self._listening = True

    def _read(self) -> Reading | None:
        if not self._listening:
            return _paused(self._pause.words())
        activity = "learning" if self._agent.learning_due else ""
        if self._server.board.ending:
            activity = "saving"
        evaluation = getattr(getattr(self._agent, "evaluations", None), "last", None)
        reading = self._progress.read(self._snapshot(), activity, evaluation)
        return reading or _paused(activity or self._pause.words())

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
            files = ""
            if self._run_dir is not None and saved:
                files = summary(self._run_dir, self._agent.env_id, finished, "plugrl_gym.serve")
            self._output.say(f"{how}: {sentence(result)}{files}")


def _run_dir(options: argparse.Namespace) -> Path | None:
    if options.no_run_dir:
        return None
    run_dir: Path | None = options.run_dir
    if run_dir is None and options.algo != "random" and not options.no_learn:
        run_dir = default_run_dir(options.algo)
    if run_dir is not None:
        if options.no_learn:
            check_folder("--run-dir", run_dir)
        else:
            check_run_dir(options, run_dir)
    return run_dir


@contextlib.contextmanager
def _failures_of_the_disk() -> Iterator[None]:
    """A full disk, or a lost directory, fails the run in one line."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PlugRLError):
            raise
        raise RunFailed(one_line(error)) from error


def _paused(words: str) -> Reading | None:
    return Reading(pause=words) if words else None


def _check_url_file(url_file: Path | None) -> None:
    if url_file is None:
        return
    if not url_file.absolute().parent.is_dir():
        raise UsageError(f"--url-file {url_file}: there is no directory {url_file.parent}")
    if url_file.is_dir():
        raise UsageError(f"--url-file {url_file}: that is a directory, not a file")
    check_folder("--url-file", url_file.absolute().parent)


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
        f"Serving {what} at {first}{also}; {end}.\n"
        f"Now run in another terminal:  {command}{needs}\n"
        f"Watch it in a browser:  http{first.removeprefix('ws')}/"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)

    def body() -> int:
        with Output.of(PROG, options).opened() as output:
            check_trained_options(options)
            return _Run(options, output)()

    return run_command(options.parent or PROG, body)


if __name__ == "__main__":
    sys.exit(main())
