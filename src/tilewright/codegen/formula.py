"""Formulas as LLVM IR: each step in the type in which the executor does it, rounded as it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.algebra.expr import Symbol
from tilewright.codegen import mathematics
from tilewright.codegen.small_floats import is_small, narrowed, widened
from tilewright.codegen.text import Writer, element, literal
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import COMPARISONS, Formula

Typed = tuple[str, DType | None]

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and_": "and", "or_": "or", "xor": "xor", "shl": "shl"}
_CALLS = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "round", "roundeven": "roundeven",
    "abs": "fabs",
}  # fmt: skip
_COMPARE = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}


class FormulaWriter:
    """Writes one formula; `leaf` gives operands as (name, type), already with the right number of lanes."""

    def __init__(self, w: Writer, lanes: int | None, lane: Symbol | None, leaf: Callable[[Formula], Typed]):
        self.w, self.lanes, self.lane, self.leaf = w, lanes, lane, leaf

    def kind(self, text: str) -> str:
        """The type with this formula's lanes."""
        return text if self.lanes is None else f"<{self.lanes} x {text}>"

    def of(self, dtype: DType) -> str:
        """The register type of an element type."""
        return self.kind(element(dtype))

    def number(self, value: Any, dtype: DType) -> str:
        """A number in all lanes."""
        text = literal(value, dtype)
        if self.lanes is None:
            return text
        return f"<{', '.join([f'{element(dtype)} {text}'] * self.lanes)}>"

    def write(self, f: Formula, to: DType) -> str:
        """The formula's value as elements of type `to`."""
        value, kind = self._write(f, to)
        if kind is None:
            return self.number(float(value) if to.is_float else _whole(value), to)
        return value if kind is to else self.cast(value, kind, to)

    def test(self, f: Formula) -> str:
        """Whether the formula's value is not zero, as i1."""
        return self.truth(*self._write(f, None))

    def _write(self, f: Formula, want: DType | None) -> Typed:
        if f.name in ("operand", "argument"):
            return self.leaf(f)
        if f.name == "number":
            return repr(f.value), None
        if f.name == "index":
            if self.lanes is None or self.lane is None or self.lane not in f.value.symbols:
                text = self.w.integer(f.value)
                return (text if self.lanes is None else self.w.splat(text, "i64", self.lanes)), dtypes.index
            return self.w.lane_values(f.value, self.lane, self.lanes), dtypes.index
        if f.name == "cast":
            value, kind = self._write(f.parts[0], None)
            if kind is None:
                return self.number(float(value) if f.value.is_float else _whole(value), f.value), f.value
            return self.cast(value, kind, f.value), f.value
        if f.name == "select":
            truth, kind = self._write(f.parts[0], None)
            chosen = self.truth(truth, kind)
            values, common = self._agreed(f.parts[1:], want)
            form = self.of(common)
            return self.w.value(f"select {self.kind('i1')} {chosen}, {form} {values[0]}, {form} {values[1]}"), common
        values, common = self._agreed(f.parts, None if f.name in COMPARISONS else want)
        if common.is_narrow or common is dtypes.i4:
            wide = dtypes.f32 if common.is_float else dtypes.i32
            values = [self.cast(v, common, wide) for v in values]
            result, kind = self._step_rounded(f.name, values, wide)
            return (result, kind) if kind is dtypes.bool_ else (self.cast(result, wide, common), common)
        return self._step(f.name, values, common)

    def _agreed(self, parts: tuple[Formula, ...], want: DType | None) -> tuple[list[str], DType]:
        found = [self._write(part, want) for part in parts]
        common = next((k for _, k in found if k is not None), want) or dtypes.f32
        texts = []
        for value, kind in found:
            number = kind is None
            texts.append(self.number(float(value) if common.is_float else _whole(value), common) if number else value)
        return texts, common

    def truth(self, value: str, kind: DType | None) -> str:
        """A value as i1: whether it is not zero."""
        if kind is None:
            return self.kind_constant(value)
        if kind is dtypes.i4:
            value, kind = self.cast(value, kind, dtypes.i8), dtypes.i8
        if is_small(kind):
            value, kind = widened(self, value, kind), dtypes.f32
        if kind.is_float:
            return (
                self.w.value(f"fcmp une {self.of(kind)} {value}, zeroinitializer")
                if self.lanes
                else self.w.value(f"fcmp une {self.of(kind)} {value}, 0.0")
            )
        zero = "zeroinitializer" if self.lanes else "0"
        return self.w.value(f"icmp ne {self.of(kind)} {value}, {zero}")

    def kind_constant(self, value: str) -> str:
        """A number as i1."""
        text = "true" if float(value) else "false"
        return text if self.lanes is None else f"<{', '.join([f'i1 {text}'] * self.lanes)}>"

    # -- steps ------------------------------------------------------------------------------------------------

    def _step_rounded(self, name: str, values: list[str], kind: DType) -> Typed:
        """A step whose result is rounded to a narrower type."""
        return self._step(name, values, kind)

    def _step(self, name: str, values: list[str], kind: DType) -> Typed:
        form = self.of(kind)
        if name in COMPARISONS:
            if kind.is_float:
                word = f"fcmp {'une' if name == 'ne' else 'o' + _COMPARE[name]}"
            else:
                sign = "" if name in ("eq", "ne") else ("u" if _unsigned(kind) else "s")
                word = f"icmp {sign}{_COMPARE[name]}"
            found = self.w.value(f"{word} {form} {values[0]}, {values[1]}")
            return self.w.value(f"zext {self.kind('i1')} {found} to {self.kind('i8')}"), dtypes.bool_
        step = self._float if kind.is_float else self._integer
        return step(name, values, kind), kind

    def _float(self, name: str, values: list[str], kind: DType) -> str:
        form = self.of(kind)
        if name in _FLOAT:
            return self.w.value(f"{_FLOAT[name]} {form} {values[0]}, {values[1]}")
        if name in mathematics.FUNCTIONS:
            return mathematics.written(self.w, name, values, self.lanes, kind.bits)
        if name in _CALLS:
            return self._call(_CALLS[name], values, kind)
        match name:
            case "fma":
                return self._call(name, values, kind)
            case "maximum" | "minimum":
                return self._extreme(name, values[0], values[1], kind)
            case "neg":
                return self.w.value(f"fneg {form} {values[0]}")
            case "relu":
                return self._extreme("maximum", self.number(0.0, kind), values[0], kind)
            case "reciprocal":
                return self.w.value(f"fdiv {form} {self.number(1.0, kind)}, {values[0]}")
            case "rsqrt":
                return self.w.value(f"fdiv {form} {self.number(1.0, kind)}, {self._call('sqrt', values, kind)}")
            case "floordiv":
                return self._call("floor", [self.w.value(f"fdiv {form} {values[0]}, {values[1]}")], kind)
        raise ProgramError(f"{name} of {kind} has no machine code here")

    def _extreme(self, name: str, a: str, b: str, kind: DType) -> str:
        """The larger, or smaller, of two; NaN where one is none.

        Of zeros either may come. The second operand stays unless the first is larger, so a NaN there needs no care.
        """
        if self.w.nan_maximum:
            return self._call(name, [a, b], kind)
        if not b.startswith("%"):
            a, b = b, a
        form, test = self.of(kind), self.kind("i1")
        beyond = self.w.value(f"fcmp {'ogt' if name == 'maximum' else 'olt'} {form} {a}, {b}")
        found = self.w.value(f"select {test} {beyond}, {form} {a}, {form} {b}")
        if not a.startswith("%"):
            return found
        none = self.w.value(f"fcmp uno {form} {a}, {a}")
        return self.w.value(f"select {test} {none}, {form} {a}, {form} {found}")

    def _call(self, name: str, values: list[str], kind: DType) -> str:
        form = self.of(kind)
        suffix = {"float": "f32", "double": "f64"}[element(kind)]
        full = f"@llvm.{name}.{suffix if self.lanes is None else f'v{self.lanes}{suffix}'}"
        self.w.declare(f"{form} {full}({', '.join([form] * len(values))})")
        return self.w.value(f"call {form} {full}({', '.join(f'{form} {v}' for v in values)})")

    def _integer(self, name: str, values: list[str], kind: DType) -> str:
        form = self.of(kind)
        zero = "zeroinitializer" if self.lanes else "0"
        if name in _INTEGER:
            return self.w.value(f"{_INTEGER[name]} {form} {values[0]}, {values[1]}")
        unsigned = _unsigned(kind)
        match name:
            case "fma":
                return self._integer("add", [self._integer("mul", values[:2], kind), values[2]], kind)
            case "shr":
                return self.w.value(f"{'lshr' if unsigned else 'ashr'} {form} {values[0]}, {values[1]}")
            case "maximum" | "minimum":
                word = f"{'u' if unsigned else 's'}{name[:3]}"
                bits = element(kind)
                full = f"@llvm.{word}.{bits if self.lanes is None else f'v{self.lanes}{bits}'}"
                self.w.declare(f"{form} {full}({form}, {form})")
                return self.w.value(f"call {form} {full}({form} {values[0]}, {form} {values[1]})")
            case "neg":
                return self.w.value(f"sub {form} {zero}, {values[0]}")
            case "relu":
                return self._integer("maximum", [values[0], zero], kind)
            case "abs" if unsigned:
                return values[0]
            case "abs":
                return self._integer("maximum", [values[0], self._integer("neg", values, kind)], kind)
            case "floor" | "ceil" | "round" | "roundeven":
                return values[0]
            case "not_":
                ones = "-1" if kind is not dtypes.bool_ else "1"
                text = ones if self.lanes is None else f"<{', '.join([f'{element(kind)} {ones}'] * self.lanes)}>"
                return self.w.value(f"xor {form} {values[0]}, {text}")
            case "div" | "mod" | "floordiv":
                return self._divided(name, values, kind, unsigned)
        raise ProgramError(f"{name} of {kind} has no machine code here")

    def _divided(self, name: str, values: list[str], kind: DType, unsigned: bool) -> str:
        """Division that never stops the process: by zero it gives zero, and the least number over -1 wraps."""
        form, truth = self.of(kind), self.kind("i1")
        zero = "zeroinitializer" if self.lanes else "0"
        nothing = self.w.value(f"icmp eq {form} {values[1]}, {zero}")
        one, minus = (self.number(n, kind) if not unsigned else self._unsigned_number(n, kind) for n in (1, -1))
        safe = self.w.value(f"select {truth} {nothing}, {form} {one}, {form} {values[1]}")
        if unsigned:
            word = "urem" if name == "mod" else "udiv"
            found = self.w.value(f"{word} {form} {values[0]}, {safe}")
        else:
            turned = self.w.value(f"icmp eq {form} {safe}, {minus}")
            by = self.w.value(f"select {truth} {turned}, {form} {one}, {form} {safe}")
            if name == "div":
                plain = self.w.value(f"sdiv {form} {values[0]}, {by}")
            else:
                plain = self._floored(name, [values[0], by], kind, unsigned)
            other = zero if name == "mod" else self.w.value(f"sub {form} {zero}, {values[0]}")
            found = self.w.value(f"select {truth} {turned}, {form} {other}, {form} {plain}")
        return self.w.value(f"select {truth} {nothing}, {form} {zero}, {form} {found}")

    def _unsigned_number(self, value: int, kind: DType) -> str:
        text = str(value & ((1 << max(8, kind.bits)) - 1))
        return text if self.lanes is None else f"<{', '.join([f'{element(kind)} {text}'] * self.lanes)}>"

    def _floored(self, name: str, values: list[str], kind: DType, unsigned: bool) -> str:
        form = self.of(kind)
        if unsigned:
            return self.w.value(f"{'urem' if name == 'mod' else 'udiv'} {form} {values[0]}, {values[1]}")
        zero, truth = "zeroinitializer" if self.lanes else "0", self.kind("i1")
        rest = self.w.value(f"srem {form} {values[0]}, {values[1]}")
        mixed = self.w.value(f"xor {form} {rest}, {values[1]}")
        below = self.w.value(f"icmp slt {form} {mixed}, {zero}")
        some = self.w.value(f"icmp ne {form} {rest}, {zero}")
        off = self.w.value(f"and {truth} {below}, {some}")
        if name == "mod":
            moved = self.w.value(f"add {form} {rest}, {values[1]}")
            return self.w.value(f"select {truth} {off}, {form} {moved}, {form} {rest}")
        quotient = self.w.value(f"sdiv {form} {values[0]}, {values[1]}")
        one = self.w.value(f"zext {truth} {off} to {form}")
        return self.w.value(f"sub {form} {quotient}, {one}")

    # -- conversions --------------------------------------------------------------------------------------------

    def cast(self, value: str, kind: DType, to: DType) -> str:
        """A value in another element type."""
        if kind is to or (kind.name, to.name) in (("index", "i64"), ("i64", "index")):
            return value
        if kind is dtypes.i4:  # a byte of which the lower half counts
            moved = self.w.value(f"shl {self.kind('i8')} {value}, {self.number(4, dtypes.i8)}")
            whole = self.w.value(f"ashr {self.kind('i8')} {moved}, {self.number(4, dtypes.i8)}")
            return self.cast(whole, dtypes.i8, to)
        if to is dtypes.i4:
            byte = self.cast(value, kind, dtypes.i8)
            return self.w.value(f"and {self.kind('i8')} {byte}, {self.number(15, dtypes.i8)}")
        if is_small(kind):
            return self.cast(widened(self, value, kind), dtypes.f32, to)
        if is_small(to):
            return narrowed(self, self.cast(value, kind, dtypes.f32), to)
        a, b = self.of(kind), self.of(to)
        if to is dtypes.bool_:
            return self.w.value(f"zext {self.kind('i1')} {self.truth(value, kind)} to {b}")
        if kind.is_float and to.is_float:
            if kind.bits == to.bits:  # between the two forms of 16 bits: through 32
                return self.cast(self.cast(value, kind, dtypes.f32), dtypes.f32, to)
            if kind is dtypes.f64 and to is dtypes.f16:
                return self.cast(self._to_odd(value), dtypes.f32, to)
            if kind is dtypes.f64 and to.bits == 16:  # the executor rounds twice here
                return self.cast(self.cast(value, kind, dtypes.f32), dtypes.f32, to)
            if (kind, to) == (dtypes.f32, dtypes.bf16) and not self.w.rounds_bf16:
                return self._upper_half(value)
            return self.w.value(f"{'fpext' if kind.bits < to.bits else 'fptrunc'} {a} {value} to {b}")
        if kind.is_float:
            if kind.bits == 16:
                return self.cast(self.cast(value, kind, dtypes.f32), dtypes.f32, to)
            return self.w.value(f"{'fptoui' if _unsigned(to) else 'fptosi'} {a} {value} to {b}")
        if to.is_float:
            if to.bits == 16:
                return self.cast(self.cast(value, kind, dtypes.f32), dtypes.f32, to)
            return self.w.value(f"{'uitofp' if _unsigned(kind) else 'sitofp'} {a} {value} to {b}")
        if a == b:
            return value
        bits_a, bits_b = max(8, kind.bits), max(8, to.bits)
        if bits_a == bits_b:
            return value
        word = "trunc" if bits_a > bits_b else ("zext" if _unsigned(kind) else "sext")
        return self.w.value(f"{word} {a} {value} to {b}")

    def _upper_half(self, value: str) -> str:
        """An f32 rounded to bf16, ties to even, by integers: without an instruction LLVM would call a function."""
        form, word = self.kind("float"), self.kind("i32")

        def number(n: int) -> str:
            return self.number(n, dtypes.i32)

        bits = self.w.value(f"bitcast {form} {value} to {word}")
        high = self.w.value(f"lshr {word} {bits}, {number(16)}")
        odd = self.w.value(f"and {word} {high}, {number(1)}")
        half = self.w.value(f"add {word} {bits}, {number(0x7FFF)}")
        rounded = self.w.value(f"lshr {word} {self.w.value(f'add {word} {half}, {odd}')}, {number(16)}")
        quiet = self.w.value(f"or {word} {high}, {number(64)}")
        none = self.w.value(f"fcmp uno {form} {value}, {value}")
        found = self.w.value(f"select {self.kind('i1')} {none}, {word} {quiet}, {word} {rounded}")
        short = self.w.value(f"trunc {word} {found} to {self.kind('i16')}")
        return self.w.value(f"bitcast {self.kind('i16')} {short} to {self.kind('bfloat')}")

    def _to_odd(self, value: str) -> str:
        """An f64 as an f32 whose last bit remembers whether anything was cut off: a second rounding sees it."""
        near, wide, word = self.cast(value, dtypes.f64, dtypes.f32), self.kind("double"), self.kind("i32")
        back = self.cast(near, dtypes.f32, dtypes.f64)
        differs = self.w.value(f"fcmp one {wide} {back}, {value}")
        sizes = [self._call("fabs", [v], dtypes.f64) for v in (back, value)]
        above = self.w.value(f"fcmp ogt {wide} {sizes[0]}, {sizes[1]}")
        bits = self.w.value(f"bitcast {self.kind('float')} {near} to {word}")
        one = self.w.value(f"zext {self.kind('i1')} {above} to {word}")
        odd = self.w.value(f"or {word} {self.w.value(f'sub {word} {bits}, {one}')}, {self.number(1, dtypes.i32)}")
        found = self.w.value(f"select {self.kind('i1')} {differs}, {word} {odd}, {word} {bits}")
        return self.w.value(f"bitcast {word} {found} to {self.kind('float')}")


def _whole(text: str) -> int:
    """A number as an integer; one that is written as an integer is taken as it is."""
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _unsigned(kind: DType) -> bool:
    return kind is dtypes.bool_ or kind.numpy.kind == "u"
