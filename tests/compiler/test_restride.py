"""The same memory with other strides, in host programs: rows that overlap, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.errors import TilewrightError
from tilewright.ir.host import parse_host

TEXT = """
host windows(%x: in global f32 (4, 6), %y: out global f32 (4, 3, 4))
{
  %seen = restride %x global f32 (4, 3, 4):(6, 1, 1)
  launch copied(%seen, %y) workers 2
}

block copied(%x: in global f32 (4, 3, 4):(6, 1, 1), %y: out global f32 (4, 3, 4))
{
  tasks t in 0..4 {
    %from = view %x (i 3, j 4) -> [t, i, j]
    %to = view %y (i 3, j 4) -> [t, i, j]
    copy %from -> %to
  }
}
"""


def test_windows_of_a_row_are_seen_where_they_overlap() -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(4, 6), np.full((4, 3, 4), np.nan, np.float32)
    tilewright.compile_text(TEXT, "interpreter")(x, y)
    assert np.array_equal(y, np.lib.stride_tricks.sliding_window_view(x, 4, axis=1))


def test_its_text_is_read_back() -> None:
    text = str(parse_host(TEXT.partition("\nblock")[0]))
    assert str(parse_host(text)) == text


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("restride %x global f32 (4, 4, 4):(6, 1, 1)", "reaches 25 elements of 24"),
        ("restride %x global f32 (4, 3, 4)", "global memory with strides"),
        ("restride %x global f16 (4, 3, 4):(6, 1, 1)", "f32 is not seen as f16"),
        ("restride %x shared f32 (4, 3, 4):(6, 1, 1)", "global memory with strides"),
    ],
)
def test_what_it_cannot_give_is_refused(wrong: str, why: str) -> None:
    with pytest.raises(TilewrightError, match=why):
        tilewright.compile_text(TEXT.replace("restride %x global f32 (4, 3, 4):(6, 1, 1)", wrong), "interpreter")
