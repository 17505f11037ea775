"""Types of the block level: tensors in memory, tensors distributed over registers, channels between roles.

A memory tensor is a space, an element type, a shape and, where it is allocated or passed in, strides and perhaps a
swizzle. A tensor without strides is packed, last dimension fastest, or it is a view, whose offsets follow from the
operation that makes it. A register tensor is distributed over threads by a `Distribution`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.algebra import Layout, Swizzle, parse_layout
from tilewright.algebra.expr import Const, Expr, as_expr
from tilewright.errors import LayoutError, ParseError, ProgramError
from tilewright.ir.dtypes import DType, dtype
from tilewright.limits import ELEMENTS, RANK, REGISTERS, WAVES, Limit, shown

if TYPE_CHECKING:
    from tilewright.ir.parser import Reader

SPACES = ("global", "shared")
Images = Callable[[Expr], Expr]


def packed(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return the strides, in elements, of a row-major tensor of this shape: the last dimension is contiguous.

    >>> packed((as_expr(2), as_expr(3), as_expr(4)))
    (<12>, <4>, <1>)
    """
    strides: list[Expr] = []
    running: Expr = as_expr(1)
    for size in reversed(shape):
        strides.append(running)
        running = running * size
    return tuple(reversed(strides))


def numbers(exprs: Iterable[Expr], what: object) -> tuple[int, ...]:
    """Return the values of the constant expressions `exprs` as a tuple of ints.

    Raise ProgramError if one is not constant; `what` is the object that they belong to, shown in the message.
    """
    values = []
    for e in exprs:
        if not isinstance(e, Const):
            raise ProgramError(f"{what}: {e} is not a number; bind its parameters first")
        values.append(e.value)
    return tuple(values)


def require_extents(kind: Any, shape: tuple[Expr, ...], strides: tuple[Expr, ...], most: Limit = ELEMENTS) -> None:
    """Raise ProgramError if a tensor type has a negative extent, too many dimensions or elements, or too large a
    stride.

    `kind` is the type, shown in the message; `shape` and `strides` belong to it. `most` is a limit on the number of
    elements, besides the limit for all tensors. Symbolic extents and strides are not checked.
    """
    count = 1
    if RANK.refuses(len(shape)):
        raise ProgramError(f"{len(shape)} dimensions: {RANK.rule}")
    for e in shape:
        if isinstance(e, Const):
            if e.value < 0:
                raise ProgramError(f"{kind}: the extent {shown(e.value)} is negative; extents are from 0 on")
            count *= max(e.value, 1)
        if ELEMENTS.refuses(count) or most.refuses(count):
            raise ProgramError(f"{shown(str(kind), 80)}: {(most if most.refuses(count) else ELEMENTS).rule}")
    for e in strides:
        if isinstance(e, Const) and ELEMENTS.refuses(abs(e.value)):
            raise ProgramError(f"{shown(str(kind), 80)}: the stride {shown(e.value)}: {ELEMENTS.rule}")


