"""Convolution problems, and their notation `mb1ic64ih56oc64oh56kh3ph1n"name"`.

The notation is that of oneDNN's benchdnn. A problem is a row of keys with numbers, in any order, with `_` anywhere
between them, and at the end `n` and a name:

| key          | meaning                                                             | when left out              |
|--------------|---------------------------------------------------------------------|----------------------------|
| g            | groups; g1 too gives the weights a group axis                       | no group axis              |
| mb           | images in the batch                                                 | 2                          |
| ic, oc       | input and output channels, all groups together                      | an error                   |
| id, ih, iw   | input extent: depth, height, width                                  | an error, or no such axis  |
| kd, kh, kw   | filter extent                                                       | an error, or no such axis  |
| od, oh, ow   | output extent                                                       | from i, k, s, p, d         |
| sd, sh, sw   | stride                                                              | 1                          |
| pd, ph, pw   | padding before the image; that after it is always derived           | from o, or 0 without o     |
| dd, dh, dw   | dilation counted from 0: that many rows lie between two filter taps | 0                          |

d alone stands for d, h and w alike; h alone for h and w; w alone is a problem with one axis.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.errors import ParseError, ProblemError
from tilewright.problems.notation import check_name, content, integer, integers, name_text, read_name, read_number

_KEY = re.compile(r"mb|g|[io]c|[ioksdp][dhw]")
_AXES_ALLOWED = ("w", "h", "d", "hw", "dhw")


@dataclass(frozen=True, kw_only=True)
class ConvProblem:
    """One convolution: batch, channels, groups, and for each of 1 to 3 axes input, output, filter, stride, padding.

    The fields are named as in the notation; i, o, k, s, p, d hold one number an axis, outermost first. Left out, s, d,
    o and p are inferred as in the notation. Output pixel q and filter tap r of an axis read the input pixel q*s +
    r*(d+1) - p; if that lies outside the image, the input counts as 0.

    >>> problem = ConvProblem(mb=1, ic=64, oc=64, i=(56, 40), k=(3, 3), p=(1, 1))
    >>> problem.o, problem.s
    ((56, 40), (1, 1))
    >>> print(problem)
    mb1ic64ih56iw40oc64oh56ow40kh3kw3ph1pw1
    """

    ic: int
    oc: int
    i: tuple[int, ...]
    k: tuple[int, ...]
    o: tuple[int, ...] = ()
    s: tuple[int, ...] = ()
    p: tuple[int, ...] = ()
    d: tuple[int, ...] = ()
    mb: int = 2
    g: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "i", integers(self.i, "i"))
        rank = len(self.i)
        if not 1 <= rank <= 3:
            raise ProblemError(f"a convolution has 1 to 3 axes; i = {tuple(self.i)} has {rank}")
        for key in ("mb", "ic", "oc", "g"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, integer(getattr(self, key), key))
        _check_channels(self.mb, self.ic, self.oc, self.g)
        rows = list(zip(*(self._one_per_axis(key) for key in "iksdop"), strict=True))
        inferred = [_infer_axis(axis, *row) for axis, row in zip(self.axes, rows, strict=True)]
        i, k, s, d, _, _ = zip(*rows, strict=True)
        o, p = zip(*inferred, strict=True)
        for key, values in zip("iksdop", (i, k, s, d, o, p), strict=True):
            object.__setattr__(self, key, values)
        object.__setattr__(self, "name", check_name(self.name))

    def _one_per_axis(self, key: str) -> tuple[Any, ...]:
        """Return the numbers of the field `key`, one for each axis, outermost first.

        If the field is left out, return its default for each axis: 1 for strides (s), 0 for dilations (d), None for
        outputs and padding (o, p), which are inferred later. Raise ProblemError unless there is one number for each
        axis, of at least 1 (0 for dilations; any for padding).
        """
        values = integers(getattr(self, key), key)
        if not values and key in "sdop":
            return ({"s": 1, "d": 0}.get(key),) * self.rank
        if len(values) != self.rank:
            raise ProblemError(f"{key} = {values} does not have one number for each of the axes {self.axes}", key)
        smallest = {"d": 0, "p": None}.get(key, 1)
        for axis, value in zip(self.axes, values, strict=True):
            if smallest is not None and value < smallest:
                raise ProblemError(f"{key}{axis} is {value}; it is at least {smallest}", key + axis)
        return values

    @property
    def rank(self) -> int:
        """Return the number of spatial axes of the image: 1, 2 or 3."""
        return len(self.i)

    @property
    def axes(self) -> str:
        """Return the letters of the image's spatial axes, outermost first: "w", "hw" or "dhw"."""
        return "dhw"[3 - self.rank :]

    @property
    def has_groups(self) -> bool:
        """Return True if the weights have a group axis, that is, if g is given. With g = 1 this axis has extent 1."""
        return self.g is not None

    @property
    def groups(self) -> int:
        """Return the number of groups; 1 if the weights have no group axis."""
        return 1 if self.g is None else self.g

    @property
    def ic_per_group(self) -> int:
        """Return the number of input channels of one group: those that one output channel depends on."""
        return self.ic // self.groups

    @property
    def oc_per_group(self) -> int:
        """Return the number of output channels of one group: those that depend on one input channel."""
        return self.oc // self.groups

    @property
    def dilation(self) -> tuple[int, ...]:
        """Return the distance of two neighbouring filter taps, in pixels, along each axis: 1 for a dense filter.

        The field `d` is one less, as oneDNN counts.

        >>> parse_conv("ic8ih20oc8kh3dh1").dilation
        (2, 2)
        """
        return tuple(d + 1 for d in self.d)

    @property
    def p_right(self) -> tuple[int, ...]:
        """Return the padding after the end of the image along each axis, in pixels: as much as the last output reads.

        A number is below 0 if the last pixels of the image are never read.

        >>> parse_conv("ic3ih224oc64oh112kh7sh2ph3").p_right
        (2, 2)
        >>> parse_conv("ic3ih10oc64kh1sh4").p_right
        (-1, -1)
        """
        rows = zip(self.o, self.i, self.k, self.s, self.p, self.d, strict=True)
        return tuple((o - 1) * s - i + (k - 1) * (d + 1) + 1 - p for o, i, k, s, p, d in rows)

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Return the input's shape in channels-first order: (batch, input channels, image extents...)."""
        return (self.mb, self.ic, *self.i)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Return the weights' shape: (output channels, input channels of one group, filter extents...).

        With a group axis, return (groups, output channels of one group, input channels of one group, filter
        extents...).

        >>> parse_conv("g4ic20ih5oc40kh3").w_shape, parse_conv("ic20ih5oc40kh3").w_shape
        ((4, 10, 5, 3, 3), (40, 20, 3, 3))
        """
        group = (self.groups,) if self.has_groups else ()
        return (*group, self.oc_per_group, self.ic_per_group, *self.k)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Return the output's shape in channels-first order: (batch, output channels, output extents...)."""
        return (self.mb, self.oc, *self.o)

    @property
    def macs(self) -> int:
        """Return the number of multiply-adds of the convolution. Filter taps that read padding are not counted.

        A 3x3 filter on a 4x4 image with padding 1 has 3 taps at each of 4 positions along an axis, less one at both
        ends of the axis:

        >>> parse_conv("mb1ic1ih4oc1kh3ph1").macs, (4 * 3 - 2) ** 2
        (100, 100)
        """
        rows = zip(self.o, self.i, self.k, self.s, self.p, self.dilation, strict=True)
        taps = prod(_count_taps_inside(o, i, k, s, p, dilation) for o, i, k, s, p, dilation in rows)
        return self.mb * self.oc * self.ic_per_group * taps

    @property
    def ops(self) -> int:
        """Return the number of operations as benchmarks count them: two for each multiply-add. Filter taps that read
        padding are not counted.
        """
        return 2 * self.macs

    def canonical(self) -> str:
        """Return the problem in oneDNN's notation with every key, also those with default values.

        The group key g is left out if the weights have no group axis. A padding below 0 is left out, since the notation
        has no sign.

        >>> parse_conv("ic8ih20oc8kh3dh1").canonical()
        'mb2_ic8ih20iw20_oc8oh16ow16_kh3kw3_sh1sw1_ph0pw0_dh1dw1'
        """
        fields = [self._spatial(key, self.axes) for key in "ioksp"] + [self._spatial("d", self.axes)]
        fields[0] = f"ic{self.ic}{fields[0]}"
        fields[1] = f"oc{self.oc}{fields[1]}"
        head = f"{'' if self.g is None else f'g{self.g}'}mb{self.mb}"
        return "_".join(filter(None, [head, *fields, name_text(self.name)]))

    def __str__(self) -> str:
        """Return the problem in short notation: a batch of 2, strides of 1 and dilations of 0 are left out, and equal
        axes are written once.
        """
        rows = set(zip(self.i, self.o, self.k, self.s, self.p, self.d, strict=True))
        axes = self.axes[:1] if len(rows) == 1 else self.axes
        head = f"{'' if self.g is None else f'g{self.g}'}{'' if self.mb == 2 else f'mb{self.mb}'}"
        text = f"{head}ic{self.ic}{self._spatial('i', axes)}oc{self.oc}"
        text += self._spatial("o", axes) + self._spatial("k", axes)
        text += self._spatial("s", axes) if set(self.s) != {1} else ""
        text += self._spatial("p", axes)
        text += self._spatial("d", axes) if set(self.d) != {0} else ""
        return text + name_text(self.name)

    def _spatial(self, key: str, axes: str) -> str:
        """Return the notation of the field `key` for `axes`, letters such as "hw": key "i" gives "ih56iw40".

        Values below 0, which only an inferred padding has, are left out.
        """
        values: tuple[int, ...] = getattr(self, key)
        return "".join(f"{key}{axis}{value}" for axis, value in zip(axes, values, strict=False) if value >= 0)


