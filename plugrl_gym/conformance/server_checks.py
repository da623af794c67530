"""Every clause that binds servers and can be seen from the wire (SPEC 2 to 9 and 12).

Left out are clauses that only say MAY, and those whose breach would not show: what a server
learns from, how long it is learning, whom it would have listed.
"""

from __future__ import annotations

from typing import Final

from plugrl_gym.conformance.checks import Check, Severity
from plugrl_gym.conformance.inspection import frame_checks

__all__ = ["SERVER_CHECKS"]

MUST, SHOULD = Severity.VIOLATION, Severity.NOTE

_TRANSPORT: Final = (
    ("2.1", MUST, "the server keeps to the framing of WebSocket (RFC 6455)"),
    ("2.4", MUST, "a message is one binary frame"),
    ("2.5", MUST, "the server sends no text frame"),
    ("2.7", MUST, "permessage-deflate is not agreed to, even where a client offers it"),
    ("2.8", MUST, "frames of several MiB are received"),
    ("2.12", MUST, "a handshake without the required key is answered with HTTP status 401"),
    ("2.13", MUST, "a server that requires no key accepts a handshake that carries one"),
    ("2.14", MUST, "pings are answered at all times"),
    ("2.15", MUST, "the server's keepalive does not end the connection to a peer that computes"),
)
_RECEIVING: Final = (
    ("3.5", MUST, "a key that is no str is a protocol error"),
    ("3.7", MUST, "keys are accepted in any order"),
    ("3.9", MUST, "unknown top-level keys are ignored"),
    ("3.12", MUST, "a msgpack extension type is a protocol error"),
    ("3.15", MUST, "whatever bytes come, the outcome is a valid message or a protocol error"),
    ("4.4", MUST, "the keys of an array are accepted in any order"),
    ("4.11", MUST, "arrays of no dimensions are accepted"),
    ("4.12", MUST, "arrays with dimensions of 0 are accepted"),
    ("4.16", MUST, "one-byte types are accepted with the orders < and > too"),
    ("4.17", MUST, "every type is decoded in both byte orders"),
    ("4.20", MUST, "a typestr outside 4.14 is a protocol error"),
    ("4.23", MUST, "a bool byte other than 0 is true"),
    ("4.27", MUST, "<U0 is accepted"),
    ("4.29", MUST, "a surrogate, or a code point above U+10FFFF, is a protocol error"),
    ("4.34", MUST, "numbers are accepted as typed scalars as well as plain"),
    ("4.35", MUST, "a malformed array or scalar is a protocol error"),
    ("4.37", MUST, "an array or scalar with str keys is a protocol error"),
    ("4.38", MUST, "an array in the encoding of the package msgpack-numpy is a protocol error"),
)
_EXCHANGE: Final = (
    ("5.1", MUST, "only the message is sent that the state allows"),
    ("5.2", MUST, "a message that the state does not allow is a protocol error"),
    ("5.3", MUST, "the server speaks first: metadata, without waiting for the client"),
    ("5.4", MUST, "metadata is sent exactly once per connection"),
    ("5.7", MUST, "each valid infer is answered with exactly one action, or a close"),
    ("5.9", MUST, "a feedback is not answered"),
    ("5.12", MUST, "an action names at least one env"),
    ("5.16", MUST, "the envs of two connections are kept apart where their indices are equal"),
    ("5.18", MUST, "any set of indices is accepted, in any order"),
    ("5.19", MUST, "the number of envs may differ from message to message"),
    ("5.23", MUST, "an infer for an env that holds an action gets a new one, or a resync"),
    ("5.24", MUST, "a feedback need not name the envs of the infer before it"),
)
_MESSAGES: Final = (
    ("6.1.1", MUST, "the data of metadata is a map"),
    ("6.1.4", MUST, "known keys of metadata have the types of the table"),
    ("6.1.7", MUST, "what the server does not know is left out of metadata, not nil, 0 or empty"),
    ("6.1.8", MUST, "every action has the declared action_horizon"),
    ("6.1.9", MUST, "every action has the declared action_dim"),
    ("6.2.8", MUST, "text is accepted as a U array and as a list of str, empty strings included"),
    ("6.2.9", MUST, "an observation is accepted whose images and states are empty"),
    ("6.2.12", MUST, "names that the policy does not read are ignored"),
    ("6.2.13", MUST, "such names may come and go between messages"),
    ("6.2.14", MUST, "an observation that does not fit the policy is a protocol error"),
    ("6.3.6", MUST, "indices and step ids are accepted in every integer type"),
    ("6.3.7", MUST, "no message is refused for the values of its step ids"),
    ("6.3.8", MUST, "a NaN or an infinity in an infer is a protocol error"),
    ("6.4.1", MUST, "the data of an action is a map with env_ids and action"),
    ("6.4.3", MUST, "env_ids are the infer's env_indices in the same order, as int64"),
    ("6.4.7", MUST, "an action has the shape [H, n, *da], H at least 1, n as in the infer"),
    ("6.4.8", MUST, "an action's dtype is of kind b, u, i or f"),
    ("6.4.10", MUST, "for a Box action space da is the space's shape"),
    ("6.4.11", MUST, "for a Discrete action space an action is integers of shape [H, n]"),
    ("6.4.12", MUST, "a Discrete action's values are those of the space, its start included"),
    ("6.4.14", MUST, "MultiDiscrete and MultiBinary actions are integers of the space's shape"),
    ("6.4.18", MUST, "no action holds a NaN or an infinity"),
    ("6.5.8", MUST, "rewards are accepted in every float size"),
    ("6.5.19", MUST, "an info that cannot be split is a protocol error"),
    ("6.5.20", MUST, "no entry of info is required"),
    ("6.5.23", MUST, "an absent mask in info.episode is taken as all true"),
    ("6.5.25", MUST, "a feedback row that is not finite is dropped, and is no protocol error"),
    ("6.5.26", MUST, "a feedback row of an env without an action is dropped, no protocol error"),
)
_CONNECTIONS: Final = (
    ("7.2", MUST, "each connection is given exactly the rows that it asked for"),
    ("7.3", SHOULD, "one silent client does not stall the rest"),
    ("7.4", MUST, "a connection that breaks while others wait does not spoil their answers"),
    ("8.1", MUST, "at the end of the run every connection closes with 1001 plugrl-server-stop"),
    ("8.2", MUST, "plugrl-server-stop is used for the end of the run only"),
    ("8.4", MUST, "a protocol error, and nothing else, leads to 1001 plugrl-server-resync"),
    ("8.5", SHOULD, "closes take longer and longer for a peer that stays broken"),
    ("8.6", MUST, "one client's error or departure harms no other connection"),
    ("8.7", MUST, "after it, new connections are accepted"),
    ("8.8", MUST, "without feedback the connection closes with 1001 Feedback timeout"),
    ("8.11", SHOULD, "an idle connection that answers pings is not closed"),
    ("8.12", MUST, "a close with 1011 has the reason Internal server error."),
    ("8.13", MUST, "no traceback and no other internals go over the wire"),
    ("8.14", MUST, "a stopped server closes every connection with 1001 Server shutdown"),
    ("8.15", MUST, "when a connection ends its envs are freed"),
    ("8.17", MUST, "a refusal is the close 1008 with a sentence that names what each side has"),
    ("8.18", MUST, "1008 is used only for a client that declared its spaces"),
    ("8.38", MUST, "nothing of a connection outlives it"),
)
_FEATURES: Final = (
    ("9.1.5", MUST, "clients are served that use none of the features offered"),
    ("9.1.6", MUST, "wrong use of a feature is a protocol error"),
    ("9.1.7", MUST, "features that are offered work, alone and in any combination"),
    ("9.2.4", MUST, "a row marked for reuse is the env's row of its last feedback"),
    ("9.2.7", MUST, "reuse of what is not there is a protocol error"),
    ("9.2.9", MUST, "merged rows need the same names, dtypes and shapes, but for text"),
    ("9.2.10", MUST, "an absent reuse is taken as all false"),
    ("9.3.4", MUST, "unknown keys of spaces are ignored"),
    ("9.3.11", MUST, "a client in eval mode is given deterministic actions"),
    ("9.3.13", MUST, "declared spaces are served, or refused with 1008"),
    ("9.3.27", MUST, "names, kinds and shapes are derived from the declaration"),
    ("9.3.28", MUST, "an observation that departs from the declaration is a protocol error"),
    ("9.4.7", MUST, "step_rewards that are not finite are treated by 6.5.25"),
    ("9.5.6", MUST, "executed actions that are not finite are treated by 6.5.25"),
    ("12.1", SHOULD, "metadata declares protocol_version 1"),
)

#: All checks that the server grader makes.
SERVER_CHECKS: Final[tuple[Check, ...]] = (
    *frame_checks("server"),
    *(
        Check(clause, "server", severity, rule)
        for group in (_TRANSPORT, _RECEIVING, _EXCHANGE, _MESSAGES, _CONNECTIONS, _FEATURES)
        for clause, severity, rule in group
    ),
)
