"""Feed everything that receives with pickles, in a process that notices when one is opened.

Run as a program; prints one line of JSON. A process of its own, for an audit hook stays for ever.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import marshal
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.errors import RemoteProtocolError, UnsupportedSpace
from plugrl_gym.protocol import (
    ClientProtocol,
    Infer,
    MessageType,
    Metadata,
    ServerProtocol,
    decode,
)
from plugrl_gym.protocol.messages import read_message
from plugrl_gym.spaces import ObservationLayout, build_space
from tests.support.fuzzing import places, unpacked
from tests.support.golden import golden, spec_golden
from tests.support.messages import infer
from tests.support.serving import running

#: What Python reports when bytes become code or objects.
_EVENTS = {"pickle.find_class", "marshal.loads", "marshal.load", "exec", "compile", "os.system"}


class Bomb:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("a pickle was opened",)


PICKLE = pickle.dumps(Bomb())


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    return file.getvalue()


def _array(typestr: str, shape: list[int]) -> dict[bytes, Any]:
    return {b"__ndarray__": True, b"data": PICKLE, b"dtype": typestr, b"shape": shape}


PAYLOADS: list[Any] = [
    PICKLE,
    _npy(),
    marshal.dumps(Bomb.__reduce__.__code__),
    "cbuiltins\nprint\n(S'a pickle was opened'\ntR.",
    _array("|O", [1]),
    _array("|O8", []),
    _array(f"|V{len(PICKLE)}", [1]),
    _array(f"|S{len(PICKLE)}", [1]),
    _array("|u1", [len(PICKLE)]),
    {b"__npgeneric__": True, b"data": PICKLE, b"dtype": "|O"},
    {b"nd": True, b"type": "O", b"kind": b"O", b"shape": [1], b"data": PICKLE},
    msgpack.ExtType(42, PICKLE),
]


def frames() -> Iterator[bytes]:
    """Golden frames as they are, and with each payload in every place."""
    for frame in {**golden("messages"), **spec_golden()}.values():
        yield frame
        for path in places(unpacked(frame)):
            for payload in PAYLOADS:
                value = {"": copy.deepcopy(unpacked(frame))}
                holder: Any = value
                for key in ("", *path)[:-1]:
                    holder = holder[key]
                holder[("", *path)[-1]] = payload
                yield msgpack.packb(value[""])


class Traps:
    """Notes every attempt to unpickle or to run, while set."""

    def __init__(self) -> None:
        self.set = False
        self.caught: Counter[str] = Counter()
        sys.addaudithook(self._hear)
        for module, name in ((pickle, "loads"), (pickle, "load"), (pickle, "Unpickler")):
            setattr(module, name, self._wrapped(f"pickle.{name}", getattr(module, name)))
        for name in ("load", "fromfile"):
            setattr(np, name, self._wrapped(f"np.{name}", getattr(np, name)))

    def _hear(self, event: str, arguments: Any) -> None:
        if self.set and event in _EVENTS:
            self.caught[event] += 1

    def _wrapped(self, name: str, function: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.caught[name] += self.set
            return function(*args, **kwargs)

        return call


def read(frame: bytes) -> bool:
    """Give a frame to everything that takes one; whether something took it."""
    taken = False
    readers: list[Callable[[bytes], Any]] = [decode, _as_server, _as_client]
    readers += [lambda frame, kind=kind: read_message(frame, kind) for kind in MessageType]
    for reader in readers:
        try:
            message = reader(frame)
        except (RemoteProtocolError, UnsupportedSpace):
            continue
        taken = True
        if isinstance(message, Infer) and message.spaces is not None:
            try:
                ObservationLayout(build_space(message.spaces.observation))
                build_space(message.spaces.action)
            except (RemoteProtocolError, UnsupportedSpace):
                continue
    return taken


def _as_server(frame: bytes) -> Any:
    server = ServerProtocol()
    server.send_metadata(Metadata(features=tuple(RandomAgent.features)))
    try:
        return server.receive(frame)
    except RemoteProtocolError:
        client = ClientProtocol()
        server = ServerProtocol()
        client.receive_metadata(server.send_metadata(Metadata()))
        server.receive(client.send_infer(infer()))
        server.send_action(np.zeros((1, len(infer().env_indices)), np.int64))
        return server.receive(frame)


def _as_client(frame: bytes) -> Any:
    client, server = ClientProtocol(), ServerProtocol()
    try:
        return client.receive_metadata(frame)
    except RemoteProtocolError:
        client = ClientProtocol()
        client.receive_metadata(server.send_metadata(Metadata()))
        client.send_infer(infer())
        return client.receive_action(frame)


def over_the_wire(hostile: list[bytes]) -> int:
    """Send frames to a running server, each on a connection of its own; how many it closed for."""
    closed = 0
    with running(RandomAgent(), max_resync_delay=0.0) as run:
        for frame in hostile:
            with connect(run.url, compression=None) as client:
                client.recv(timeout=10)
                client.send(frame)
                try:
                    client.recv(timeout=10)
                except ConnectionClosed:
                    closed += 1
    return closed


def main() -> None:
    """Run everything, and tell what was caught."""
    logging.disable()
    traps = Traps()
    everything = list(dict.fromkeys(frames()))
    sample = everything[:: max(len(everything) // 60, 1)]
    read(everything[0])  # what is imported late is imported now
    over_the_wire(sample[:1])
    traps.set = True
    taken = sum(map(read, everything))
    closed = over_the_wire(sample)
    caught = dict(traps.caught)
    pickle.loads(PICKLE)
    np.load(io.BytesIO(_npy()), allow_pickle=True)
    exec("1")
    traps.set = False
    print(
        json.dumps(
            {
                "frames": len(everything),
                "taken": taken,
                "sent": len(sample),
                "closed": closed,
                "caught": caught,
                "control": sorted(traps.caught),
            }
        )
    )


if __name__ == "__main__":
    main()
