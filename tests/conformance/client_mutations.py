"""Which clauses each deliberate mistake of the test clients breaks, and in which runs it shows.

A bug of a client has a line here, and every check of the client grader is named in one: that is
the proof that the check can fail.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["CLIENT", "MUTATIONS", "Mutation"]

CLIENT: Final = Path(__file__).parents[1] / "clients" / "zoo_client.py"


@dataclass(frozen=True)
class Mutation:
    """One mistake under the grader.

    Attributes:
        bug: Its name in the client; empty where only the options make the difference.
        runs: Where it shows, as reports name them.
        clauses: What the report names, violations and notes.
        options: Of the client.
        probe: Whether it is graded as a probe client.
        problem: Whether the client also cannot be graded to the end.
        timeout: For the grader; short where the mistake is to do nothing.
        pace: What differs in the grader's pace, for a mistake that a busy machine could hide.
    """

    bug: str
    runs: tuple[str, ...]
    clauses: frozenset[str]
    options: tuple[str, ...] = ("--features", "all")
    probe: bool = True
    problem: bool = False
    timeout: float = 20.0
    pace: Mapping[str, float] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        """Starts the client."""
        bug = ("--bug", self.bug) if self.bug else ()
        return [sys.executable, str(CLIENT), "{host}", "{port}", *self.options, *bug]


def _table(text: str, **settings: Any) -> list[Mutation]:
    """Lines of: bug | runs, joined by commas | clauses."""
    rows = []
    for line in text.strip().splitlines():
        bug, runs, clauses = (part.strip() for part in line.split("|"))
        names = tuple(run.strip() for run in runs.split(","))
        rows.append(Mutation(bug, names, frozenset(clauses.split()), **settings))
    return rows


_CONNECTION: Final = _table(
    """
    offers-compression | basic/ | 2.6
    caps-size | basic/ | 2.8
    no-pong | slow | 2.14
    needs-metadata | basic/bare metadata | 12.2
    refuses-unknown-metadata | basic/ | 6.1.3
    any-metadata | errors/horizon-type, errors/features-type, errors/version | 6.1.5 12.3
    text-frames | basic/ | 2.4 2.5
    trailing-bytes | basic/ | 3.1
    bin-keys | basic/ | 3.2 3.4
    dies-on-resync | resync/ | 8.32
    dies-on-timeout | reconnect/feedback timeout | 8.34
    dies-on-shutdown | reconnect/shutdown | 8.34
    dies-on-loss | reconnect/lost | 8.34
    returns-after-stop | basic/ | 8.20
    stop-exit-code | basic/ | 8.19
    returns-after-refusal | reconnect/refused, reconnect/wrong key | 8.22 8.24
    refusal-exit-code | reconnect/refused, reconnect/wrong key | 8.21 8.23
    refusal-unsaid | reconnect/refused, reconnect/wrong key | 8.21 8.23
    answers-text | text/ | 8.25
    returns-after-text | text/ | 8.26
    text-exit-code | text/ | 8.27
    returns-after-error | errors/nan, errors/version | 8.31 12.4
    error-exit-code | errors/nan, errors/version | 12.3
    error-close-code | errors/nan | 8.28
    keeps-feedback | resync/ | 5.1 8.39 8.40 8.42
    keeps-chunks | resync/ | 5.21 8.40
    keeps-ended-episodes | resync/ | 8.44
    resets-on-close | resync/in place of an action | 8.43
    """
)

_RECEIVING: Final = _table(
    """
    reads-float32 | basic/ | 4.17 6.4.9
    reads-little-endian | basic/varied answers | 4.17 6.4.9
    refuses-integers | basic/varied answers | 4.17 6.4.9
    needs-env-ids | basic/varied answers | 6.4.5
    ignores-env-ids | errors/other-ids | 6.4.6 8.30
    accepts-nan | errors/nan, errors/infinity | 6.4.19 8.30
    accepts-other-shapes | errors/rows, errors/wide, errors/other-horizon | 6.4.15 8.30
    fixed-order | basic/ | 6.4.21
    env-major | basic/ | 6.4.21
    backwards | basic/ | 6.4.21
    repeats-first | basic/ | 6.4.21
    skips-first | basic/ | 6.4.21
    runs-past-horizon | basic/ | 6.4.23
    runs-past-end | basic/ | 6.4.24
    speaks-tcp | basic/ | 2.1
    breaks-framing | basic/ | 2.1
    own-keepalive | slow | 2.15
    asks-again | slow | 5.1 5.6 5.11
    loses-patience | slow | 7.5
    crashes | errors/undecodable | 3.15 8.28
    takes-other-keys | errors/bin-key | 3.5 8.30
    takes-extensions | errors/timestamp, errors/extension | 3.12 8.30
    takes-other-dtypes | errors/complex, errors/object | 4.20 8.30
    takes-short-arrays | errors/short-data, errors/extra-key | 4.35 8.30
    takes-str-keys | errors/str-keys | 4.37 8.30
    takes-msgpack-numpy | errors/msgpack-numpy | 4.38 8.30
    takes-any-greeting | errors/action-first | 5.2
    takes-any-text | errors/no-envelope | 8.28
    vague-errors | errors/str-keys, errors/no-envelope, errors/version | 4.39 12.3 13.1
    silent-errors | errors/nan | 8.29
    needs-order | basic/rich metadata, basic/varied answers | 3.7
    needs-known-keys | basic/rich metadata, basic/varied answers | 3.9
    needs-array-order | basic/varied answers | 4.4
    refuses-no-dimensions | basic/varied answers | 4.11
    refuses-zero-size | basic/varied answers | 4.12
    refuses-empty-text | basic/varied answers | 4.27
    refuses-byte-order | basic/varied answers | 4.16
    refuses-scalars | basic/bare metadata | 4.34
    reads-one-as-true | basic/varied answers | 4.23
    needs-server | basic/bare metadata | 6.1.2
    absent-is-zero | basic/bare metadata | 6.1.6
    needs-known-data | basic/varied answers | 6.4.2
    needs-int64-ids | basic/varied answers | 6.4.4
    needs-known-features | basic/rich metadata | 9.1.4
    refuses-combination | features/all | 9.1.7
    leaves-on-1011 | reconnect/internal error | 8.33
    """
)

_MESSAGES: Final = _table(
    """
    no-step-ids | basic/ | 6.3.1
    no-feedback-step-ids | basic/ | 6.5.1
    no-env-indices | basic/ | 6.3.1
    wrong-message-type | basic/ | 3.3
    float-indices | basic/ | 6.3.3
    list-indices | basic/ | 6.3.3 6.5.2
    negative-index | basic/ | 5.14
    duplicate-index | basic/ | 5.13
    empty-infer | basic/ | 5.12
    infers-held | basic/ | 5.22
    float-step-ids | basic/ | 6.3.4
    step-ids-run-on | basic/ | 6.3.5
    array-str-keys | basic/ | 4.2 4.36
    array-msgpack-numpy | basic/ | 4.1
    array-object | basic/ | 4.14 4.19
    array-short | basic/ | 4.10
    array-bare-order | basic/ | 4.15
    array-extra-key | basic/ | 4.1
    sends-extension | basic/ | 3.11
    text-bytes | basic/ | 6.2.5
    text-nil | basic/ | 6.2.5
    text-long | basic/ | 6.2.10
    no-images | basic/ | 6.2.1
    extra-observation-key | basic/ | 6.2.1
    float-images | basic/ | 6.2.2
    flat-states | basic/ | 6.2.3
    list-states | basic/ | 6.2.3
    extra-row | basic/ | 6.2.10
    nan-observation | basic/ | 6.2.15
    other-observation | basic/ | 5.25 10.4
    reset-observation | basic/ | 6.5.14
    never-resets | basic/ | 6.3.5 8.44
    """
)

_FEEDBACK: Final = _table(
    """
    last-reward | basic/ | 6.5.9
    mean-reward | basic/ | 6.5.9
    episode-reward | basic/ | 6.5.9
    nan-reward | basic/ | 6.5.24
    flag-early | basic/ | 6.5.12 10.7
    flag-late | basic/ | 6.5.12 10.7
    flag-never | basic/ | 6.5.12 10.7
    truncates | basic/ | 6.5.12 10.7 10.8
    feedback-twice | basic/ | 5.1 5.8
    no-feedback | basic/ | 5.1 5.8
    foreign-feedback | basic/ | 5.21
    no-terminated | basic/ | 6.5.5
    no-info | basic/ | 6.5.5
    extra-feedback-key | basic/ | 6.5.5
    integer-rewards | basic/ | 6.5.6
    list-rewards | basic/ | 6.5.6
    matrix-rewards | basic/ | 6.5.6
    long-rewards | basic/ | 6.5.6
    integer-flags | basic/ | 6.5.11
    list-info | basic/ | 6.5.16
    unsplittable-info | basic/ | 6.5.17 6.5.18
    bad-episode | basic/ | 6.5.21
    no-mask | basic/ | 6.5.22
    wrong-episode | basic/ | 6.5.21
    """
)

_SENDING: Final = _table(
    """
    other-order | basic/ | 3.6
    repeats-key | basic/ | 3.8
    not-utf8 | basic/ | 3.10
    nests | basic/ | 3.13
    array-order | basic/ | 4.3
    array-tag | basic/ | 4.5
    array-data | basic/ | 4.6
    array-dtype | basic/ | 4.7
    array-shape | basic/ | 4.8
    array-columns | basic/ | 4.9
    array-big-endian | basic/ | 4.18
    bool-bytes | basic/ | 4.22
    surrogates | basic/ | 4.28
    scalar-keys | basic/ | 4.30
    scalar-range | basic/ | 4.31
    scalar-float64 | basic/ | 4.32
    infer-twice | basic/ | 5.1 5.6
    sparse-indices | basic/ | 5.17 10.1
    env-1001 | basic/ | 5.17 10.1
    wide-index | basic/ | 5.14
    text-list | basic/ | 6.2.6
    infer-row | basic/ | 6.3.2
    feedback-row | basic/ | 6.5.13
    runs-nothing | basic/ | 6.4.22
    float-feedback-step-ids | basic/ | 6.5.3
    other-step-ids | basic/ | 6.5.4
    float64-rewards | basic/ | 6.5.7
    earlier-observation | basic/ | 6.5.13
    resets-late | basic/ | 6.5.15 8.44
    resets-often | basic/ | 5.25 8.37
    keeps-leftovers | resync/ | 8.41
    step-rewards-nan | features/ | 9.4.6
    executed-nan | features/ | 9.5.5
    executed-unpadded | features/ | 9.5.3
    spaces-unknown | spaces/ | 9.3.6
    spaces-dict-action | spaces/ | 6.4.20
    more-states | basic/ | 10.3
    float32-action | basic/ | 10.5
    float32-time | basic/ | 10.4
    asks-in-halves | basic/ | 5.25 10.4
    """
)

_FEATURES: Final = _table(
    """
    reuse-unoffered | basic/ | 9.1.2
    spaces-unoffered | basic/ | 9.1.2
    chunk-steps-unoffered | basic/ | 9.1.2
    executed-unoffered | basic/ | 9.1.2
    reuse-without-feedback | reuse | 9.2.5
    reuse-after-end | reuse | 9.2.6
    reuse-across-connections | reuse | 9.2.5
    reuse-sends-all | reuse | 9.2.3
    reuse-wrong-rows | reuse | 9.2.2
    reuse-list | reuse | 9.2.1
    spaces-always | spaces/ | 9.3.2
    spaces-late | spaces/ | 9.3.1 9.3.2
    spaces-incomplete | spaces/ | 9.3.3
    spaces-autoreset | spaces/ | 9.3.3
    spaces-bounds | spaces/ | 9.3.7
    spaces-names | spaces/ | 9.3.14
    steps-wrong | features/ | 9.4.2 9.4.3
    steps-zero | features/ | 9.4.2
    steps-alone | features/ | 9.4.1
    step-rewards-wrong | features/ | 9.4.5 10.6
    step-rewards-unpadded | features/ | 9.4.4
    step-rewards-env-major | features/ | 9.4.3
    executed-wrong | features/ | 9.5.2 9.5.3
    executed-env-major | features/ | 9.5.2
    executed-alone | features/ | 9.5.1
    overridden-wrong | features/ | 9.5.4
    """
)

_ZOO: Final = _table(
    """
    zoo-batched | spaces/ | 9.3.5
    zoo-nvec | spaces/ | 9.3.8
    zoo-name | spaces/ | 9.3.14
    zoo-escapes | spaces/ | 9.3.15
    zoo-tuple | spaces/ | 9.3.16
    zoo-image | spaces/ | 9.3.17
    zoo-gray | spaces/ | 9.3.18
    zoo-turned | spaces/ | 9.3.19
    zoo-unturned | spaces/ | 9.3.20
    zoo-stack | spaces/ | 9.3.21
    zoo-narrow | spaces/ | 9.3.22
    zoo-float64 | spaces/ | 9.3.23
    zoo-text | spaces/ | 9.3.24
    zoo-note | spaces/ | 9.3.25
    zoo-column | spaces | 6.4.13
    zoo-floats | spaces | 6.4.16
    zoo-fraction | spaces/, errors/fraction | 6.4.17 8.30
    """,
    probe=False,
    options=("--features", "all", "--zoo", "discrete"),
)

_OTHERS: Final = [
    # Of a probe client these break clauses of section 10 as well.
    *_table(
        """
        text-state | basic/ | 6.2.4
        numbered-states | basic/ | 3.4 6.2.11
        mixed-layout | reuse | 9.2.8
        """,
        probe=False,
    ),
    *_table(
        """
        says-hello | spaces/ | 9.3.26 10.3
        long-episodes | basic/ | 10.2
        spaces-batched | spaces/ |
        """
    ),
    *_table(
        """
        lingers-after-stop | basic/ | 8.19
        ignores-text | text/ | 8.25
        """,
        timeout=4.0,
    ),
    *_table(
        """
        leaves-abruptly | basic/ | 8.36
        leave-code | basic/ | 8.36
        """,
        options=("--max-steps", "30"),
        problem=True,
    ),
    # An early message ends the wait for one; a reconnect at once may still take its time.
    *_table("speaks-first | basic/ | 5.1 5.5", pace={"greeting": 3.0}),
    *_table("retries-at-once | resync/again and again | 8.35", pace={"hurry": 5.0}),
    *_table("| reuse, spaces/, features/ | 9.1.3", options=()),
    # What 8.33 allows: it gives up with the reason.
    *_table("dies-on-1011 | reconnect/internal error |"),
]

MUTATIONS: Final = (
    *_CONNECTION,
    *_RECEIVING,
    *_MESSAGES,
    *_FEEDBACK,
    *_SENDING,
    *_FEATURES,
    *_ZOO,
    *_OTHERS,
)