def parse_conv(text: str) -> ConvProblem:
    """Return the convolution that `text` describes in oneDNN's notation.

    Printing and parsing are inverse: parse_conv(str(P)) == P == parse_conv(P.canonical()) for every problem P. Raise
    ParseError, which points at the position, for any other text.

    >>> problem = parse_conv('mb1_ic64ih56oc32oh28kh3sh2n"net:conv2"')
    >>> problem.p, problem.p_right, problem.name
    ((0, 0), (1, 1), 'net:conv2')
    >>> parse_conv("ic64ih4oc64kh7")
    Traceback (most recent call last):
        ...
    tilewright.errors.ParseError: oh would be -2 = (ih4 - 7 + 2*ph0)/sh1 + 1, the filter spans 7: it is at least 1
      ic64ih4oc64kh7
                 ^
    """
    begin, end = content(text)
    values: dict[str, int] = {}
    position_of: dict[str, int] = {}
    name = None
    position = begin
    while position < end:
        if text[position] == "_":
            position += 1
            continue
        if text[position] == "n":
            name = read_name(text, position + 1, end)
            end = position
            break
        match = _KEY.match(text, position, end)
        if match is None:
            raise ParseError(
                f"{text[position]!r} begins no key; the keys are g, mb, ic, oc, one of i o k s p d with one of d h w,"
                " and n before a name",
                text,
                position,
            )
        key = match.group()
        value, next_position = read_number(text, match.end(), f"a number after {key}")
        if values.get(key, value) != value:
            raise ParseError(f"{key} is given twice, as {values[key]} and as {value}", text, position)
        values[key], position_of[key] = value, position
        position = next_position
    try:
        return _from_keys(values, name)
    except ProblemError as fault:
        raise ParseError(str(fault), text, _error_position(fault.key, position_of, end)) from None


