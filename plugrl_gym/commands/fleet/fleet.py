"""Starts several clients, watches them, and tells what became of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from plugrl_gym.commands.entry import EXIT_FAILED
from plugrl_gym.commands.fleet.member import Member
from plugrl_gym.commands.fleet.sums import summed
from plugrl_gym.commands.fleet.table import final_table, summed_reading
from plugrl_gym.commands.output import Output
from plugrl_gym.commands.reports import ReportingChild
from plugrl_gym.commands.stages import stage_table
from plugrl_gym.display import Pause, Reading, Reporter
from plugrl_gym.errors import UsageError

__all__ = ["Fleet"]

_TICK: Final = 0.05
# Closing envs and a connection takes a moment; a hanging env may not keep the others.
_END_SECONDS: Final = 30.0
# Once the server has ended the run for one, it has for all; who is away then would look for it.
_AWAY_SECONDS: Final = 5.0


class Fleet:
    """Several processes of ``rollout``, which end with this one.

    Args:
        command_lines: The arguments of each.
        output: The command's voice.
        total: Env steps that all of them are to make; None where only the server knows.
        environment: Of the processes; None for this one's.
        stages: Tell the latency by stage of each.
    """

    def __init__(
        self,
        command_lines: Sequence[Sequence[str]],
        output: Output,
        total: int | None = None,
        environment: Mapping[str, str] | None = None,
        stages: bool = False,
    ) -> None:
        self._command_lines = command_lines
        self._environment = environment
        self._total = total
        self._stages = stages
        self._output = output
        self._pause = Pause()
        self._members: list[Member] = []
        self._began = time.monotonic()

    def run(self, about: Mapping[str, Any]) -> int:
        """Run all of them to their end; returns the exit code.

        Args:
            about: Begins the result for programs.

        Raises:
            UsageError: Every one was refused, and for the same reason.
            KeyboardInterrupt: Ctrl-C; all have ended.
        """
        interrupted = False
        with contextlib.ExitStack() as running:
            with Reporter(self._read, self._output.surface()):
                try:
                    self._start(running)
                    self._watch()
                except KeyboardInterrupt:
                    interrupted = True
                    self._end_all()
            self._hear_out()
        self._raise_what_all_say()
        lasted = time.monotonic() - self._began
        total = summed([member.counts() for member in self._members], lasted)
        self._output.say(final_table(self._members, total))
        self._show_stages()
        processes = [self._account(member) for member in self._members]
        self._output.result({**about, **total, "processes": processes})
        if interrupted:
            raise KeyboardInterrupt
        return EXIT_FAILED if any(member.died for member in self._members) else 0

    def _show_stages(self) -> None:
        for member in self._members if self._stages else ():
            latency = member.counts().get("latency")
            if latency:
                self._output.say(f"process {member.number}:\n{stage_table(latency)}")

    def _start(self, running: contextlib.ExitStack) -> None:
        prog = self._output.prog
        for number, arguments in enumerate(self._command_lines, 1):
            child = ReportingChild(
                "plugrl_gym.rollout",
                [*arguments, f"--parent={prog}"],
                self._relay(f"[{number}] ", f"{prog}: "),
                self._environment,
            )
            running.enter_context(child)
            self._members.append(Member(number, child, prog))

    def _relay(self, mark: str, complaint: str) -> Callable[[str], None]:
        """Says what a child says, but not its sentence about an error: that comes with its end."""

        def relay(line: str) -> None:
            if not line.startswith(complaint):
                self._output.above.write(f"{mark}{line}\n")

        return relay

    def _watch(self) -> None:
        """Until all have ended; one that dies is named, one that comes too late is let go."""
        over: float | None = None
        while any(member.running for member in self._members):
            time.sleep(_TICK)
            if over is None and any(member.finished for member in self._members):
                over = time.monotonic()
            if over is not None and time.monotonic() - over > _AWAY_SECONDS:
                for member in self._members:
                    member.let_go_if_away()
            under_way = any(m.running and m.reading.steps for m in self._members)
            for member in self._members:
                if member.died and not member.told:
                    member.hear_out()  # its last words may still be on their way
                    # Where none has begun, all may be about to say the same.
                    if under_way or not member.refused:
                        self._tell_of(member)

    def _tell_of(self, member: Member) -> None:
        member.told = True
        left = sum(other.running for other in self._members)
        others = f"; {left} of {len(self._members)} go{'es' * (left == 1)} on" if left else ""
        self._output.above.write(
            f"{self._output.prog}: process {member.number} {member.end()}{others}\n"
        )

    def _raise_what_all_say(self) -> None:
        complaints = {member.complaint for member in self._members if member.refused}
        if len(complaints) == 1 and all(member.refused for member in self._members):
            raise UsageError(complaints.pop())
        for member in self._members:
            if member.died and not member.told:
                self._tell_of(member)

    def _end_all(self) -> None:
        with self._pause("ending"):
            for member in self._members:
                member.child.release()
            deadline = time.monotonic() + _END_SECONDS
            for member in self._members:
                member.child.end(max(deadline - time.monotonic(), 0.0))

    def _hear_out(self) -> None:
        for member in self._members:
            member.hear_out()

    def _read(self) -> Reading | None:
        members = list(self._members)
        if not members:
            return None
        ending = self._pause.words(after=0.0)
        if ending:
            return Reading(pause=ending)
        return summed_reading(members, self._total, time.monotonic() - self._began)

    @staticmethod
    def _account(member: Member) -> dict[str, Any]:
        own = {"process": member.number, "exit_code": member.child.code, "end": member.end()}
        return own | member.counts()
