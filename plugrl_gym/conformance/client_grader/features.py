"""Optional features in a client's messages: only where offered, and then rightly (SPEC 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.conformance.client_grader.ledger import Held
from plugrl_gym.conformance.client_grader.messages import FeedbackSeen, describe
from plugrl_gym.conformance.client_grader.witness import Witness
from plugrl_gym.protocol.features import (
    CHUNK_STEPS,
    EXECUTED_ACTIONS,
    GYM_SPACES,
    REUSE_FEEDBACK_OBS,
)

__all__ = ["FEATURES", "see_chunk_steps", "see_executed_actions", "see_use", "used_features"]

Array = npt.NDArray[Any]

FEATURES: Final = (REUSE_FEEDBACK_OBS, GYM_SPACES, CHUNK_STEPS, EXECUTED_ACTIONS)

_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    "infer": {"reuse": REUSE_FEEDBACK_OBS, "spaces": GYM_SPACES},
    "feedback": {
        "steps": CHUNK_STEPS,
        "step_rewards": CHUNK_STEPS,
        "actions": EXECUTED_ACTIONS,
        "overridden": EXECUTED_ACTIONS,
    },
}


def used_features(message: Mapping[str, Any]) -> dict[str, str]:
    """Key -> feature, for the keys of features that a message carries."""
    keys = _KEYS.get(str(message["message_type"]), {})
    return {key: feature for key, feature in keys.items() if key in message}


def see_use(witness: Witness, message: Mapping[str, Any], offered: frozenset[str]) -> bool:
    """Check that only features are used that this connection's metadata lists (9.1.2)."""
    stray = [f"{key} ({f})" for key, f in used_features(message).items() if f not in offered]
    return witness.see("9.1.2", not stray, f"offered: {sorted(offered) or 'nothing'}", stray)


def see_chunk_steps(
    witness: Witness, feedback: FeedbackSeen, holding: Mapping[int, Held]
) -> list[int] | None:
    """Check ``steps`` and ``step_rewards``.

    Returns:
        The number of steps of each row; None if the message does not tell them.
    """
    message, rows = feedback.message, len(feedback.envs)
    both = "steps" in message and "step_rewards" in message
    if not witness.see("9.4.1", both, "steps and step_rewards", sorted(message)):
        return None
    value = message["steps"]
    ok = isinstance(value, np.ndarray) and value.dtype.str[1:] == "i8" and value.shape == (rows,)
    if not witness.see("9.4.2", ok, f"steps: int64 [{rows}]", describe(value)):
        return None
    steps: list[int] = value.tolist()
    for env, count in zip(feedback.envs, steps, strict=True):
        most = len(holding[env].chunk) if env in holding else count
        witness.see("9.4.2", 1 <= count <= most, f"env {env}: 1 to {most} steps", count)
    if min(steps) < 1:
        return None
    _see_step_rewards(witness, feedback, steps)
    return steps


def _see_step_rewards(witness: Witness, feedback: FeedbackSeen, steps: list[int]) -> None:
    value, shape = feedback.message["step_rewards"], (max(steps), len(steps))
    ok = isinstance(value, np.ndarray) and value.dtype.str[1:] == "f4" and value.shape == shape
    expected = f"step_rewards: float32 {list(shape)}"
    if not witness.see("9.4.3", ok, expected, describe(value)):
        return
    if not witness.see("9.4.6", bool(np.isfinite(value).all()), "finite numbers", value):
        return
    after = _after_last(value, steps)
    if not witness.see("9.4.4", not after, "zero after the last step of each row", after):
        return
    sums = value.astype(np.float64).sum(axis=0)
    size = np.abs(value.astype(np.float64)).sum(axis=0) + np.abs(feedback.rewards)
    sent = feedback.message["data"]["rewards"]
    rounding = max(np.finfo(sent.dtype).eps if sent.dtype.kind == "f" else 0.0, 2.0**-23)
    close = bool((np.abs(sums - feedback.rewards) <= 4 * rounding * size + 1e-12).all())
    witness.see("9.4.5", close, f"rewards {sums.tolist()[:8]}", feedback.rewards)


