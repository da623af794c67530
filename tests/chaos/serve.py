"""``plugrl_gym.serve`` with a recorder at the agent's side.

``python -m tests.chaos.serve FD TABLE ARGUMENTS``: lines go to the descriptor FD; TABLE is ``-``
for the agent that ARGUMENTS describe, or a file for :class:`~tests.chaos.table.TableAgent`.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Any

import plugrl_gym.serve
from plugrl_gym.commands.agents import make_agent
from plugrl_gym.commands.output import Output
from tests.chaos.recorder import Recorder
from tests.chaos.table import TableAgent


def main(arguments: list[str]) -> int:
    file, table, *rest = arguments
    recorder = Recorder(int(file))

    def recorded(options: argparse.Namespace, run_dir: Path | None, output: Output) -> Any:
        agent: Any
        if table == "-":
            _watch_buffers(recorder)
            agent = make_agent(options, run_dir, output)
        else:
            agent = TableAgent(Path(table), options.total_timesteps)
        recorder.attach(agent)
        recorder.write(json.dumps({"resumed_at": agent.timesteps}))
        return agent

    plugrl_gym.serve.make_agent = recorded  # type: ignore[assignment]
    return plugrl_gym.serve.main(rest)


def _watch_buffers(recorder: Recorder) -> None:
    """Give every SB3Agent that is made from now on a callback."""
    from plugrl_gym.agents import sb3
    from tests.chaos.buffers import BufferRecorder

    watched = functools.partial(sb3.SB3Agent, callback=BufferRecorder(recorder))
    sb3.SB3Agent = watched  # type: ignore[misc, assignment]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
