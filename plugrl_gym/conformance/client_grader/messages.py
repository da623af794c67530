"""Infer and feedback against section 6 of SPEC.md, as far as one message alone can show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.conformance.client_grader.witness import Witness
from plugrl_gym.conformance.inspection import Broken

__all__ = [
    "FeedbackSeen",
    "InferSeen",
    "ObservationSeen",
    "describe",
    "read_feedback",
    "read_infer",
    "see_info",
]

Array = npt.NDArray[Any]

_PARTS: Final = ("images", "states", "text")
_DATA_KEYS: Final = ("obs", "rewards", "terminated", "truncated", "info")


@dataclass(frozen=True)
class ObservationSeen:
    """An observation that can be read.

    Attributes:
        images, states: Name -> array, as sent.
        text: One str for each row.
    """

    images: Mapping[str, Array]
    states: Mapping[str, Array]
    text: Sequence[str]

    def row(self, index: int) -> dict[str, Any]:
        """Part and name -> what this row holds."""
        rows: dict[str, Any] = {f"images.{n}": a[index] for n, a in self.images.items()}
        rows |= {f"states.{n}": a[index] for n, a in self.states.items()}
        return {**rows, "text": self.text[index]}

    def layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Part and name -> dtype and shape of a row."""
        parts = [("images", self.images), ("states", self.states)]
        return {
            f"{part}.{name}": (array.dtype.str, array.shape[1:])
            for part, arrays in parts
            for name, array in arrays.items()
        }


@dataclass(frozen=True)
class InferSeen:
    """An infer that can be answered.

    Attributes:
        envs, step_ids: One for each row.
        observation: The rows that are not reused.
        reuse: For each row whether it is; all false where the key is absent.
        message: The whole of it.
    """

    envs: list[int]
    step_ids: list[int]
    observation: ObservationSeen
    reuse: list[bool]
    message: dict[str, Any]


@dataclass(frozen=True)
class FeedbackSeen:
    """A feedback whose rows can be told apart.

    Attributes:
        envs, step_ids: One for each row.
        observation: m rows.
        rewards: float64 [m].
        terminated, truncated: One for each row.
        message: The whole of it.
    """

    envs: list[int]
    step_ids: list[int]
    observation: ObservationSeen
    rewards: npt.NDArray[np.float64]
    terminated: list[bool]
    truncated: list[bool]
    message: dict[str, Any]

    def ended(self, row: int) -> bool:
        """Whether the row's episode is over."""
        return self.terminated[row] or self.truncated[row]


def describe(value: object) -> str:
    """What stands in a place of a message, in a few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str} {list(value.shape)}"
    if isinstance(value, dict):
        return f"a map with the keys {', '.join(list(value)[:8]) or '(none)'}"
    if isinstance(value, list):
        return f"a msgpack array of {len(value)}"
    return str(value) if isinstance(value, Broken) else f"{type(value).__name__} {value!r:.60}"


def read_infer(witness: Witness, message: dict[str, Any]) -> InferSeen | None:
    """Check an infer; None if it cannot be answered."""
    missing = [key for key in ("data", "env_indices", "step_ids") if key not in message]
    if not witness.see("6.3.1", not missing, "data, env_indices, step_ids", message):
        return None
    envs = _integers(witness, "6.3.3", message["env_indices"], None)
    if envs is None or not _check_envs(witness, envs):
        return None
    step_ids = _integers(witness, "6.3.4", message["step_ids"], len(envs))
    reuse = [False] * len(envs)
    if "reuse" in message:
        flags = message["reuse"]
        ok = isinstance(flags, np.ndarray) and flags.dtype.kind == "b" and flags.ndim == 1
        ok = ok and len(flags) == len(envs)
        if not witness.see("9.2.1", ok, f"bool [{len(envs)}]", describe(flags)):
            return None
        reuse = flags.tolist()
    rows = reuse.count(False)
    clause = "6.3.2" if "reuse" not in message else "9.2.2" if rows else "9.2.3"
    observation = _observation(witness, message["data"], "infer.data", rows, clause)
    if observation is None or step_ids is None:
        return None
    return InferSeen(envs, step_ids, observation, reuse, message)


def read_feedback(witness: Witness, message: dict[str, Any]) -> FeedbackSeen | None:
    """Check a feedback; None if its rows cannot be told apart."""
    missing = [key for key in ("env_indices", "step_ids", "data") if key not in message]
    if not witness.see("6.5.1", not missing, "env_indices, step_ids, data", message):
        return None
    envs = _integers(witness, "6.5.2", message["env_indices"], None)
    if envs is None or not _check_envs(witness, envs):
        return None
    step_ids = _integers(witness, "6.5.3", message["step_ids"], len(envs))
    data = message["data"]
    exact = isinstance(data, dict) and sorted(data) == sorted(_DATA_KEYS)
    witness.see("6.5.5", exact, f"exactly {', '.join(_DATA_KEYS)}", describe(data))
    if not isinstance(data, dict) or set(_DATA_KEYS) - set(data):
        return None
    observation = _observation(witness, data["obs"], "feedback.data.obs", len(envs), "6.5.13")
    rewards = _rewards(witness, data["rewards"], len(envs))
    terminated, truncated = (_flags(witness, data, k, len(envs)) for k in _DATA_KEYS[2:4])
    if step_ids is None or observation is None or rewards is None:
        return None
    if terminated is None or truncated is None:
        return None
    return FeedbackSeen(envs, step_ids, observation, rewards, terminated, truncated, message)


# ---------------------------------------------------------------- indices


def _integers(witness: Witness, clause: str, value: object, rows: int | None) -> list[int] | None:
    """An integer vector's values; anything that plainly holds integers is read."""
    expected = f"int64 [{'n' if rows is None else rows}]"
    exact = isinstance(value, np.ndarray) and value.dtype.str[1:] == "i8" and value.ndim == 1
    exact = exact and (rows is None or len(value) == rows)  # type: ignore[arg-type]
    # A number that no int64 holds is judged by 5.14, not by the type that holds it.
    wide = isinstance(value, np.ndarray) and value.dtype.str[1:] == "u8" and clause in _INDICES
    wide = wide and value.size > 0 and int(value.max()) > 2**63 - 1  # type: ignore[attr-defined]
    if not wide:
        witness.see(clause, exact, expected, describe(value))
    items = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(items, list) or not all(type(item) is int for item in items):
        return None
    return items if rows is None or len(items) == rows else None


