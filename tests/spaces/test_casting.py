"""Which numbers another dtype cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugrl_gym.spaces.casting import LARGEST, lost, too_large
from tests.support.fuzzing import fuzz
from tests.support.spaces import FLOATS, INTEGERS

CASES: list[tuple[Any, str, str, list[bool] | None]] = [
    ([0, 255, 256, -1], "i8", "u1", [False, False, True, True]),
    ([0, 2**63, 2**64 - 1], "u8", "i8", [False, True, True]),
    ([-1, 0, 2**63 - 1], "i8", "u8", [True, False, False]),
    ([0.0, 0.5, -1.0, np.nan, np.inf], "f8", "i8", [False, True, False, True, True]),
    ([2.0**63, -(2.0**63), 2.0**63 - 1024], "f8", "i8", [True, False, False]),
    ([2.0**64, 2.0**63, -1.0], "f4", "u8", [True, False, True]),
    ([65504.0, 0.5, np.nan, np.inf], "f2", "i8", [False, True, True, True]),
    ([65504.0, -1.0], "f2", "u8", [False, True]),
    ([0, 1, 2, -1], "i8", "?", [False, False, True, True]),
    ([0.0, 1.0, 0.5, np.nan], "f8", "?", [False, False, True, True]),
    ([1e300, 1e38, 0.1, np.nan, np.inf], "f8", "f4", [True, False, False, False, False]),
    ([65504, 65520, 10**6], "i8", "f2", [False, True, True]),
    ([True, False], "?", "i1", None),
    ([1, 2], "i4", "i8", None),
    ([1, 2], "i8", "f8", None),
    ([1.5, np.nan], "f4", "f8", None),
    ([1.5], ">f8", "<f8", None),
]


@pytest.mark.parametrize(("values", "source", "target", "expected"), CASES)
def test_lost_names_the_numbers(
    values: Any, source: str, target: str, expected: list[bool] | None
) -> None:
    found = lost(np.array(values, dtype=source), np.dtype(target))
    assert (None if found is None else found.tolist()) == expected


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.floats() | st.integers(-300, 300), max_size=5),
    st.sampled_from([*FLOATS, *INTEGERS, "bool"]),
    st.sampled_from([*FLOATS, *INTEGERS, "bool"]),
)
@fuzz(300)
def test_what_is_not_lost_survives_the_cast(values: Any, source: str, target: str) -> None:
    with np.errstate(all="ignore"):
        array = np.array(values, dtype=np.float64).astype(source)
    bad = lost(array, np.dtype(target))
    kept = array if bad is None else array[~bad]
    cast = kept.astype(target)  # a warning here would be an error
    for before, after in zip(kept.tolist(), cast.tolist(), strict=True):
        if np.dtype(target).kind == "f":
            assert after == pytest.approx(float(before), rel=1e-3, abs=1e-7, nan_ok=True)
        else:
            assert after == before


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_number_whose_square_float32_cannot_hold_is_too_large(dtype: Any) -> None:
    numbers = np.array([0.0, -1.8e19, 1.9e19, -3e38], dtype)
    assert too_large(numbers).tolist() == [False, False, True, True]
    with np.errstate(over="ignore"):
        assert (
            np.isinf(np.square(numbers.astype(np.float32))).tolist() == too_large(numbers).tolist()
        )
    assert np.isfinite(np.square(np.float32(LARGEST * 0.999)))


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float16])
def test_no_small_number_is_too_large(dtype: Any) -> None:
    assert not too_large(np.ones((2, 3), dtype)).any()
