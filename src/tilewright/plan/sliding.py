"""How operand A of a contraction is read along M: as a sliding window over an image, or with one stride."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.algebra.expr import ZERO, Const, Expr, Symbol
from tilewright.algebra.expr_use import linear_form
from tilewright.plan.contraction import Contraction, size


@dataclass(frozen=True)
class Slide:
    """One coordinate of a sliding window: `digit` (of M, such as an image line) + `step` * `tap` (filter) + `shift`."""

    digit: Symbol
    tap: Symbol | None
    shift: int
    step: int

    @property
    def reach(self) -> int:
        """The distance from the first filter tap to the last along this coordinate, in elements; 0 without a tap.

        It is (taps - 1) * dilation (`self.step`): 3 taps with dilation 2 give 4.
        """
        return 0 if self.tap is None else (size(self.tap) - 1) * self.step


@dataclass(frozen=True)
class Halo:
    """A sliding window over an image: its coordinate from line to line (`lines`), and along a line (`positions`).

    `pitch` is the number of positions (pixels) from one staged line to the next.
    """

    lines: Slide
    positions: Slide
    pitch: int


def lane_digit(contraction: Contraction) -> Symbol | None:
    """Return the digit that A, B and the result share, if A is contiguous along it; None if there is none.

    A digit is a mixed-radix part of a dimension, such as depthwise channels. Vectors can run along it. A's last
    coordinate must be the index of this digit alone.
    """
    last = contraction.a.coordinates[-1]
    return last if isinstance(last, Symbol) and last in contraction.batch else None


def stride_between_rows(contraction: Contraction) -> int | None:
    """Return the number of elements in memory between neighbouring rows of A; None if the stride is no single number.

    Rows are neighbours along the last digit (mixed-radix part) of M. Also store the result in the contraction, for
    later calls.
    """
    if "stride_between_rows" not in contraction.__dict__:  # asked for again and again
        contraction.__dict__["stride_between_rows"] = stride_along(
            contraction.rows[-1], contraction.a.coordinates, contraction.a.shape
        )
    stride: int | None = contraction.__dict__["stride_between_rows"]
    return stride


def stride_along(
    symbol: Symbol, at: Sequence[Expr], shape: Sequence[Any], strides: Sequence[int] | None = None
) -> int | None:
    """Return the number of elements in memory from one value of the index `symbol` to the next; None if it varies.

    `at` are the tensor's coordinates in terms of the index, `shape` its extents. Without `strides` the tensor is
    contiguous, with the last dimension innermost.

    >>> from tilewright.algebra.expr import index
    >>> p, c = index("p", 14), index("c", 64)
    >>> stride_along(p, (2 * p, c), (28, 64)), stride_along(p, (p // 2, c), (28, 64))
    (128, None)
    """
    total, stride = 0, 1
    for n in reversed(range(len(at))):
        form = linear_form(at[n], [symbol])
        step = None if form is None else form[0].get(symbol, ZERO)
        if not isinstance(step, Const) or not isinstance(stride, int):
            return None
        total += step.value * (stride if strides is None else strides[n])
        stride = stride * shape[n]
    return total


def halo_of(contraction: Contraction) -> Halo | None:
    """Return a Halo: how a contraction's operand A slides over lines and positions of an image; None if it does not.

    The last two digits (mixed-radix parts) of M must be the lines and the positions (pixels of a line). Also store the
    result in the contraction, for later calls.
    """
    if "halo" not in contraction.__dict__:  # asked for again and again
        contraction.__dict__["halo"] = _compute_halo(contraction)
    halo: Halo | None = contraction.__dict__["halo"]
    return halo


def _compute_halo(contraction: Contraction) -> Halo | None:
    """Return a Halo: how a contraction's operand A slides over lines and positions of an image; None if it does not.

    This is `halo_of` without its cache. Each of the last two digits (mixed-radix parts) of M must be in exactly one
    coordinate of A, with stride 1 and at most one filter tap. All filter taps must be in these two coordinates.
    """
    if len(contraction.rows) < 2:
        return None
    slides: dict[Symbol, Slide] = {}
    image_width = 0
    for e, n in zip(contraction.a.coordinates, contraction.a.shape, strict=True):
        for digit in (d for d in contraction.rows[-2:] if d in e.symbols):
            form = linear_form(e, e.symbols)
            if form is None or digit in slides or not isinstance(form[1], Const):
                return None
            steps = {s: int(f) for s, f in form[0].items()}
            taps = [s for s in steps if s is not digit]
            if steps[digit] != 1 or len(taps) > 1 or any(t not in contraction.depth[:-1] or steps[t] < 1 for t in taps):
                return None
            tap = taps[0] if taps else None
            slides[digit] = Slide(digit, tap, form[1].value, 1 if tap is None else steps[tap])
            image_width = n if digit is contraction.rows[-1] else image_width
    if set(slides) != set(contraction.rows[-2:]) or not set(contraction.depth[:-1]) <= {
        slide.tap for slide in slides.values()
    }:
        return None
    lines, positions = (slides[digit] for digit in contraction.rows[-2:])
    return Halo(lines, positions, _line_pitch(positions, image_width))


def _line_pitch(slide: Slide, image_width: int) -> int:
    """Return the number of positions (pixels) from the start of one staged image line to the start of the next.

    It is the length of the line plus the zeros between two lines. These serve as the right padding of one line and the
    left padding of the next: a line of 56 with 3 taps and padding 1 gives 57. `slide` is the coordinate along a line,
    `image_width` the tensor's extent along it.
    """
    window_width, left_padding = size(slide.digit) + slide.reach, max(0, -slide.shift)
    right_padding = max(0, window_width - left_padding - image_width)
    return max(size(slide.digit), window_width - min(left_padding, right_padding))


def can_load_in_place(contraction: Contraction, k_step: int) -> bool:
    """True if tile registers can load A in place, without staging, in K steps of `k_step` elements.

    M must be one digit (mixed-radix part). A must need no bounds checks and be contiguous along K's last digit, which
    must span A's innermost memory dimension and be whole K steps.
    """
    last = contraction.depth[-1]
    inner = contraction.a.coordinates[-1]
    return (
        len(contraction.rows) == 1
        and not contraction.a.conditions
        and inner is last
        and contraction.a.shape[-1] == size(last)
        and size(last) % k_step == 0
    )