def _after_last(value: Array, steps: list[int]) -> str:
    """The first number that is not zero after its row's last step."""
    for row, count in enumerate(steps):
        rest = value[count:, row]
        if rest.any():
            return f"row {row} after {count} steps: {rest.ravel().tolist()[:8]}"
    return ""


def see_executed_actions(
    witness: Witness,
    feedback: FeedbackSeen,
    holding: Mapping[int, Held],
    steps: list[int] | None,
    probe: bool,
) -> None:
    """Check ``actions`` and ``overridden``.

    Args:
        witness: Gathers the verdicts.
        feedback: The message.
        holding: The chunks that the envs hold.
        steps: Steps run in each row, where known.
        probe: The envs run what they are sent: another action is a mistake of the message.
    """
    message, rows = feedback.message, len(feedback.envs)
    both = "actions" in message and "overridden" in message
    if not witness.see("9.5.1", both, "actions and overridden", sorted(message)):
        return
    flags = message["overridden"]
    ok = isinstance(flags, np.ndarray) and flags.dtype.kind == "b" and flags.shape == (rows,)
    witness.see("9.5.4", ok, f"overridden: bool [{rows}]", describe(flags))
    actions = message["actions"]
    chunks = [holding[env].chunk for env in feedback.envs if env in holding]
    if len(chunks) < rows or not _see_actions_shape(witness, actions, chunks, steps) or not ok:
        return
    if not witness.see("9.5.5", _finite(actions), "finite numbers", actions):
        return
    if steps is not None:
        after = _after_last(actions, steps)
        if not witness.see("9.5.3", not after, "zero after the last step of each row", after):
            return
    for row, chunk in enumerate(chunks):
        counts = [steps[row]] if steps is not None else range(1, len(actions) + 1)
        _see_row(witness, actions[:, row], chunk, counts, bool(flags[row]), probe)


def _see_actions_shape(
    witness: Witness, actions: object, chunks: list[Array], steps: list[int] | None
) -> bool:
    rows, da = len(chunks), chunks[0].shape[1:]
    longest = "K" if steps is None else max(steps)
    ok = isinstance(actions, np.ndarray) and actions.dtype.kind in "buif" and actions.ndim >= 2
    ok = ok and actions.shape[0] >= 1 and actions.shape[1] == rows  # type: ignore[attr-defined]
    ok = ok and (steps is None or len(actions) == longest)  # type: ignore[arg-type]
    # An action of one number may have been sent as [H, n, 1] or [H, n] (6.4.13).
    shapes = {da, ()} if da == (1,) else {da}
    ok = ok and actions.shape[2:] in shapes  # type: ignore[attr-defined]
    expected = f"actions: [{longest}, {rows}, {', '.join(map(str, da)) or 'no more'}]"
    return witness.see("9.5.2", ok, expected, describe(actions))


def _see_row(
    witness: Witness,
    executed: Array,
    chunk: Array,
    counts: range | list[int],
    overridden: bool,
    probe: bool,
) -> None:
    """Compare what a row executed with what it was sent, for each number of steps it may be."""
    same = any(
        _alike(executed[:count], chunk[:count]) and not executed[count:].any() for count in counts
    )
    expected = f"the chunk that was sent: {chunk[: counts[-1]].tolist()}"
    if probe:
        witness.see("9.5.2", same, expected, executed)
        expected = "overridden false: a probe env runs what it is sent"
        witness.see("9.5.4", not overridden, expected, overridden)
    else:
        witness.see("9.5.4", same != overridden, f"overridden {not same} ({expected})", overridden)


def _alike(executed: Array, chunk: Array) -> bool:
    """Equal in value, up to the conversion to the env's own dtype."""
    a = executed.reshape(len(executed), -1).astype(np.float64)
    b = chunk.reshape(len(chunk), -1).astype(np.float64)
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-6, atol=1e-7))


def _finite(value: Array) -> bool:
    return value.dtype.kind != "f" or bool(np.isfinite(value).all())
