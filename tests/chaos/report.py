"""What came of an ordeal: the joins, the books, and a section for RESULTS.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.checker import (
    Life,
    Truth,
    Verdict,
    check_buffer,
    check_rows,
    read_life,
    read_truth,
)
from tests.chaos.ordeal import Ordeal

__all__ = ["Report"]

#: Steps of a chunk that may be on its way when a connection is cut.
_HORIZON = 3


@dataclass
class Report:
    """Env steps by what became of them, and everything that does not add up.

    Attributes:
        executed: Env steps that all envs took.
        verdict: On the transitions that agents were handed.
        dropped: Reason -> env steps that clients dropped, by the books of those that ended well.
        in_flight: Env steps that these fed back and no agent was handed: lost on the way, or with
            a server that was killed.
        lost_with_clients: Env steps of clients that were killed, and that no agent was handed.
        in_final_model: Env steps that the last server knows of.
        errors: A sentence for each account that does not balance, and for each unexpected end.
        final_return: Mean of the last 100 episodes.
        lives, clients: Server and client processes.
        balanced: Client and server processes whose books were compared.
        broken: What was broken, and how often.
        buffer_rows: Rows of rollouts and replay buffers that were compared.
    """

    executed: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    dropped: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    lost_with_clients: int = 0
    in_final_model: int = 0
    errors: list[str] = field(default_factory=list)
    final_return: float | None = None
    lives: int = 0
    clients: int = 0
    balanced: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    buffer_rows: int = 0

    @classmethod
    def of(cls, ordeal: Ordeal) -> Report:
        """Read all files of an ordeal that is over."""
        report = cls(errors=list(ordeal.complaints), broken=ordeal.broken)
        report.lives, report.clients = len(ordeal.lives), len(ordeal.clients)
        truths: dict[int, Truth] = {}
        for client in ordeal.clients:
            if client.truth.exists():
                truths[client.number] = read_truth(client.truth.read_bytes())
        lives = [read_life(server.lines()) for server in ordeal.lives]
        everything = {place: step for truth in truths.values() for place, step in truth.items()}
        report.executed = len(everything)
        report.verdict = check_rows((row for life in lives for row in life.rows), everything)
        for number, life in enumerate(lives):
            buffer = check_buffer(life.buffer, everything)
            report.buffer_rows += buffer.true_rows
            report.errors += [f"server {number}: {fault}" for fault in buffer.false]
            if buffer.twice:
                report.errors.append(f"server {number}: {buffer.twice} rows are twice in a buffer")
        for client in ordeal.clients:
            took = len(truths.get(client.number, {}))
            result = None if client.killed else client.result()
            report._settle_client(client.number, took, result)
        for server, life in zip(ordeal.lives, lives, strict=True):
            if not server.killed:
                report._settle_server(server.number, life, server.result())
        last = lives[-1]
        report.in_final_model = (last.resumed_at or 0) + last.steps
        result = ordeal.lives[-1].result()
        report.final_return = None if result is None else result["mean_return"]
        return report

    def _settle_client(self, number: int, took: int, result: dict[str, Any] | None) -> None:
        handed = self.verdict.stored_steps[number]
        if result is None or "books" not in result:
            self.lost_with_clients += took - handed
            return
        self.balanced += 1
        books = result["books"]
        self.errors += [f"client {number}: {error}" for error in books["errors"]]
        if books["env_steps"] != took:
            self.errors.append(f"client {number} has {books['env_steps']} steps down, took {took}")
        self.dropped.update(books["steps_dropped"])
        lost = books["steps_fed_back"] + books["steps_open"] - handed
        most = result["connections"] * result["num_envs"] * _HORIZON
        if not 0 <= lost <= most:
            self.errors.append(f"client {number}: {lost} steps were lost on the way, of {most}")
        self.in_flight += lost

    def _settle_server(self, number: int, life: Life, result: dict[str, Any] | None) -> None:
        if result is None:
            return  # it failed, and has said why
        self.balanced += 1
        books = result["books"]
        self.errors += [f"server {number}: {error}" for error in books["errors"]]
        if books["rows_stored"] != len(life.rows) - life.not_kept:
            self.errors.append(
                f"server {number} has {books['rows_stored']} rows down as stored, its agent was "
                f"handed {len(life.rows)} and did not keep {life.not_kept}"
            )

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong; empty after an ordeal that was survived."""
        twice = [f"{self.verdict.twice} steps are in two transitions"] if self.verdict.twice else []
        return [*self.errors, *self.verdict.false, *twice]

    def markdown(self, title: str, undisturbed: float | None) -> str:
        """A section for RESULTS.md.

        Args:
            title: Its heading.
            undisturbed: The return of a run that nobody disturbed.
        """
        broken = ", ".join(f"{n} x {name}" for name, n in sorted(self.broken.items()) if n)
        dropped = ", ".join(f"{name} {n:,}" for name, n in sorted(self.dropped.items())) or "none"
        handed = self.verdict.stored_steps.total()
        rows = [
            ("broken", broken),
            ("processes", f"{self.lives} servers, {self.clients} clients"),
            ("env steps that the envs took", f"{self.executed:,}"),
            ("of these handed to the agent", f"{handed:,} in {self.verdict.true_rows:,} rows"),
            ("dropped by clients, by reason", f"{self.dropped.total():,} ({dropped})"),
            ("lost on the way or with a killed server", f"{self.in_flight:,}"),
            ("lost with killed clients", f"{self.lost_with_clients:,}"),
            ("env steps that the final model knows of", f"{self.in_final_model:,}"),
            ("rows of rollouts and replay buffers compared", f"{self.buffer_rows:,}"),
            ("false transitions", f"{len(self.verdict.false)}"),
            ("steps in two transitions", f"{self.verdict.twice}"),
            ("books compared", f"{self.balanced} processes, {len(self.errors)} errors"),
            ("return at the end", _number(self.final_return)),
            ("return of an undisturbed run", _number(undisturbed)),
        ]
        table = "\n".join(f"| {name} | {value} |" for name, value in rows)
        faults = "".join(f"\n- FAULT: {fault}" for fault in self.faults[:20])
        return f"### {title}\n\n| | |\n|---|---|\n{table}\n{faults}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