def _from_keys(values: dict[str, int], name: str | None) -> ConvProblem:
    """Return the convolution that parsed notation describes.

    `values` has {key: number} such as {"ic": 64, "kh": 3}, and `name` is the problem's name or None. Keys that are left
    out have their defaults or are inferred. The axis d alone stands for d, h and w, and h alone for h and w. Raise
    ProblemError if a necessary key is missing or a key does not fit the others.
    """
    mb, ic, oc = values.get("mb", 2), values.get("ic", 0), values.get("oc", 0)
    _check_channels(mb, ic, oc, values.get("g"))
    axes_present = ""
    rows: dict[str, tuple[int, ...]] = {}
    for axis in "dhw":
        i, o, k = (values.get(key + axis, 0) for key in "iok")
        s, p, d = values.get("s" + axis, 1), values.get("p" + axis), values.get("d" + axis, 0)
        if s < 1:
            raise ProblemError(f"s{axis} is {s}; it is at least 1", "s" + axis)
        if not (i or o or k or d) and s == 1 and not p:
            continue
        for key, value in (("i", i), ("k", k)):
            if not value:
                raise ProblemError(
                    f"{key}{axis} is missing or 0: an axis needs both i{axis} and k{axis}",
                    key + axis,
                )
        axes_present += axis
        o, p = _infer_axis(axis, i, k, s, d, o or None, p)
        rows[axis] = (i, k, o, s, p, d)
    if axes_present not in _AXES_ALLOWED:
        if not axes_present:
            raise ProblemError("no axis is given: write at least iw and kw, or ih and kh, or id and kd")
        missing = "h" if "h" not in axes_present else "w"
        raise ProblemError(
            f"axes {' and '.join(axes_present)} are given without {missing}; give d alone (for three equal axes),"
            " h alone (for two), w alone (one), h and w, or all three"
        )
    if axes_present in ("d", "h"):
        rows = dict.fromkeys("dhw"["dhw".index(axes_present) :], rows[axes_present])
    columns = list(zip(*(rows[axis] for axis in "dhw" if axis in rows), strict=True))
    i_all, k_all, o_all, s_all, p_all, d_all = columns
    return ConvProblem(
        mb=mb, ic=ic, oc=oc, i=i_all, k=k_all, o=o_all, s=s_all, p=p_all, d=d_all, g=values.get("g"), name=name
    )


