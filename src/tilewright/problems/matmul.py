"""Matrix-product problems, and their notation `30x4096:4096x28672_n"name"`.

Shapes of the left operand, the right operand and, where it is not the usual one, the result, with `:` between them;
then `_n` and a name. The last two extents are the matrix, those before count matrices:

    8x1x30x64:8x12x64x5          left [8,1,30,64] times right [8,12,64,5] gives [8,12,30,5]

A batch extent of 1 is broadcast to match the other operand (both operands, to match the result).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.errors import ParseError, ProblemError
from tilewright.problems.notation import check_name, content, integers, name_text, read_name, read_number


@dataclass(frozen=True)
class MatmulProblem:
    """One matrix product, or a batch of them: src [..., m, k] times wei [..., k, n] gives dst [..., m, n].

    Left out, dst is what the two factors give.

    >>> problem = MatmulProblem((8, 1, 30, 64), (8, 12, 64, 5))
    >>> problem.dst, problem.m, problem.n, problem.k, problem.batch
    ((8, 12, 30, 5), 30, 5, 64, (8, 12))
    """

    src: tuple[int, ...]
    wei: tuple[int, ...]
    dst: tuple[int, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        for key in ("src", "wei", "dst"):
            shape = integers(getattr(self, key), key)
            object.__setattr__(self, key, shape)
            if len(shape) < 2 and (shape or key != "dst"):
                raise ProblemError(f"{key} is {_shape_text(shape)}; a matrix has at least two extents", key)
            if any(extent < 0 for extent in shape):
                raise ProblemError(f"{key} is {_shape_text(shape)}; no extent is below 0", key)
        if len(self.src) != len(self.wei):
            raise ProblemError(
                f"{_shape_text(self.src)} has {len(self.src)} extents and {_shape_text(self.wei)} has"
                f" {len(self.wei)}; fill up with batch extents of 1",
                "wei",
            )
        if self.src[-1] != self.wei[-2]:
            raise ProblemError(
                f"the left factor has {self.src[-1]} columns and the right factor {self.wei[-2]} rows; they are equal",
                "wei",
            )
        inferred = (*map(_broadcast, self.src[:-2], self.wei[:-2]), self.src[-2], self.wei[-1])
        dst = self.dst or inferred
        if len(dst) != len(inferred) or dst[-2:] != inferred[-2:]:
            raise ProblemError(f"the result is {_shape_text(inferred)}, not {_shape_text(dst)}", "dst")
        for axis, (left, right, result) in enumerate(zip(self.src[:-2], self.wei[:-2], dst[:-2], strict=True)):
            if left not in (1, result) or right not in (1, result):
                raise ProblemError(
                    f"batch extent {axis} is {left} on the left, {right} on the right and {result} in the result;"
                    " only 1 is repeated",
                    "dst" if self.dst else "wei",
                )
        object.__setattr__(self, "dst", dst)
        object.__setattr__(self, "name", check_name(self.name))

    @property
    def m(self) -> int:
        """Return M: the number of rows of the left operand and of the result."""
        return self.src[-2]

    @property
    def n(self) -> int:
        """Return N: the number of columns of the right operand and of the result."""
        return self.wei[-1]

    @property
    def k(self) -> int:
        """Return K, the number of products in each sum: the columns of the left operand, which are as many as the rows
        of the right one.
        """
        return self.src[-1]

    @property
    def batch(self) -> tuple[int, ...]:
        """Return the batch extents of the result, its shape without the last two; () for a single product."""
        return self.dst[:-2]

    @property
    def macs(self) -> int:
        """Return the number of multiply-adds of the matrix product: K for each element of the result."""
        return prod(self.dst) * self.k

    @property
    def ops(self) -> int:
        """Return the number of operations as benchmarks count them: two for each multiply-add.

        >>> parse_matmul("30x4096:4096x28672").ops
        7046430720
        """
        return 2 * self.macs

    def canonical(self) -> str:
        """Return the problem in oneDNN's notation, with the result's shape.

        >>> parse_matmul("30x64:64x5_nfirst").canonical()
        '30x64:64x5:30x5_n"first"'
        """
        shapes = ":".join(map(_shape_text, (self.src, self.wei, self.dst)))
        return shapes + name_text(self.name, "_n")

    def __str__(self) -> str:
        """The short form: the result's shape only where the factors do not give it."""
        is_inferred = self == MatmulProblem(self.src, self.wei, name=self.name)
        shapes = ":".join(map(_shape_text, (self.src, self.wei) if is_inferred else (self.src, self.wei, self.dst)))
        return shapes + name_text(self.name, "_n")


def parse_matmul(text: str) -> MatmulProblem:
    """Return the matrix product that `text` describes in oneDNN's notation.

    Printing and parsing are inverse: parse_matmul(str(P)) == P == parse_matmul(P.canonical()) for every problem P.
    Raise ParseError, which points at the position, for any other text.

    >>> parse_matmul('30x4096:4096x28672_n"llama"')
    MatmulProblem(src=(30, 4096), wei=(4096, 28672), dst=(30, 28672), name='llama')
    >>> parse_matmul("30x64:63x5")
    Traceback (most recent call last):
        ...
    tilewright.errors.ParseError: the left factor has 64 columns and the right factor 63 rows; they are equal
      30x64:63x5
            ^
    """
    position, end = content(text)
    shapes: list[tuple[int, ...]] = []
    positions: list[int] = []
    name = None
    while True:
        positions.append(position)
        shape, position = _read_shape(text, position)
        shapes.append(shape)
        if position == end or text[position] != ":":
            break
        if len(shapes) == 3:
            raise ParseError("expected the end, or _n and a name: there are at most three shapes", text, position)
        position += 1
    while position < end and text[position] == "_":
        position += 1
    if position < end:
        if text[position] != "n":
            raise ParseError(f"{text[position]!r} has no meaning here; expected x, :, or _n and a name", text, position)
        name = read_name(text, position + 1, end)
    if len(shapes) == 1:
        raise ParseError("the right factor is missing; write left:right", text, end)
    try:
        return MatmulProblem(shapes[0], shapes[1], shapes[2] if len(shapes) == 3 else (), name)
    except ProblemError as fault:
        position_of_error = dict(zip(("src", "wei", "dst"), positions, strict=False)).get(fault.key, end)
        raise ParseError(str(fault), text, position_of_error) from None


def _read_shape(text: str, position: int) -> tuple[tuple[int, ...], int]:
    """Return (shape, end) of the shape at `position` in `text`; `end` is the position after the shape.

    ("30x64:64x5", 0) -> ((30, 64), 5). Raise ParseError if there is no shape.
    """
    extent, position = read_number(text, position, "a shape, as in 30x64,")
    extents = [extent]
    while text[position : position + 1] == "x":
        extent, position = read_number(text, position + 1, "an extent")
        extents.append(extent)
    return tuple(extents), position


def _shape_text(shape: tuple[int, ...]) -> str:
    """Return the shape as text with x between its extents: (30, 64) -> "30x64". The empty shape gives "()"."""
    return "x".join(map(str, shape)) or "()"


def _broadcast(left_extent: int, right_extent: int) -> int:
    """Return the extent of the result along a batch axis: `left_extent`, or `right_extent` if `left_extent` is 1.

    It is not checked whether the two extents fit.
    """
    return right_extent if left_extent == 1 else left_extent