@dataclass(frozen=True)
class TensorType:
    """A tensor in memory: space, element type, shape, strides (None: packed or a view), swizzle.

    `role` says what a program may do with an argument: "in" is only read, "out" is written completely, "inout" is both
    read and written, "scratch" is a workspace that is read only where the program wrote it. `role` is None for
    allocated memory.
    """

    space: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...] | None = None
    swizzle: Swizzle | None = None
    role: str | None = None

    def __post_init__(self) -> None:
        require_extents(self, self.shape, self.strides or ())

    def expressions(self) -> Iterable[Expr]:
        """Return every expression in the type: its extents, then its strides if it has any."""
        return (*self.shape, *(self.strides or ()))

    def mapped(self, images: Images) -> TensorType:
        """Return the type with every extent and stride `e` replaced by `images(e)`."""
        strides = None if self.strides is None else tuple(map(images, self.strides))
        return TensorType(self.space, self.dtype, tuple(map(images, self.shape)), strides, self.swizzle, self.role)

    @property
    def steps(self) -> tuple[Expr, ...]:
        """The stride of each dimension, in elements. Without strides, the last dimension is contiguous."""
        return packed(self.shape) if self.strides is None else self.strides

    def cosize(self) -> int:
        """Return the number of elements of memory from offset 0 to the tensor's largest offset, as an int.

        An empty tensor gives 0. A negative stride counts as 0. With a swizzle, the number is rounded up to the
        swizzle's period. Raise ProgramError if an extent or stride is not constant.
        """
        shape, steps = numbers(self.shape, self), numbers(self.steps, self)
        if 0 in shape:
            return 0
        last = sum((n - 1) * max(s, 0) for n, s in zip(shape, steps, strict=True))
        if self.swizzle is not None:  # a swizzle permutes within blocks of its period
            period = self.swizzle.size()
            return -(-(last + 1) // period) * period
        return last + 1

    def room(self) -> Expr:
        """Return the number of elements of memory that the tensor spans, as an expression; extents may be symbolic.

        With a swizzle, the number is rounded up to the swizzle's period. Raise ProgramError if the type is symbolic and
        has strides, and an extent may be 0 or a stride may be negative.

        >>> from tilewright.algebra.expr import symbol
        >>> from tilewright.ir.dtypes import f32
        >>> m = symbol("M", 1, 99)
        >>> print(TensorType("global", f32, (m, as_expr(4))).room())
        4*M
        """
        if all(isinstance(e, Const) for e in self.expressions()):
            return as_expr(self.cosize())
        last: Expr = as_expr(1)
        if self.strides is None:
            for n in self.shape:
                last = last * n
        else:
            for n, s in zip(self.shape, self.strides, strict=True):
                if n.lo < 1 or s.lo < 0:
                    raise ProgramError(
                        f"{self}: with strides of its own, a tensor has sizes from 1 on and strides from 0 on"
                    )
                last = last + (n - 1) * s
        if self.swizzle is None:
            return last
        period = self.swizzle.size()
        return (last + period - 1) // period * period

    def __str__(self) -> str:
        text = f"{self.space} {self.dtype} ({', '.join(map(str, self.shape))})"
        if self.strides is not None:
            text += f":({', '.join(map(str, self.strides))})"
        if self.swizzle is not None:
            text += f" swizzle <{self.swizzle.bits},{self.swizzle.base},{self.swizzle.shift}>"
        return text if self.role is None else f"{self.role} {text}"

    __repr__ = __str__


@dataclass(frozen=True)
class Distribution:
    """How a register tensor is distributed: which thread holds which element as which of its values.

    Either `layout` maps (thread, value) to an element, where element (i, j) of a shape (I, J) is i + I*j; or `operand`
    names an operand of a multiplication atom (`matrix.m64n128k16.bf16.c`), repeated over the shape and over `waves`
    (rows, columns) of threads. Names in braces stand for parameters, or for lets of the header, in both. Until all of
    them are numbers, a layout is a text: `by ((4,8,{W}),2):((0,1,16),8)`.
    """

    layout: Layout | str | None = None
    operand: str | None = None
    waves: tuple[Expr, ...] | None = None

    def mapped(self, images: Images) -> Distribution:
        """Return the distribution with every expression `e`, and every {name} in its texts, replaced by `images(e)`.

        A {name} whose image is not a constant stays. A layout text without any {name} left is parsed to a `Layout`.
        """
        from tilewright.ir.attrs import KINDS

        operand = None if self.operand is None else KINDS["dotted"].mapped(self.operand, images)
        layout: Any = self.layout
        if isinstance(layout, str):
            text = KINDS["dotted"].mapped(layout, images)
            layout = text if "{" in text else parse_layout(text)
        return Distribution(layout, operand, None if self.waves is None else tuple(map(images, self.waves)))

    def __str__(self) -> str:
        if self.layout is not None:
            return f"by {self.layout}"
        waves = "" if self.waves is None else f" waves ({', '.join(map(str, self.waves))})"
        return f"as {self.operand}{waves}"


@dataclass(frozen=True)
class RegisterType:
    """A tensor distributed over the registers of threads.

    `distribution` is None for a view of a register tensor; its distribution follows from the operation that makes it.
    """

    dtype: DType
    shape: tuple[Expr, ...]
    distribution: Distribution | None = None

    def __post_init__(self) -> None:
        require_extents(self, self.shape, (), REGISTERS)
        for e in (self.distribution and self.distribution.waves) or ():
            if isinstance(e, Const) and not 1 <= e.value <= WAVES.most:
                raise ProgramError(f"{self}: waves are at least 1; {WAVES.rule}")

    def expressions(self) -> Iterable[Expr]:
        """Return every expression in the type: its extents, then the wave counts of its distribution if it has any."""
        waves = () if self.distribution is None else self.distribution.waves or ()
        return (*self.shape, *waves)

    def mapped(self, images: Images) -> RegisterType:
        """Return the type with every expression `e` in its shape and its distribution replaced by `images(e)`."""
        distribution = None if self.distribution is None else self.distribution.mapped(images)
        return RegisterType(self.dtype, tuple(map(images, self.shape)), distribution)

    def __str__(self) -> str:
        text = f"register {self.dtype} ({', '.join(map(str, self.shape))})"
        return text if self.distribution is None else f"{text} {self.distribution}"

    __repr__ = __str__


@dataclass(frozen=True)
class ChannelType:
    """A channel: a ring of `count` stages that one role fills and another reads; `stages` are the tensors of each
    stage.
    """

    stages: tuple[TensorType, ...]
    count: Expr

    def expressions(self) -> Iterable[Expr]:
        """Return every expression in the type: the number of stages, then extents and strides of the tensors of a
        stage.
        """
        return (self.count, *(e for s in self.stages for e in s.expressions()))

    def mapped(self, images: Images) -> ChannelType:
        """Return the type with every expression `e` replaced by `images(e)`: number of stages, extents and strides."""
        return ChannelType(tuple(s.mapped(images) for s in self.stages), images(self.count))

    def __str__(self) -> str:
        return f"channel of {self.count} x ({', '.join(map(str, self.stages))})"


# -- from text --------------------------------------------------------------------------------------------


def read_type(reader: Reader) -> Any:
    """Parse a tensor type in memory or registers from `reader`, such as `in global f32 (M, 64):(64, 1)`, and return it.

    Raise ParseError if it is not valid.
    """
    reader.skip()
    start = reader.at
    word = reader.word("a type")
    role = None
    if word in ("in", "out", "inout", "scratch"):
        role, word = word, reader.word("a space")
    if word != "register" and word not in SPACES:
        raise reader.fail(f"expected a space: {', '.join((*SPACES, 'register'))}", start)
    start = reader.at
    try:
        element = dtype(reader.word("an element type"))
    except ProgramError as fault:
        raise reader.fail(str(fault), start) from None
    shape = _read_exprs(reader)
    if word == "register":
        distribution = _read_distribution(reader)
        return parsed(reader, start, lambda: RegisterType(element, shape, distribution))
    strides = _read_exprs(reader) if reader.accept(":") else None
    if strides is not None and len(strides) != len(shape):
        raise reader.fail(f"{len(strides)} strides for {len(shape)} dimensions", start)
    swizzle = None
    if reader.peek_word() == "swizzle":
        reader.word()
        at = reader.at
        match = reader.match(re.compile(r"<\s*(\d+)\s*,\s*(\d+)\s*,\s*(-?\d+)\s*>"), "a swizzle such as <3,3,3>")
        try:
            swizzle = Swizzle(*(reader.number(match.group(i), at) for i in (1, 2, 3)))
        except LayoutError as fault:
            raise reader.fail(str(fault), at) from None
    return parsed(reader, start, lambda: TensorType(word, element, shape, strides, swizzle, role))


def parsed(reader: Reader, at: int, make: Callable[[], Any]) -> Any:
    """Return `make()`. If it raises a ProgramError, raise a ParseError with its message instead.

    The ParseError points at offset `at` of the text of `reader`.
    """
    try:
        return make()
    except ProgramError as fault:
        raise reader.fail(fault.what, at) from None


def _read_exprs(reader: Reader) -> tuple[Expr, ...]:
    """Parse integer expressions in parentheses, such as `(M, 64)`, from `reader`; return them as a tuple.

    Raise ParseError if the text is not valid.
    """
    reader.expect("(")
    start = reader.at
    return reader.exprs(reader.enclosed(")"), start)


_LAYOUT = re.compile(r"(?:[\d(]|\{\w+\})(?:[\d,() ]|\{\w+\})*:(?:[\d(]|\{\w+\})(?:[\d,()]|\{\w+\})*")


def _read_distribution(reader: Reader) -> Distribution | None:
    """Parse a register distribution from `reader`: `by LAYOUT`, or `as OPERAND` with optional `waves (rows, columns)`.

    Return None, and consume nothing, if the text continues with neither word. Raise ParseError if the layout is not
    valid. A layout with names in braces stays a text.
    """
    from tilewright.ir.attrs import KINDS

    word = reader.peek_word()
    if word == "by":
        reader.word()
        reader.skip()
        start = reader.at
        match = reader.match(_LAYOUT, "a layout such as (4,8):(1,4)")
        if "{" in match.group():
            return Distribution(layout=match.group())
        try:
            layout: Any = parse_layout(match.group())
        except ParseError as fault:
            raise reader.fail(str(fault).splitlines()[0], start + fault.position) from None
        return Distribution(layout=layout)
    if word == "as":
        reader.word()
        operand = KINDS["dotted"].read(reader, [])
        waves = None
        if reader.peek_word() == "waves":
            reader.word()
            waves = _read_exprs(reader)
        return Distribution(operand=operand, waves=waves)
    return None