def _error_position(key: str, position_of: dict[str, int], end: int) -> int:
    """Return the position in the parsed text that an error about `key` points at.

    This is the position of `key`, else that of the first key of the same axis (for "oh" any key that ends in "h"), else
    `end`. `position_of` has {key of the text: its position}.
    """
    axis = key[1:] if key[1:] in ("d", "h", "w") else None
    return position_of.get(
        key, min((position for other, position in position_of.items() if other[1:] == axis), default=end)
    )


def _check_channels(mb: int, ic: int, oc: int, g: int | None) -> None:
    """Raise ProblemError unless `mb` is at least 0, `ic`, `oc` and `g` are at least 1, and `g` divides `ic` and `oc`.

    These are batch size, input channels, output channels and number of groups. `g` may be None (the weights have no
    group axis); it is then not checked.
    """
    if mb < 0:
        raise ProblemError(f"mb is {mb}; it is at least 0", "mb")
    for key, value, what in (("ic", ic, "input"), ("oc", oc, "output")):
        if value < 1:
            raise ProblemError(f"{key} is missing or below 1: give the {what} channels of all groups together", key)
    if g is not None and g < 1:
        raise ProblemError(f"g is {g}; it is at least 1 (left out, the weights have no group axis)", "g")
    for key, value in (("ic", ic), ("oc", oc)):
        if g is not None and value % g:
            raise ProblemError(f"{key} is {value}, which {g} groups do not divide", key)


def _infer_axis(axis: str, i: int, k: int, s: int, d: int, o: int | None, p: int | None) -> tuple[int, int]:
    """Return (output extent, padding before the image) of one spatial axis.

    `o` and `p` are these two numbers, or None if they are not given. A missing `o` is computed from `p`, or from
    padding 0 if both are missing. A missing `p` is computed from `o`. `axis` is the axis's letter, for errors. `i`,
    `k`, `s` and `d` are input extent, filter extent, stride, and dilation less 1. Raise ProblemError if a computed
    output would have no pixel, or if `p` is negative and not the padding that would be computed from `o`.
    """
    if o is None:
        p = p or 0
        span = (k - 1) * (d + 1) + 1
        o = _truncating_divide(i - span + 2 * p, s) + 1
        if o < 1:
            raise ProblemError(
                f"o{axis} would be {o} = (i{axis}{i} - {span} + 2*p{axis}{p})/s{axis}{s} + 1,"
                f" the filter spans {span}: it is at least 1",
                f"k{axis}",
            )
    inferred = _infer_padding(o, i, k, s, d)
    if p is not None and p < 0 and p != inferred:
        raise ProblemError(
            f"p{axis} is {p}; padding below 0 cannot be written, only inferred from the output extent"
            f" (here {inferred})",
            f"p{axis}",
        )
    return o, inferred if p is None else p


def _infer_padding(o: int, i: int, k: int, s: int, d: int) -> int:
    """Return the padding before the image along one axis: half of the total padding that the outputs read, rounded
    towards 0.

    It is below 0 if the outputs do not read all of the image. `o`, `i` and `k` are output, input and filter extent, `s`
    is the stride, `d` the dilation less 1.
    """
    return _truncating_divide((o - 1) * s - i + (k - 1) * (d + 1) + 1, 2)


def _truncating_divide(a: int, b: int) -> int:
    """Return a / b rounded towards 0: -1 / 2 -> 0. `b` must be positive."""
    return a // b if a >= 0 else -(-a // b)


def _count_taps_inside(o: int, i: int, k: int, s: int, p: int, dilation: int) -> int:
    """Return the number of pairs (output q, filter tap r) of one axis that read a pixel inside the image, with q < o
    and r < k.

    A pair reads pixel q*s + r*dilation - p, which is inside the image if it is at least 0 and less than `i`. `s` is the
    stride, `p` the padding before the image.
    """
    if o < k:  # q and r are symmetric: count along the longer one
        o, k, s, dilation = k, o, dilation, s
    count = 0
    for r in range(k):
        first = max(0, -((r * dilation - p) // s))
        last = min(o - 1, (i - 1 + p - r * dilation) // s)
        count += max(0, last - first + 1)
    return count