_INDICES: Final = ("6.3.3", "6.5.2")


def _check_envs(witness: Witness, envs: list[int]) -> bool:
    if not witness.see("5.12", bool(envs), "at least one env", "none"):
        return False
    unique = witness.see("5.13", len(set(envs)) == len(envs), "each env once", envs)
    odd = [env for env in envs if not 0 <= env < 2**63]
    return witness.see("5.14", not odd, "0 to 2^63 - 1", odd[:8]) and unique


# ---------------------------------------------------------------- observations


def _observation(
    witness: Witness, value: object, where: str, rows: int, rows_clause: str
) -> ObservationSeen | None:
    """Check an observation of ``rows`` rows; another number is a breach of ``rows_clause``."""
    exact = isinstance(value, dict) and sorted(value) == sorted(_PARTS)
    witness.see("6.2.1", exact, f"{where}: exactly images, states, text", describe(value))
    if not isinstance(value, dict) or set(_PARTS) - set(value):
        return None
    images, states = value["images"], value["states"]
    image_ok = isinstance(images, dict) and all(_is_image(array) for array in images.values())
    witness.see("6.2.2", image_ok, f"{where}.images: uint8 [n, h, w, c]", _first_odd(images))
    two = isinstance(states, dict) and all(
        isinstance(array, np.ndarray) and array.ndim == 2 for array in states.values()
    )
    witness.see("6.2.3", two, f"{where}.states: arrays [n, d]", _first_odd(states))
    text = _text(witness, value["text"], where)
    if not (two and image_ok) or text is None:
        return None
    _check_numbers(witness, states, where)
    sizes = {f"{p}.{n}": len(a) for p in _PARTS[:2] for n, a in value[p].items()}
    sizes["text"] = len(text)
    alike = witness.see(
        "6.2.10", len(set(sizes.values())) == 1, f"{where}: {rows} rows in each", sizes
    )
    if not alike:
        return None
    count = len(text)
    if not witness.see(rows_clause, count == rows, f"{where}: {rows} rows", f"{count} rows"):
        return None
    return ObservationSeen(images, states, text)


