"""The command line: ``python -m plugrl_gym.conformance client|server|checklist``.

Exit status: 0 where no violation was found, 1 where one was or where the subject could not be
graded, 2 for a command line that makes no sense.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from plugrl_gym.conformance.checklist import checklist, update
from plugrl_gym.conformance.client_grader import grade_client
from plugrl_gym.conformance.report import Report
from plugrl_gym.conformance.server_grader import PHASES, grade_server
from plugrl_gym.errors import UsageError

__all__ = ["main"]

_PROG = "python -m plugrl_gym.conformance"


class _Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None for those of this process.

    Returns:
        The exit status.
    """
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except UsageError as error:
        print(f"{_PROG}: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # of a file that was named; graders raise none
        print(f"{_PROG}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{_PROG}: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_PROG, description="Grade a PlugRL v1 client or server (SPEC.md).")
    commands = parser.add_subparsers(required=True, metavar="client|server|checklist")
    _add_client(commands.add_parser("client", help="grade a client, started by a command"))
    _add_server(commands.add_parser("server", help="grade a server that is running"))
    table = commands.add_parser("checklist", help="print the table of checked clauses")
    table.add_argument("--write", metavar="SPEC.md", help="update the table in this file instead")
    table.set_defaults(run=_run_checklist)
    return parser


def _add_client(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--command",
        required=True,
        type=_command,
        help='starts the client, as "./my_client 127.0.0.1 {port}"',
    )
    add("--probe", action="store_true", help="the client runs the probe environment (SPEC 10)")
    add(
        "--scenario",
        default="all",
        metavar="NAME",
        help="basic, resync, text, reconnect, reuse, spaces, features, slow, errors or all; "
        "several are joined by commas (all)",
    )
    add("--horizon", type=int, default=4, help="steps in an action (4)")
    add("--action-dim", type=int, default=3, help="elements of an action (3)")
    add("--action-dtype", default="<f8", metavar="TYPESTR", help="of the actions sent (<f8)")
    add("--steps", type=int, default=40, help="exchanges of a full run (40)")
    add("--timeout", type=float, default=60.0, metavar="SECONDS", help="for one message (60)")
    _add_output(parser)
    parser.set_defaults(run=_run_client)


def _command(text: str) -> str:
    """A command line that can be split into words, for argparse."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError(f"{text!r} names no program")
    return text


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", required=True, help="where the server listens, as ws://127.0.0.1:8000")
    add("--state-dim", type=int, metavar="N", help="numbers in the state that its policy reads")
    add("--state-key", default="obs", metavar="NAME", help="the name of that state (obs)")
    add("--image-key", metavar="NAME", help="the name of the 64 x 64 x 3 image that it reads")
    add("--api-key", metavar="KEY", help="the key that it requires")
    add("--ca-file", metavar="FILE", help="for wss://: trust the certificates in this PEM file")
    add("--action-dim", type=int, default=3, help="elements of an action, if undeclared (3)")
    names = ", ".join(phase.name for phase in PHASES)
    add(
        "--phases",
        default="all",
        metavar="NAMES",
        help=f"all, or some of {names}, joined by commas; errors:*dtype* selects cases (all)",
    )
    add("--until-stop", action="store_true", help="go on until the server ends the run")
    add("--until-shutdown", action="store_true", help="go on until you stop the server")
    add(
        "--feedback-timeout",
        type=float,
        metavar="SECONDS",
        help="the limit that the server was started with, for the phase liveness",
    )
    add("--timeout", type=float, default=30.0, metavar="SECONDS", help="for one reply (30)")
    add(
        "--stop-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="after which --until-stop gives up (600)",
    )
    _add_output(parser)
    parser.set_defaults(run=_run_server)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write it as JUnit XML as well")


def _run_client(options: argparse.Namespace) -> int:
    _check_output(options)
    report = grade_client(
        options.command,
        probe=options.probe,
        scenarios=options.scenario,
        horizon=options.horizon,
        action_dim=options.action_dim,
        action_dtype=options.action_dtype,
        steps=options.steps,
        timeout=options.timeout,
    )
    return _deliver(report, options)


def _run_server(options: argparse.Namespace) -> int:
    _check_output(options)
    report = grade_server(
        options.url,
        state_dim=options.state_dim,
        state_key=options.state_key,
        image_key=options.image_key,
        api_key=options.api_key,
        ca_file=options.ca_file,
        action_dim=options.action_dim,
        phases=options.phases,
        until_stop=options.until_stop,
        until_shutdown=options.until_shutdown,
        timeout=options.timeout,
        feedback_timeout=options.feedback_timeout,
        stop_timeout=options.stop_timeout,
        progress=_show if sys.stderr.isatty() else _nothing,
    )
    if sys.stderr.isatty():
        _show("")
    return _deliver(report, options)


def _show(scenario: str) -> None:
    print(f"\r\x1b[K{scenario}", end="", file=sys.stderr, flush=True)


def _nothing(scenario: str) -> None:
    pass


def _check_output(options: argparse.Namespace) -> None:
    if options.junit is not None:
        options.junit.write_text("")  # rather now than after minutes of grading


def _deliver(report: Report, options: argparse.Namespace) -> int:
    if options.junit is not None:
        options.junit.write_text(report.to_junit(), encoding="utf-8")
    _print(f"{json.dumps(report.to_json(), indent=2)}\n" if options.json else report.to_text())
    return report.exit_code


def _print(text: str) -> None:
    """Onto stdout, or nowhere where ``| head``, say, has read enough."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # Or the interpreter would try again when it exits, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_checklist(options: argparse.Namespace) -> int:
    if options.write is None:
        _print(checklist())
        return 0
    path = Path(options.write)
    path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0
