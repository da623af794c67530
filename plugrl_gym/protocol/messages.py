"""The four messages as validated values (SPEC 3 and 6).

Each class has ``to_wire`` (the map that travels, keys in customary order) and ``from_wire``
(validation of a received map). Reading never raises anything but
:class:`~plugrl_gym.errors.RemoteProtocolError`, and what is about to be sent goes through the
same readers (:func:`checked_wire`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol.codec import check_encodable, decode
from plugrl_gym.protocol.episodes import EpisodeStatistics
from plugrl_gym.protocol.features import ALL_FEATURES, GYM_SPACES, REUSE_FEEDBACK_OBS
from plugrl_gym.protocol.features.gym_spaces import SpaceDeclaration
from plugrl_gym.protocol.feedback import Feedback
from plugrl_gym.protocol.fields import (
    Observation,
    as_int64,
    bool_vector,
    describe,
    env_vector,
    first_non_finite,
    index_vector,
    plain,
    require_keys,
    require_map,
    shown,
)
from plugrl_gym.protocol.state import MessageType

__all__ = [
    "PROTOCOL_VERSION",
    "Action",
    "EpisodeStatistics",
    "Feedback",
    "Infer",
    "Message",
    "Metadata",
    "checked_wire",
    "read_message",
]

PROTOCOL_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a server says of itself; an absent key (None) means "not known" (SPEC 6.1).

    Attributes:
        action_horizon: Steps in every action chunk, if declared.
        action_dim: Numbers in one env's action for one step, if declared.
        features: The optional features that the server offers.
        extra: Keys that this version does not know.
    """

    protocol_version: int | None = None
    server: str | None = None
    server_version: str | None = None
    algorithm: str | None = None
    policy: str | None = None
    action_horizon: int | None = None
    action_dim: int | None = None
    features: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """The message's map, without the keys that are not known.

        Raises:
            LocalProtocolError: ``extra`` holds what cannot travel.
        """
        known = {name: getattr(self, name) for name in (*_STR_KEYS, *_INT_KEYS)}
        data = {name: value for name, value in known.items() if value is not None}
        data["features"] = list(self.features)
        if self.extra:
            check_encodable(dict(self.extra), "metadata.data", depth=1)
        return {"message_type": str(MessageType.METADATA), "data": {**data, **self.extra}}

    @classmethod
    def from_wire(
        cls, message: dict[str, Any], offered: Collection[str] = ALL_FEATURES
    ) -> Metadata:
        """Validate the known keys of a received metadata and keep the others."""
        require_keys(message, _DATA_KEY, "metadata", exact=False)
        data = require_map(message["data"], "metadata.data")
        known: dict[str, Any] = {}
        for name in _STR_KEYS:
            known[name] = data.get(name)
            if known[name] is not None and not isinstance(known[name], str):
                raise RemoteProtocolError(
                    f"metadata.data.{name}: expected a str, got {describe(known[name])}"
                )
        for name in _INT_KEYS:
            known[name] = value = plain(data.get(name))
            if value is not None and (type(value) is not int or value < 1):
                raise RemoteProtocolError(
                    f"metadata.data.{name}: expected a positive int, got {describe(value)}"
                )
        features = data.get("features")
        if features is not None and (
            not isinstance(features, list) or not all(isinstance(name, str) for name in features)
        ):
            raise RemoteProtocolError(
                f"metadata.data.features: expected a list of str, got {describe(features)}"
            )
        extra = {name: data[name] for name in data if name not in known and name != "features"}
        return cls(**known, features=tuple(features or ()), extra=extra)


_STR_KEYS: Final = ("server", "server_version", "algorithm", "policy")
_INT_KEYS: Final = ("protocol_version", "action_horizon", "action_dim")
_DATA_KEY: Final = frozenset({"data"})


@dataclass(frozen=True, slots=True, eq=False)
class Infer:
    """A request for actions (SPEC 6.3).

    Attributes:
        observation: n rows; with ``reuse``, only the rows marked false.
        env_indices: int64 [n].
        step_ids: int64 [n], completed chunks in the current episode.
        reuse: bool [n], or None where every row carries its observation.
        spaces: The declaration, in the first infer of a connection only.
    """

    observation: Observation
    env_indices: npt.NDArray[np.int64]
    step_ids: npt.NDArray[np.int64]
    reuse: npt.NDArray[np.bool_] | None = None
    spaces: SpaceDeclaration | None = None

    def to_wire(self) -> dict[str, Any]:
        """The message's map."""
        message: dict[str, Any] = {
            "message_type": str(MessageType.INFER),
            "data": self.observation.to_wire(),
            "env_indices": as_int64(self.env_indices),
            "step_ids": as_int64(self.step_ids),
        }
        if self.reuse is not None:
            message["reuse"] = self.reuse
        if self.spaces is not None:
            message["spaces"] = self.spaces.to_wire()
        return message

    @classmethod
    def from_wire(cls, message: dict[str, Any], offered: Collection[str] = ALL_FEATURES) -> Infer:
        """Validate a received infer; reused rows are not filled in here.

        Args:
            message: The decoded map.
            offered: The features whose keys mean something; those of others are ignored.
        """
        require_keys(message, _INFER_KEYS, "infer", exact=False)
        envs = env_vector(message["env_indices"], "infer.env_indices")
        rows, reuse, spaces = len(envs), None, None
        if "reuse" in message and REUSE_FEEDBACK_OBS in offered:
            reuse = bool_vector(message["reuse"], "infer.reuse", rows)
            rows -= int(np.count_nonzero(reuse))
        if "spaces" in message and GYM_SPACES in offered:
            spaces = SpaceDeclaration.from_wire(message["spaces"])
        return cls(
            observation=Observation.from_wire(message["data"], "infer.data", rows),
            env_indices=envs,
            step_ids=index_vector(message["step_ids"], "infer.step_ids", len(envs)),
            reuse=reuse,
            spaces=spaces,
        )