def _is_image(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.str[1:] == "u1" and array.ndim == 4


def _first_odd(part: object) -> str:
    if not isinstance(part, dict):
        return describe(part)
    return ", ".join(f"{name}: {describe(array)}" for name, array in list(part.items())[:4])


def _check_numbers(witness: Witness, states: dict[str, Array], where: str) -> None:
    odd = [f"{name}: {array.dtype.str}" for name, array in states.items() if _kind(array) == "U"]
    witness.see("6.2.4", not odd, f"{where}.states: kind b, u, i or f", odd)
    bad = [
        f"{name} holds {array[~np.isfinite(array)][0]}"
        for name, array in states.items()
        if _kind(array) == "f" and not np.isfinite(array).all()
    ]
    witness.see("6.2.15", not bad, f"{where}: finite numbers", bad)


def _kind(array: Array) -> str:
    return array.dtype.kind


def _text(witness: Witness, value: object, where: str) -> list[str] | None:
    if isinstance(value, np.ndarray):
        ok = value.dtype.kind == "U" and value.ndim == 1
        witness.see("6.2.5", ok, f"{where}.text: U [n]", describe(value))
        witness.see("6.2.6", True)
        return [str(line) for line in value.tolist()] if ok else None
    ok = isinstance(value, list) and all(isinstance(line, str) for line in value)
    witness.see("6.2.5", ok, f"{where}.text: U [n] or [str, ...]", describe(value))
    if not ok or not isinstance(value, list):
        return None
    ends_in_nul = any(line.endswith("\0") for line in value)
    witness.see("6.2.6", ends_in_nul, f"{where}.text: a U array", "a msgpack array of str")
    return value


# ---------------------------------------------------------------- a feedback's data


def _rewards(witness: Witness, value: object, rows: int) -> npt.NDArray[np.float64] | None:
    ok = isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.shape == (rows,)
    witness.see("6.5.6", ok, f"rewards: float [{rows}]", describe(value))
    if not isinstance(value, np.ndarray) or value.shape != (rows,) or value.dtype.kind not in "iuf":
        return None
    if ok:
        witness.see("6.5.7", value.dtype.itemsize == 4, "float32", value.dtype.name)
        finite = bool(np.isfinite(value).all())
        witness.see("6.5.24", finite, "finite rewards", value)
    with np.errstate(all="ignore"):
        return value.astype(np.float64)


def _flags(witness: Witness, data: dict[str, Any], key: str, rows: int) -> list[bool] | None:
    value = data[key]
    ok = isinstance(value, np.ndarray) and value.dtype.kind == "b" and value.shape == (rows,)
    witness.see("6.5.11", ok, f"{key}: bool [{rows}]", describe(value))
    if not isinstance(value, np.ndarray) or value.shape != (rows,) or value.dtype.kind == "U":
        return None
    return [bool(flag) for flag in value.tolist()]


def see_info(witness: Witness, seen: FeedbackSeen, ended: list[bool | None]) -> None:
    """Check ``info``; ``ended`` tells which rows are finished episodes, None where in doubt."""
    info = seen.message["data"]["info"]
    if not witness.see("6.5.16", isinstance(info, dict), "info: a map", describe(info)):
        return
    assert isinstance(info, dict)
    rows = len(seen.envs)
    first = next(_arrays(info), None)
    splits = first is not None and first.ndim >= 1 and len(first) == rows
    if info and rows > 1:
        expected = f"info: a first array with the leading dimension {rows}"
        witness.see("6.5.17", splits, expected, describe(info if first is None else first))
    elif info and first is not None:
        witness.see("6.5.18", splits, "info: the leading dimension 1", describe(first))
    if "episode" in info:
        _check_episode(witness, info["episode"], ended)


def _arrays(info: dict[str, Any]) -> Iterator[Array]:
    """The arrays in wire order, looking one level deep (SPEC 6.5.17)."""
    for value in info.values():
        for item in value.values() if isinstance(value, dict) else (value,):
            if isinstance(item, np.ndarray):
                yield item


def _check_episode(witness: Witness, episode: object, ended: list[bool | None]) -> None:
    rows = len(ended)
    value = episode if isinstance(episode, dict) else {}
    kinds = {"r": "f", "l": "iu", "s": "b"}
    odd = [key for key, kind in kinds.items() if not _is_vector(value.get(key), kind, rows)]
    expected = f"info.episode: r float [{rows}], l int [{rows}], s bool [{rows}]"
    if not witness.see("6.5.21", not odd, expected, describe_entries(episode)):
        return
    mask = value.get("mask")
    if mask is None:
        needless = False not in ended
        witness.see("6.5.22", needless, "a mask: not all rows are finished episodes", value)
        return
    ok = _is_vector(mask, "b", rows)
    ok = ok and all(e is None or e == m for e, m in zip(ended, mask.tolist(), strict=True))
    ok = ok and not any(value[key][~mask].any() for key in kinds)
    witness.see("6.5.22", ok, f"mask {ended}, zeros in the other rows", value)


def describe_entries(value: object) -> str:
    """The entries of a map with their types, or what there is instead."""
    return _first_odd(value)


def _is_vector(value: object, kinds: str, rows: int) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in kinds and value.shape == (rows,)
