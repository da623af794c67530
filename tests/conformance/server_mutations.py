"""Which clauses each bug of the reference server breaks: the proof that every check can fail.

``NAMED`` gives, for each bug, the clauses that the grader must name, all of them and no other,
and where it finds them: the cases (phase:name, joined by semicolons) that a quick run is confined
to. The full run gives all phases to every bug, and must come to the same.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any, Final

from plugrl_gym.conformance import Report, grade_server
from tests.support.programs import reference_server

__all__ = ["NAMED", "WITHOUT_CLAUSE", "grade_bug"]

NAMED: Final[dict[str, tuple[str, str]]] = {
    "no-message-type": ("3.2", "exchange:pings"),
    "two-messages-in-one": ("3.1", "exchange:pings"),
    "key-order": ("3.6", "exchange:pings"),
    "key-twice": ("3.6 3.8", "exchange:pings"),
    "deep-metadata": ("3.13", "exchange:pings"),
    "array-key-order": ("4.3", "exchange:pings"),
    "array-tag": ("4.5", "exchange:pings"),
    "array-list-data": ("4.6", "exchange:pings"),
    "array-bin-dtype": ("4.7", "exchange:pings"),
    "array-float-shape": ("4.8", "exchange:pings"),
    "big-endian": ("4.18", "exchange:pings"),
    "bool-2": ("4.22", "exchange:pings"),
    "surrogate": ("4.28", "exchange:pings"),
    "scalar-extra-key": ("4.30", "exchange:pings"),
    "scalar-range": ("4.31", "exchange:pings"),
    "scalar-float64": ("4.32", "exchange:pings"),
    "no-envs": ("5.12 6.4.3 6.4.7", "exchange:pings"),
    "needs-bool-bytes": ("4.23", "exchange:bools that are not 0 or 1"),
    "needs-plain-scalars": ("4.34", "spaces:keys that nobody knows"),
    "refuses-unread-images": ("6.2.12", "exchange:names that come and go"),
    "needs-few-channels": ("9.3.27", "spaces:an observation of many parts"),
    "requires-mask": ("6.5.23", "exchange:infos"),
    "ignores-start": (
        "6.4.12 9.1.7 9.3.13 9.5.6",
        "features:actions; features:actions that are not finite; spaces:a Discrete action",
    ),
    "no-frames": ("2.1", "exchange:pings"),
    "forbids-keyless": ("2.12", "exchange:keys, right and wrong"),
    "impatient-keepalive": ("2.15", "liveness:a client that does not feed back"),
    "no-version": ("12.1", "exchange:pings"),
    "version-2": ("12.1", "exchange:pings"),
    "dies-on-held-env": ("5.23", "exchange:an infer for an env that holds an action"),
    "dies-on-misfit": ("6.2.14 8.4", "errors:an observation that does not fit the policy"),
    "merges-rows": ("6.4.3 6.4.7 7.2", "scoping:infers at the same time"),
    "spoiled-by-departures": (
        "7.4 8.6",
        "scoping:a connection that breaks while others wait; scoping:clients that leave",
    ),
    "keeps-lost-envs": ("8.15", "scoping:clients that leave"),
    "no-patience": ("8.5", "errors:a peer that stays broken"),
    "dies-on-info": ("6.5.19 8.4 8.12", "errors:an info without an array"),
    "leaks-traceback": ("6.5.19 8.4 8.12 8.13", "errors:an info without an array"),
    "sticky-reuse": ("9.2.10", "reuse:some rows"),
    "no-metadata": ("5.3", "exchange:pings"),
    "metadata-twice": ("5.1 5.4", "exchange:pings"),
    "text-metadata": ("2.4 2.5", "exchange:pings"),
    "metadata-list": ("6.1.1", "exchange:pings"),
    "bad-features": ("6.1.4", "exchange:pings"),
    "nil-metadata": ("6.1.7", "exchange:pings"),
    "bad-utf8": ("3.10", "exchange:pings"),
    "sends-extension": ("3.11", "exchange:pings"),
    "sends-bin-key": ("3.4", "exchange:pings"),
    "compression": ("2.7", "exchange:an offer of compression"),
    "refuses-keys": ("2.13", "exchange:keys, right and wrong"),
    "env-major": ("6.4.7", "exchange:pings"),
    "no-env-ids": ("6.4.1", "exchange:pings"),
    "no-action": ("6.4.1", "exchange:pings"),
    "wrong-env-ids": ("6.4.3", "exchange:pings"),
    "float-env-ids": ("6.4.3", "exchange:pings"),
    "list-env-ids": ("6.4.3", "exchange:pings"),
    "sorted-order": ("6.4.3", "exchange:any set of envs"),
    "extra-row": ("6.4.3 6.4.7", "exchange:pings"),
    "wrong-horizon": ("6.1.8", "exchange:pings"),
    "empty-horizon": ("6.4.7", "exchange:pings"),
    "wrong-dim": ("6.1.9 6.4.10", "exchange:pings"),
    "non-finite": ("6.4.18", "exchange:pings"),
    "text-numbers": ("6.4.8", "exchange:pings"),
    "array-str-keys": ("4.2 4.36", "exchange:pings"),
    "array-msgpack-numpy": ("4.1", "exchange:pings"),
    "array-complex": ("4.14 4.19", "exchange:pings"),
    "array-bare-order": ("4.15", "exchange:pings"),
    "array-short": ("4.10", "exchange:pings"),
    "array-extra-key": ("4.1", "exchange:pings"),
    "text-action": ("2.4 2.5", "exchange:pings"),
    "action-twice": ("5.1 5.7", "exchange:pings"),
    "trailing-bytes": ("3.1", "exchange:pings"),
    "wrong-action-type": ("3.3", "exchange:pings"),
    "no-reply": ("5.7", "exchange:pings"),
    "replies-to-feedback": ("5.1 5.9 6.4.1", "exchange:pings"),
    "eval-random": ("9.3.11", "spaces:evaluation"),
    "max-size": ("2.8", "exchange:frames of several MiB"),
    "needs-array-order": ("4.4", "exchange:keys in another order"),
    "needs-little-endian": (
        "4.17 6.3.6 6.5.8",
        "exchange:every dtype; exchange:indices and*; exchange:rewards*",
    ),
    "needs-no-order": ("4.16", "exchange:every dtype"),
    "needs-dimensions": (
        "4.11 9.3.27",
        "exchange:arrays of no dimensions and of size 0; spaces:an observation of many parts",
    ),
    "needs-elements": (
        "4.12 9.2.4",
        "exchange:arrays of no dimensions and of size 0; reuse:all rows",
    ),
    "needs-characters": ("4.27", "exchange:every form of text"),
    "needs-key-order": ("3.7", "exchange:keys in another order"),
    "refuses-unknown-keys": ("3.9", "exchange:keys that nobody knows"),
    "needs-same-keys": ("6.2.13 9.2.4", "exchange:names that come and go; reuse:all rows"),
    "dies-on-new-key": ("6.2.13", "exchange:names that come and go"),
    "needs-same-count": ("5.19", "exchange:any set of envs"),
    "needs-known-envs": ("5.18", "exchange:any set of envs"),
    "needs-sorted-envs": ("5.18", "exchange:any set of envs"),
    "needs-dense-envs": ("5.18", "exchange:any set of envs"),
    "needs-state": (
        "6.2.9 9.2.4 9.3.27",
        "exchange:an observation of nothing; reuse:all rows; spaces:an image alone",
    ),
    "needs-float64": ("4.17 9.3.13", "exchange:every dtype"),
    "needs-text-array": (
        "6.2.8 9.2.4 9.2.9",
        "exchange:every form of text; reuse:all rows; reuse:texts that merge",
    ),
    "needs-int64": ("6.3.6", "exchange:indices and step ids of every integer type"),
    "reads-step-ids": ("6.3.7", "exchange:any step ids"),
    "needs-lockstep": (
        "5.24 6.5.26",
        "exchange:any set of envs; scoping:a connection after another",
    ),
    "needs-float32": ("6.5.8", "exchange:rewards of every float type"),
    "refuses-info": (
        "4.11 4.34 8.4",
        "exchange:arrays of no*; exchange:infos; exchange:typed*",
    ),
    "requires-info": ("6.5.20", "exchange:pings"),
    "needs-info-array": ("8.4", "exchange:infos"),
    "closes-on-nan": ("6.5.25", "exchange:feedback that is not finite"),
    "closes-on-stale": ("6.5.26", "scoping:a connection after another"),
    "shared-indices": (
        "5.16 8.4",
        "reuse:too few flags; scoping:two clients with the same indices",
    ),
    "requires-spaces": ("9.1.5", "exchange:pings"),
    "requires-reuse": ("9.1.5", "exchange:pings"),
    "requires-chunk-steps": ("9.1.5", "exchange:pings"),
    "requires-executed-actions": ("9.1.5", "exchange:pings"),
    "refuses-spaces": ("9.3.13", "exchange:pings"),
    "refuses-more-spaces": ("9.3.4", "spaces:keys that nobody knows"),
    "needs-reused-names": ("9.2.4", "reuse:all rows"),
    "refuses-reuse": (
        "9.1.7 9.2.4 9.2.9",
        "features:all at once; reuse:all rows; reuse:texts that merge",
    ),
    "refuses-chunk-steps": (
        "9.1.7 9.4.7",
        "features:step_rewards that are not finite; features:steps",
    ),
    "refuses-executed-actions": (
        "9.1.7 9.5.6",
        "features:actions; features:actions that are not finite",
    ),
    "refuses-two-features": ("9.1.7", "features:all at once"),
    "shared-reuse": ("8.4 8.38 9.2.7", "reuse:what another connection fed back"),
    "lenient-reuse": (
        "6.3.8 8.4 8.38 9.2.7 9.2.9",
        "reuse:a row that*; reuse:rows with different names; reuse:what another*",
    ),
    "accepts-misfit": (
        "6.4.10 6.4.11 6.4.14 9.3.13",
        "spaces:a Box of an odd size; spaces:a Discrete action; spaces:a MultiBinary action",
    ),
    "refusal-code": ("9.3.13", "spaces:a Discrete action"),
    "refusal-silent": ("8.17", "spaces:a Discrete action"),
    "refusal-one-sided": ("8.17", "spaces:a Discrete action"),
    "lenient": (
        "3.5 3.12 3.15 4.20 4.29 4.35 4.37 4.38 5.2 6.3.8 8.4 8.38 9.1.6 9.2.7 9.2.9 9.3.28",
        "errors; reuse; spaces",
    ),
    "crash-on-info": ("6.5.19 8.4 8.6 8.7", "errors:an info without an array"),
    "resync-code": ("8.4", "errors:dtype O"),
    "resync-reason": ("8.4", "errors:dtype O"),
    "resync-as-stop": ("8.2 8.4", "errors:dtype O"),
    "resync-as-refusal": ("8.4 8.18", "errors:a text frame"),
    "resync-abrupt": ("8.4", "errors:dtype O"),
    "complains-first": ("3.3 8.4", "errors:dtype O"),
    "closes-others": ("8.5 8.6", "errors:a peer that stays broken; errors:dtype O"),
    "stops-on-error": ("8.4 8.6 8.7", "reuse:before any feedback"),
    "stalls-on-silent": ("7.3", "exchange:pings"),
    "ignores-pings": ("2.14", "exchange:pings"),
    "no-feedback-timeout": ("8.8", "liveness:a client that does not feed back"),
    "timeout-reason": ("8.8", "liveness:a client that does not feed back"),
    "idle-timeout": ("2.15 8.11", "liveness:a client that does not feed back"),
    "plain-stop": ("8.1", "stop:until the run is over"),
    "stop-code": ("8.1", "stop:until the run is over"),
    "plain-stop-once": ("8.1", "stop:until the run is over"),
    "never-stops": ("", "exchange:pings"),
    "exit-code": ("", "exchange:pings"),
    "plain-shutdown": ("8.14", "shutdown:until the operator stops it"),
    "accepts-text": ("8.4", "errors:a text frame"),
    "accepts-undecodable": ("3.15 8.4", "errors:an empty frame"),
    "accepts-extension": ("3.12 8.4", "errors:a timestamp"),
    "accepts-odd-key": ("3.5 8.4", "errors:a key of type bin"),
    "accepts-msgpack-numpy": ("4.38 8.4", "errors:an array of msgpack-numpy"),
    "accepts-str-keys": ("4.37 8.4", "errors:an array with str keys"),
    "accepts-forbidden-dtype": ("4.20 4.35 8.4", "errors:a dtype that is a bin; errors:dtype O"),
    "accepts-short-data": ("4.35 8.4", "errors:too few bytes of data"),
    "accepts-bad-array": (
        "4.29 4.35 8.4",
        "errors:a surrogate as a character; errors:data that is a str",
    ),
    "accepts-wrong-message-type": ("5.2 8.4", "errors:metadata from a client"),
    "accepts-two-infers": ("5.2 8.4", "errors:a second infer"),
    "accepts-two-feedbacks": ("5.2 8.4", "errors:a feedback where an infer is due"),
    "accepts-missing-key": ("8.4", "errors:an infer without data"),
    "accepts-extra-key": ("8.4", "errors:feedback data with a key too many"),
    "accepts-wrong-type": ("8.4 9.1.6", "reuse:flags that are int"),
    "accepts-duplicate-index": ("8.4", "errors:an env named twice"),
    "accepts-negative-index": ("8.4", "errors:a negative index"),
    "accepts-empty-set": ("8.4", "errors:an infer for no env"),
    "accepts-row-mismatch": ("8.4 9.1.6", "reuse:too few flags"),
    "accepts-unsplittable-info": ("6.5.19 8.4", "errors:an info without an array"),
    "accepts-non-finite": ("6.3.8 8.4", "errors:NaN in an observation"),
    "accepts-reuse-without-feedback": ("8.4 8.38 9.2.7", "reuse:what another connection fed back"),
    "accepts-reuse-after-end": (
        "6.3.8 8.4 9.2.7",
        "reuse:a row that is not finite; reuse:an env whose episode ended",
    ),
    "accepts-reuse-mismatch": ("8.4 9.2.9", "reuse:rows with different names"),
    "accepts-bad-spaces": ("8.4 9.1.6", "spaces:an unknown mode"),
    "accepts-late-spaces": ("8.4 9.1.6", "spaces:a second declaration"),
    "accepts-other-layout": ("8.4 9.3.28", "spaces:a declared name that is absent"),
    "accepts-bad-chunk-steps": ("8.4 9.1.6", "features:no step at all"),
    "accepts-bad-executed-actions": ("8.4 9.1.6", "features:actions of no step"),
}

#: Bugs that break no clause, and what is said of them.
WITHOUT_CLAUSE: Final = {
    "never-stops": "a problem: the run did not end; when it should have, only its operator knows",
    "exit-code": "nothing: the exit status of a server is not on the wire",
}
_FEEDBACK_TIMEOUT: Final = 5.0
_SERVER_OPTIONS: Final[dict[str, Sequence[str]]] = dict.fromkeys(
    ("impatient-keepalive", "no-feedback-timeout", "timeout-reason", "idle-timeout"),
    ("--feedback-timeout", str(_FEEDBACK_TIMEOUT)),
)
_GRADER_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    **{bug: {"feedback_timeout": _FEEDBACK_TIMEOUT} for bug in _SERVER_OPTIONS},
    "dies-on-misfit": {"state_dim": 3},
    "forbids-keyless": {"api_key": "secret"},
    "never-stops": {"stop_timeout": 0.5},
    "plain-shutdown": {"until_stop": False, "until_shutdown": True},
}
#: These make the grader wait out its timeout, so that it had better be short.
_SILENT: Final = frozenset(
    {"no-metadata", "no-reply", "stalls-on-silent", "ignores-pings", "no-feedback-timeout"}
)


def grade_bug(bug: str | None, phases: str | Sequence[str] = "all") -> Report:
    """Grade the reference server with one of its bugs."""
    steps = "1000000" if bug == "plain-shutdown" else "1500"
    command = ["--steps", steps, *_SERVER_OPTIONS.get(bug or "", ())]
    if bug is not None:
        command += ["--bug", bug]
    with reference_server(*command) as (server, port):

        def shut_down(scenario: str) -> None:
            if bug == "plain-shutdown" and scenario.endswith("exchanging"):
                server.process.send_signal(signal.SIGTERM)

        options: dict[str, Any] = {
            "timeout": 5.0 if bug in _SILENT else 10.0,
            "until_stop": True,
            **_GRADER_OPTIONS.get(bug or "", {}),
        }
        url = f"ws://127.0.0.1:{port}"
        return grade_server(url, phases=phases, progress=shut_down, **options)