_INFER_KEYS: Final = frozenset({"data", "env_indices", "step_ids"})


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """The answer to an infer (SPEC 6.4).

    Attributes:
        action: [H, n, *da], time-major, any numeric dtype.
        env_ids: int64 [n], equal to the infer's ``env_indices``; None from a legacy server.
    """

    action: npt.NDArray[Any]
    env_ids: npt.NDArray[np.int64] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The message's map."""
        data: dict[str, Any] = {}
        if self.env_ids is not None:
            data["env_ids"] = as_int64(self.env_ids)
        data["action"] = self.action
        return {"message_type": str(MessageType.ACTION), "data": data}

    @classmethod
    def from_wire(cls, message: dict[str, Any], offered: Collection[str] = ALL_FEATURES) -> Action:
        """Validate a received action on its own; :meth:`check` compares it with its infer."""
        require_keys(message, _DATA_KEY, "action", exact=False)
        data = require_map(message["data"], "action.data")
        require_keys(data, frozenset({"action"}), "action.data", exact=False)
        action = data["action"]
        if (
            not isinstance(action, np.ndarray)
            or action.dtype.kind not in "buif"
            or action.ndim < 2
            or action.shape[0] < 1
        ):
            raise RemoteProtocolError(
                f"action.data.action: expected numeric [H, n, ...] with H >= 1, "
                f"got {describe(action)}"
            )
        bad = first_non_finite(action)
        if bad is not None:
            raise RemoteProtocolError(
                f"action.data.action{list(bad)}: {action[bad]} is not a finite number"
            )
        env_ids = None
        if data.get("env_ids") is not None:
            env_ids = index_vector(data["env_ids"], "action.data.env_ids")
        return cls(action, env_ids)

    def check(self, asked: npt.NDArray[np.int64], metadata: Metadata) -> None:
        """Compare the action with the infer that it answers and with what is declared.

        Args:
            asked: int64 [n], the infer's ``env_indices``.
            metadata: The connection's.

        Raises:
            RemoteProtocolError: Naming the expected and the received shape.
        """
        shape = list(self.action.shape)
        if shape[1] != len(asked):
            raise RemoteProtocolError(
                f"action.data.action: expected [H, {len(asked)}, ...] for {len(asked)} envs, "
                f"got {shape}"
            )
        if self.env_ids is not None and not np.array_equal(self.env_ids, asked):
            raise RemoteProtocolError(
                f"action.data.env_ids: expected {asked.tolist()[:16]}, "
                f"got {self.env_ids.tolist()[:16]}"
            )
        horizon, dim = metadata.action_horizon, metadata.action_dim
        if horizon is not None and shape[0] != horizon:
            raise RemoteProtocolError(
                f"action.data.action: the metadata declares action_horizon {horizon}, "
                f"got shape {shape}"
            )
        if dim is not None and math.prod(shape[2:]) != dim:
            raise RemoteProtocolError(
                f"action.data.action: the metadata declares action_dim {dim}, got shape {shape}"
            )


Message: TypeAlias = Metadata | Infer | Action | Feedback

_READERS: Final[Mapping[MessageType, Any]] = {
    MessageType.METADATA: Metadata.from_wire,
    MessageType.INFER: Infer.from_wire,
    MessageType.ACTION: Action.from_wire,
    MessageType.FEEDBACK: Feedback.from_wire,
}


def read_message(
    frame: bytes | str, expected: MessageType, offered: Collection[str] = ALL_FEATURES
) -> Message:
    """Decode and validate one frame.

    Args:
        frame: The payload of a WebSocket frame; a str is a text frame.
        expected: The only type that may come now (SPEC 5).
        offered: The features of this connection; keys of others are ignored (SPEC 3.9).

    Raises:
        RemoteProtocolError: It is not a valid message of that type.
    """
    if isinstance(frame, str):
        raise RemoteProtocolError("a text frame; every message is a binary frame (SPEC 2.5)")
    message = decode(frame)
    if not isinstance(message, dict):
        raise RemoteProtocolError(f"expected a map, got {describe(message)} (SPEC 3.2)")
    kind = message.get("message_type")
    if kind is None:
        keys = ", ".join(shown(key) for key in list(message)[:6]) or "none"
        raise RemoteProtocolError(
            f"expected {expected}, got a map without message_type (keys: {keys}); the peer seems "
            "to speak openpi's protocol, not PlugRL (SPEC 13)"
        )
    if not isinstance(kind, str) or kind != str(expected):
        raise RemoteProtocolError(
            f"expected {expected}, got message_type {describe(kind)} (SPEC 5.1)"
        )
    read: Message = _READERS[expected](message, offered)
    return read


def checked_wire(message: Message) -> dict[str, Any]:
    """The map of a message that is about to be sent, read once as its receiver will.

    Raises:
        LocalProtocolError: The receiver would not take it.
    """
    wire = message.to_wire()
    try:
        type(message).from_wire(wire)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None
    return wire
