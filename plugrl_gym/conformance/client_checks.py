"""Every clause that binds clients and can be seen from the wire (SPEC 2 to 13).

Clauses of which a grader gets no occasion without harm (an operator's options, what happens to
an env that cannot be described) are left out; so are those that only say MAY.
"""

from __future__ import annotations

from typing import Final

from plugrl_gym.conformance.checks import Check, Severity
from plugrl_gym.conformance.inspection import frame_checks

__all__ = ["CLIENT_CHECKS"]

MUST, SHOULD = Severity.VIOLATION, Severity.NOTE

_TRANSPORT: Final = (
    ("2.1", MUST, "the client opens a WebSocket (RFC 6455) over TCP and keeps to its framing"),
    ("2.4", MUST, "a message is one binary frame"),
    ("2.5", MUST, "the client sends no text frame"),
    ("2.6", MUST, "the handshake does not offer permessage-deflate"),
    ("2.8", MUST, "frames of more than 1 MiB are received"),
    ("2.14", MUST, "pings are answered at all times, also while an env steps"),
    ("2.15", MUST, "the client's keepalive does not end the connection to a server that computes"),
)
_RECEIVING: Final = (
    ("3.5", MUST, "a key that is no str is a protocol error"),
    ("3.7", MUST, "keys are accepted in any order"),
    ("3.9", MUST, "unknown top-level keys are ignored"),
    ("3.12", MUST, "a msgpack extension type is a protocol error"),
    ("3.15", MUST, "whatever bytes come, there is no crash and no hang"),
    ("4.4", MUST, "the keys of an array are accepted in any order"),
    ("4.9", MUST, "the elements of an array are in C order"),
    ("4.11", MUST, "arrays of no dimensions are accepted"),
    ("4.12", MUST, "arrays with dimensions of 0 are accepted"),
    ("4.16", MUST, "one-byte types are accepted with the orders < and > too"),
    ("4.17", MUST, "every type is decoded in both byte orders"),
    ("4.20", MUST, "a typestr outside 4.14 is a protocol error"),
    ("4.23", MUST, "a bool byte other than 0 is true"),
    ("4.27", MUST, "<U0 is accepted"),
    ("4.34", MUST, "numbers are accepted as typed scalars as well as plain"),
    ("4.35", MUST, "a malformed array is a protocol error"),
    ("4.37", MUST, "an array with str keys is a protocol error"),
    ("4.38", MUST, "an array in the encoding of the package msgpack-numpy is a protocol error"),
    ("4.39", SHOULD, "the report of 4.37 and 4.38 names the mistake"),
)
_EXCHANGE: Final = (
    ("5.1", MUST, "only the message is sent that the state allows"),
    ("5.2", MUST, "a message that the state does not allow is a protocol error"),
    ("5.5", MUST, "nothing is sent before the metadata has been read"),
    ("5.6", MUST, "nothing is sent between an infer and its action"),
    ("5.8", MUST, "exactly one feedback comes between an action and the next infer"),
    ("5.11", MUST, "a client that stops waiting for an action closes the connection"),
    ("5.12", MUST, "a message names at least one env"),
    ("5.13", MUST, "a message names no env twice"),
    ("5.14", MUST, "an index is a non-negative int of at most 63 bits"),
    ("5.17", SHOULD, "indices are 0, 1, 2, … without gaps"),
    ("5.21", MUST, "a feedback names only envs that hold an action of this connection"),
    ("5.22", MUST, "an infer names no env that holds an action"),
    ("5.25", MUST, "an env in mid-episode infers with the observation of its last feedback"),
)
_METADATA: Final = (
    ("6.1.2", MUST, "no key of metadata.data is required"),
    ("6.1.3", MUST, "unknown keys of metadata.data are ignored, whatever their size"),
    ("6.1.5", MUST, "a known key of another type is a protocol error"),
    ("6.1.6", MUST, "an absent key means not known, never zero or none"),
)
_OBSERVATION: Final = (
    ("6.2.1", MUST, "an observation has exactly the keys images, states and text"),
    ("6.2.2", MUST, "images are uint8 arrays of four dimensions"),
    ("6.2.3", MUST, "states are arrays of two dimensions"),
    ("6.2.4", MUST, "a state's dtype is of kind b, u, i or f"),
    ("6.2.5", MUST, "text is a U array or an array of str, one for each row"),
    ("6.2.6", SHOULD, "text is a U array"),
    ("6.2.10", MUST, "all parts of an observation have the same leading dimension"),
    ("6.2.11", MUST, "the names of images and states are str"),
    ("6.2.15", MUST, "no observation holds a NaN or an infinity"),
)
_INFER: Final = (
    ("6.3.1", MUST, "an infer has the keys data, env_indices and step_ids"),
    ("6.3.2", MUST, "an infer's data has one row for each index"),
    ("6.3.3", MUST, "an infer's env_indices are int64 [n]"),
    ("6.3.4", MUST, "an infer's step_ids are int64 [n]"),
    ("6.3.5", MUST, "an env's step id is the number of chunks completed in its episode"),
)
_ACTION: Final = (
    ("6.4.2", MUST, "other keys of action.data are ignored"),
    ("6.4.4", MUST, "env_ids of any integer type are accepted"),
    ("6.4.5", MUST, "without env_ids the order of the infer holds"),
    ("6.4.6", MUST, "env_ids other than the infer's are a protocol error"),
    ("6.4.9", MUST, "actions of every dtype are accepted and converted"),
    ("6.4.13", MUST, "[H, n, 1] is accepted for a Discrete action space"),
    ("6.4.15", MUST, "an action of any other shape is a protocol error"),
    ("6.4.16", MUST, "whole floats are accepted for an action space of integers"),
    ("6.4.17", MUST, "a fractional action for a space of integers is a protocol error"),
    ("6.4.19", MUST, "an action with a NaN or an infinity is a protocol error"),
    ("6.4.20", MUST, "no env is run whose action space has no encoding"),
    ("6.4.21", MUST, "a chunk's steps are run in order, from the first"),
    ("6.4.22", MUST, "at least one step of a chunk is run before it is fed back"),
    ("6.4.23", MUST, "no chunk runs on beyond H steps"),
    ("6.4.24", MUST, "a chunk ends at the step that ends the episode"),
)
_FEEDBACK: Final = (
    ("6.5.1", MUST, "a feedback has the keys env_indices, step_ids and data"),
    ("6.5.2", MUST, "a feedback's env_indices are int64 [m]"),
    ("6.5.3", MUST, "a feedback's step_ids are int64 [m]"),
    ("6.5.4", SHOULD, "a feedback's step ids are those of the infer"),
    ("6.5.5", MUST, "a feedback's data has exactly its five keys"),
    ("6.5.6", MUST, "rewards are floats [m]"),
    ("6.5.7", SHOULD, "rewards are float32"),
    ("6.5.9", MUST, "a reward is the sum over the chunk's steps"),
    ("6.5.11", MUST, "terminated and truncated are bool [m]"),
    ("6.5.12", MUST, "terminated and truncated are the flags of the chunk's last step"),
    ("6.5.13", MUST, "obs has one row for each index, taken after the chunk's last step"),
    ("6.5.14", MUST, "the observation of a finished episode is the terminal one"),
    ("6.5.15", MUST, "a step that only resets the env belongs to no chunk"),
    ("6.5.16", MUST, "info is a map"),
    ("6.5.17", MUST, "the first array in info has the leading dimension m"),
    ("6.5.18", SHOULD, "with one row, the first array in info has the leading dimension 1"),
    ("6.5.21", MUST, "info.episode has r, l and s of the right types and values"),
    ("6.5.22", MUST, "info.episode tells by mask which rows are finished episodes"),
    ("6.5.24", MUST, "no reward is NaN or infinite"),
)
_CLOSING: Final = (
    ("7.5", SHOULD, "the client waits while the server answers pings"),
    ("8.19", MUST, "after plugrl-server-stop the client ends with success"),
    ("8.20", MUST, "the client does not reconnect after plugrl-server-stop"),
    ("8.21", MUST, "the reason of a 1008 is reported as an error"),
    ("8.22", MUST, "the client does not reconnect after 1008"),
    ("8.23", MUST, "a handshake refused with 401 is reported as an error"),
    ("8.24", MUST, "the client does not try again with the same key"),
    ("8.25", MUST, "after a text frame the client closes and sends nothing more"),
    ("8.26", MUST, "the client does not reconnect after a text frame"),
    ("8.27", MUST, "after a text frame the client fails"),
    ("8.28", MUST, "on any other protocol error the client closes with 1002"),
    ("8.29", MUST, "a protocol error is reported"),
    ("8.30", MUST, "no env is stepped with any part of a malformed message"),
    ("8.31", SHOULD, "the client does not reconnect after a protocol error"),
    ("8.32", MUST, "the client reconnects after plugrl-server-resync"),
    ("8.33", SHOULD, "after 1011 the client reconnects, or gives up with the reason"),
    ("8.34", SHOULD, "the client reconnects after any other close or a lost connection"),
    ("8.35", SHOULD, "the client waits before it tries again"),
    ("8.36", SHOULD, "a client that is done sends a close frame"),
    ("8.37", MUST, "an env is not reset in mid-episode within a connection"),
    ("8.39", MUST, "feedback that was not sent before a close is dropped"),
    ("8.40", MUST, "no feedback is sent on another connection than its action's"),
    ("8.41", MUST, "steps that were not run before a close are dropped"),
    ("8.42", MUST, "the first message on a connection is an infer"),
    ("8.43", MUST, "an env in mid-episode goes on after a close"),
    ("8.44", MUST, "an env whose episode ended is reset before its next infer"),
)
_FEATURES: Final = (
    ("9.1.2", MUST, "no feature is used that the connection's metadata does not list"),
    ("9.1.3", SHOULD, "a feature that is offered is used"),
    ("9.1.4", MUST, "unknown names of features are ignored"),
    ("9.1.7", MUST, "features work in any combination"),
    ("9.2.1", MUST, "reuse is bool [n]"),
    ("9.2.2", MUST, "data holds only the rows that are not reused"),
    ("9.2.3", MUST, "data has no rows where all are reused"),
    ("9.2.5", MUST, "nothing is reused that was not fed back on this connection"),
    ("9.2.6", MUST, "no terminal observation is reused"),
    ("9.2.8", MUST, "reused and sent rows have the same names, dtypes and shapes"),
)
_SPACES: Final = (
    ("9.3.1", MUST, "spaces come in the first infer of each connection"),
    ("9.3.2", MUST, "spaces do not come in a later infer"),
    ("9.3.3", MUST, "spaces is a map with its keys and types"),
    ("9.3.5", MUST, "the spaces are those of a single env"),
    ("9.3.6", MUST, "each space is described as in the table"),
    ("9.3.7", MUST, "low and high of a Box are arrays of its shape and dtype"),
    ("9.3.8", MUST, "nvec and start of a MultiDiscrete have the same shape"),
    ("9.3.14", MUST, "every leaf is named by its path, or obs"),
    ("9.3.15", MUST, "~ and / in a Dict key are escaped"),
    ("9.3.16", MUST, "an element of a Tuple is named by its position"),
    ("9.3.17", MUST, "exactly the Boxes that look like images travel as images"),
    ("9.3.18", MUST, "an image of two dimensions travels as [n, h, w, 1]"),
    ("9.3.19", MUST, "the channel axis is found by the sizes"),
    ("9.3.20", MUST, "an image whose channels come first is turned"),
    ("9.3.21", MUST, "a stack of images is joined along the channel axis"),
    ("9.3.22", MUST, "every other leaf travels as a state [n, d]"),
    ("9.3.23", MUST, "a state has its leaf's dtype"),
    ("9.3.24", MUST, "the first Text leaf travels in text"),
    ("9.3.25", MUST, "further Text leaves travel as code points"),
    ("9.3.26", MUST, "without a Text leaf, text is empty strings"),
)
_STEPS: Final = (
    ("9.4.1", MUST, "steps and step_rewards come together"),
    ("9.4.2", MUST, "steps is int64 [m], from 1 to H, and what was run"),
    ("9.4.3", MUST, "step_rewards is float32 [K, m]"),
    ("9.4.4", MUST, "step_rewards is zero after a row's last step"),
    ("9.4.5", MUST, "rewards are the sums of step_rewards"),
    ("9.4.6", MUST, "step_rewards holds no NaN or infinity"),
    ("9.5.1", MUST, "actions and overridden come together"),
    ("9.5.2", MUST, "actions is [K, m, *da] and holds what was executed"),
    ("9.5.3", MUST, "actions is zero after a row's last step"),
    ("9.5.4", MUST, "overridden is bool [m], true where an action differs from the server's"),
    ("9.5.5", MUST, "actions holds no NaN or infinity"),
)
_PROBE: Final = (
    ("10.1", MUST, "probe envs have the indices 0 to n - 1, below 1000"),
    ("10.2", MUST, "an episode of probe env i lasts 3 + 2 (i mod 3) steps"),
    ("10.3", MUST, "a probe observation has the states t and a, no images and no text"),
    ("10.4", MUST, "t is float64 [n, 1], the steps taken in the episode"),
    ("10.5", MUST, "a is float64 [n, d], the last action applied"),
    ("10.6", MUST, "every probe step pays 1"),
    ("10.7", MUST, "terminated is true at the episode's last step and at no other"),
    ("10.8", MUST, "truncated is never true"),
)
_VERSION: Final = (
    ("12.2", MUST, "an absent protocol_version is taken as 1"),
    ("12.3", MUST, "another protocol_version is refused, and the error names both"),
    ("12.4", MUST, "the client does not reconnect to a server of another version"),
    ("13.1", SHOULD, "a client says of a server without envelope that it seems to be openpi's"),
)

#: What :func:`~plugrl_gym.conformance.client_grader.grade_client` can observe.
CLIENT_CHECKS: Final[tuple[Check, ...]] = (
    *frame_checks("client"),
    *(
        Check(clause, "client", severity, rule)
        for group in (
            *(_TRANSPORT, _RECEIVING, _EXCHANGE, _METADATA, _OBSERVATION, _INFER, _ACTION),
            *(_FEEDBACK, _CLOSING, _FEATURES, _SPACES, _STEPS, _PROBE, _VERSION),
        )
        for clause, severity, rule in group
    ),
)
