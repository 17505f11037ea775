"""Emission of element-wise formulas as LLVM IR; types and rounding of every step are the interpreter's."""

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
"""An LLVM operand and its element type; or the digits of a number that has no type yet, and None."""

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and_": "and", "or_": "or", "xor": "xor", "shl": "shl"}
_CALLS = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "round", "roundeven": "roundeven",
    "abs": "fabs",
}  # fmt: skip
_COMPARE = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}


class FormulaWriter:
    """Emits one formula as LLVM IR, for one element or for a vector of elements.

    `lanes` is the length of vectors, None for a single element; `lane` is the symbol that stands for the lane in index
    expressions. `leaf` returns the LLVM name and the type of an operand or argument of the formula, with as many lanes.
    """

    def __init__(self, w: Writer, lanes: int | None, lane: Symbol | None, leaf: Callable[[Formula], Typed]):
        self.w, self.lanes, self.lane, self.leaf = w, lanes, lane, leaf

    def kind(self, text: str) -> str:
        """Return the LLVM type of a value with this formula's lanes, if each lane has the LLVM type `text`.

        With 8 lanes, "float" gives "<8 x float>"; in a formula for one element, it gives "float".
        """
        return text if self.lanes is None else f"<{self.lanes} x {text}>"

    def of(self, dtype: DType) -> str:
        """Return the LLVM type of a value with this formula's lanes, if each lane has the element type `dtype`.

        With 8 lanes, f32 gives "<8 x float>"; in a formula for one element, it gives "float".
        """
        return self.kind(element(dtype))

    def number(self, value: Any, dtype: DType) -> str:
        """Return the LLVM constant of the Python number `value` as an element of type `dtype`, in all lanes of the
        formula.

        For a float type, the number is rounded once; for an integer type, it is truncated to an integer.
        """
        text = literal(value, dtype)
        if self.lanes is None:
            return text
        return f"<{', '.join([f'{element(dtype)} {text}'] * self.lanes)}>"

    def write(self, f: Formula, to: DType) -> str:
        """Emit the LLVM instructions that compute the formula `f` and convert its value to element type `to`.

        Return the LLVM operand of the result. If `f` is a mere number, nothing is emitted and a constant is returned.
        """
        value, kind = self._write(f, to)
        if kind is None:
            return self.number(float(value) if to.is_float else _whole(value), to)
        return value if kind is to else self.cast(value, kind, to)

    def test(self, f: Formula) -> str:
        """Emit the LLVM instructions that compute the formula `f`, and return the LLVM operand of an i1 for each lane.

        The i1 is set where the value of `f` is not zero; NaN is not zero.
        """
        return self.truth(*self._write(f, None))

    def _write(self, f: Formula, want: DType | None) -> Typed:
        """Emit the LLVM instructions that compute the formula `f`, and return (LLVM operand of its value, its element
        type).

        If `f` is a mere number, nothing is emitted, and the result is (digits of the number, None). If no operand of an
        operation has a type, its numbers are computed in the type `want`; None: in f32. Floats narrower than 32 bits
        are computed in f32 and rounded after each operation; i4 is computed in i32.
        """
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
            test, kind = self._write(f.parts[0], None)
            condition = self.truth(test, kind)
            values, common = self._agreed(f.parts[1:], want)
            form = self.of(common)
            return self.w.value(f"select {self.kind('i1')} {condition}, {form} {values[0]}, {form} {values[1]}"), common
        values, common = self._agreed(f.parts, None if f.name in COMPARISONS else want)
        if common.is_narrow or common is dtypes.i4:
            wide = dtypes.f32 if common.is_float else dtypes.i32
            values = [self.cast(v, common, wide) for v in values]
            result, kind = self._step_rounded(f.name, values, wide)
            return (result, kind) if kind is dtypes.bool_ else (self.cast(result, wide, common), common)
        return self._step(f.name, values, common)

    def _agreed(self, parts: tuple[Formula, ...], want: DType | None) -> tuple[list[str], DType]:
        """Emit the formulas `parts`, the operands of one operation, and return (list of LLVM operands, common element
        type).

        The common type is that of the first part that has a type, else `want`, else f32. Parts that are mere numbers
        become constants of this type. All other parts must have it already.
        """
        pairs = [self._write(part, want) for part in parts]
        common = next((k for _, k in pairs if k is not None), want) or dtypes.f32
        texts = []
        for value, kind in pairs:
            untyped = kind is None
            texts.append(self.number(float(value) if common.is_float else _whole(value), common) if untyped else value)
        return texts, common

    def truth(self, value: str, kind: DType | None) -> str:
        """Emit the test of `value`, an LLVM operand of element type `kind`, against zero.

        Return the LLVM operand of an i1 for each lane, which is set where the value is not zero; NaN is not zero. If
        `kind` is None, `value` is the digits of a number, and the result is a constant.
        """
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
        """Return the LLVM constant of type i1, in all lanes, that is true if the number with the digits `value` is not
        zero.

        "0.5" gives "true", or "<i1 true, i1 true>" with 2 lanes.
        """
        text = "true" if float(value) else "false"
        return text if self.lanes is None else f"<{', '.join([f'i1 {text}'] * self.lanes)}>"

    # -- steps ------------------------------------------------------------------------------------------------

    def _step_rounded(self, name: str, values: list[str], kind: DType) -> Typed:
        """Emit the operation `name` on the LLVM operands `values` of type `kind`; return (result, element type of the
        result).

        The caller rounds the result to a type narrower than `kind`. This default calls `_step`. A subclass may override
        it with a less accurate instruction that suffices for the narrower type.
        """
        return self._step(name, values, kind)

    def _step(self, name: str, values: list[str], kind: DType) -> Typed:
        """Emit the operation `name`, such as "add" or "lt", on the LLVM operands `values` of element type `kind`.

        Return (LLVM name of the result, element type of the result). A comparison gives bool (an i8, 0 or 1), any other
        operation gives `kind`. Raise ProgramError if there is no machine code for the operation.
        """
        llvm_type = self.of(kind)
        if name in COMPARISONS:
            if kind.is_float:
                instruction = f"fcmp {'une' if name == 'ne' else 'o' + _COMPARE[name]}"
            else:
                sign = "" if name in ("eq", "ne") else ("u" if _unsigned(kind) else "s")
                instruction = f"icmp {sign}{_COMPARE[name]}"
            holds = self.w.value(f"{instruction} {llvm_type} {values[0]}, {values[1]}")
            return self.w.value(f"zext {self.kind('i1')} {holds} to {self.kind('i8')}"), dtypes.bool_
        emit = self._float if kind.is_float else self._integer
        return emit(name, values, kind), kind

    def _float(self, name: str, values: list[str], kind: DType) -> str:
        """Emit the operation `name`, such as "add", "exp" or "relu", on the LLVM operands `values` of the float type
        `kind`.

        Return the LLVM name of the result. Raise ProgramError if there is no machine code for the operation.
        """
        llvm_type = self.of(kind)
        if name in _FLOAT:
            return self.w.value(f"{_FLOAT[name]} {llvm_type} {values[0]}, {values[1]}")
        if name in mathematics.FUNCTIONS:
            return mathematics.emit_function(self.w, name, values, self.lanes, kind.bits)
        if name in _CALLS:
            return self._call(_CALLS[name], values, kind)
        match name:
            case "fma":
                return self._call(name, values, kind)
            case "maximum" | "minimum":
                return self._extreme(name, values[0], values[1], kind)
            case "neg":
                return self.w.value(f"fneg {llvm_type} {values[0]}")
            case "relu":
                return self._extreme("maximum", self.number(0.0, kind), values[0], kind)
            case "reciprocal":
                return self.w.value(f"fdiv {llvm_type} {self.number(1.0, kind)}, {values[0]}")
            case "rsqrt":
                return self.w.value(f"fdiv {llvm_type} {self.number(1.0, kind)}, {self._call('sqrt', values, kind)}")
            case "floordiv":
                return self._call("floor", [self.w.value(f"fdiv {llvm_type} {values[0]}, {values[1]}")], kind)
        raise ProgramError(f"{name} of {kind} has no machine code here")

    def _extreme(self, name: str, a: str, b: str, kind: DType) -> str:
        """Emit the maximum or minimum of the LLVM operands `a` and `b` of float type `kind`; return the LLVM name of
        the result.

        `name` is "maximum" or "minimum". The result is NaN if either operand is NaN. Of zeros with different signs,
        either may be returned. If the machine has no such instruction, a constant operand saves the NaN test.
        """
        if self.w.nan_maximum:
            return self._call(name, [a, b], kind)
        if not b.startswith("%"):
            a, b = b, a
        llvm_type, test = self.of(kind), self.kind("i1")
        beyond = self.w.value(f"fcmp {'ogt' if name == 'maximum' else 'olt'} {llvm_type} {a}, {b}")
        chosen = self.w.value(f"select {test} {beyond}, {llvm_type} {a}, {llvm_type} {b}")
        if not a.startswith("%"):
            return chosen
        is_nan = self.w.value(f"fcmp uno {llvm_type} {a}, {a}")
        return self.w.value(f"select {test} {is_nan}, {llvm_type} {a}, {llvm_type} {chosen}")

    def _call(self, name: str, values: list[str], kind: DType) -> str:
        """Emit a call of the LLVM intrinsic `name`, such as "sqrt", on the LLVM operands `values`; return the name of
        the result.

        `kind` is the type of the operands: f32 or f64. Also declare the intrinsic in the module.
        """
        llvm_type = self.of(kind)
        suffix = {"float": "f32", "double": "f64"}[element(kind)]
        full = f"@llvm.{name}.{suffix if self.lanes is None else f'v{self.lanes}{suffix}'}"
        self.w.declare(f"{llvm_type} {full}({', '.join([llvm_type] * len(values))})")
        return self.w.value(f"call {llvm_type} {full}({', '.join(f'{llvm_type} {v}' for v in values)})")

    def _integer(self, name: str, values: list[str], kind: DType) -> str:
        """Emit the operation `name`, such as "add", "shr" or "relu", on the LLVM operands `values` of the integer type
        `kind`.

        Return the LLVM operand of the result. Operations that change no integer ("floor", "abs" of unsigned numbers)
        emit nothing and return their operand. Raise ProgramError if there is no machine code for the operation.
        """
        llvm_type = self.of(kind)
        zero = "zeroinitializer" if self.lanes else "0"
        if name in _INTEGER:
            return self.w.value(f"{_INTEGER[name]} {llvm_type} {values[0]}, {values[1]}")
        unsigned = _unsigned(kind)
        match name:
            case "fma":
                return self._integer("add", [self._integer("mul", values[:2], kind), values[2]], kind)
            case "shr":
                return self.w.value(f"{'lshr' if unsigned else 'ashr'} {llvm_type} {values[0]}, {values[1]}")
            case "maximum" | "minimum":
                intrinsic = f"{'u' if unsigned else 's'}{name[:3]}"
                bits = element(kind)
                full = f"@llvm.{intrinsic}.{bits if self.lanes is None else f'v{self.lanes}{bits}'}"
                self.w.declare(f"{llvm_type} {full}({llvm_type}, {llvm_type})")
                return self.w.value(f"call {llvm_type} {full}({llvm_type} {values[0]}, {llvm_type} {values[1]})")
            case "neg":
                return self.w.value(f"sub {llvm_type} {zero}, {values[0]}")
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
                return self.w.value(f"xor {llvm_type} {values[0]}, {text}")
            case "div" | "mod" | "floordiv":
                return self._divided(name, values, kind, unsigned)
        raise ProgramError(f"{name} of {kind} has no machine code here")

    def _divided(self, name: str, values: list[str], kind: DType, unsigned: bool) -> str:
        """Emit the integer operation `name` on `values` = [dividend, divisor], LLVM operands of type `kind`.

        Return the LLVM name of the result. "div" truncates, "floordiv" rounds down, and "mod" is the remainder of
        "floordiv". The code never traps: a divisor of 0 gives 0, and the least number divided by -1 wraps around.
        `unsigned` must say whether `kind` is unsigned.
        """
        llvm_type, i1 = self.of(kind), self.kind("i1")
        zero = "zeroinitializer" if self.lanes else "0"
        by_zero = self.w.value(f"icmp eq {llvm_type} {values[1]}, {zero}")
        one, minus = (self.number(n, kind) if not unsigned else self._unsigned_number(n, kind) for n in (1, -1))
        divisor = self.w.value(f"select {i1} {by_zero}, {llvm_type} {one}, {llvm_type} {values[1]}")
        if unsigned:
            instruction = "urem" if name == "mod" else "udiv"
            result = self.w.value(f"{instruction} {llvm_type} {values[0]}, {divisor}")
        else:
            by_minus_one = self.w.value(f"icmp eq {llvm_type} {divisor}, {minus}")
            safe_divisor = self.w.value(f"select {i1} {by_minus_one}, {llvm_type} {one}, {llvm_type} {divisor}")
            if name == "div":
                quotient = self.w.value(f"sdiv {llvm_type} {values[0]}, {safe_divisor}")
            else:
                quotient = self._floored(name, [values[0], safe_divisor], kind, unsigned)
            negated = zero if name == "mod" else self.w.value(f"sub {llvm_type} {zero}, {values[0]}")
            result = self.w.value(f"select {i1} {by_minus_one}, {llvm_type} {negated}, {llvm_type} {quotient}")
        return self.w.value(f"select {i1} {by_zero}, {llvm_type} {zero}, {llvm_type} {result}")

    def _unsigned_number(self, value: int, kind: DType) -> str:
        """Return the LLVM constant of `value` modulo 2^bits, in all lanes, for the unsigned type `kind`: -1 as u8 gives
        255.

        `bits` is the number of bits of `kind`; bool counts as 8 bits.
        """
        text = str(value & ((1 << max(8, kind.bits)) - 1))
        return text if self.lanes is None else f"<{', '.join([f'{element(kind)} {text}'] * self.lanes)}>"

    def _floored(self, name: str, values: list[str], kind: DType, unsigned: bool) -> str:
        """Emit the integer quotient rounded down (`name` is "floordiv") or its remainder ("mod"); return the name of
        the result.

        `values` is [dividend, divisor], LLVM operands of type `kind`. The divisor must not be 0, and a signed quotient
        must not overflow. `unsigned` must say whether `kind` is unsigned.
        """
        llvm_type = self.of(kind)
        if unsigned:
            return self.w.value(f"{'urem' if name == 'mod' else 'udiv'} {llvm_type} {values[0]}, {values[1]}")
        zero, i1 = "zeroinitializer" if self.lanes else "0", self.kind("i1")
        rest = self.w.value(f"srem {llvm_type} {values[0]}, {values[1]}")
        signs = self.w.value(f"xor {llvm_type} {rest}, {values[1]}")
        signs_differ = self.w.value(f"icmp slt {llvm_type} {signs}, {zero}")
        is_inexact = self.w.value(f"icmp ne {llvm_type} {rest}, {zero}")
        is_off_by_one = self.w.value(f"and {i1} {signs_differ}, {is_inexact}")
        if name == "mod":
            moved = self.w.value(f"add {llvm_type} {rest}, {values[1]}")
            return self.w.value(f"select {i1} {is_off_by_one}, {llvm_type} {moved}, {llvm_type} {rest}")
        quotient = self.w.value(f"sdiv {llvm_type} {values[0]}, {values[1]}")
        one = self.w.value(f"zext {i1} {is_off_by_one} to {llvm_type}")
        return self.w.value(f"sub {llvm_type} {quotient}, {one}")

    # -- conversions --------------------------------------------------------------------------------------------

    def cast(self, value: str, kind: DType, to: DType) -> str:
        """Emit the conversion of the LLVM operand `value` from element type `kind` to `to`; return the LLVM operand of
        the result.

        The result is rounded as the interpreter rounds. Floats become integers by truncation, and any number but 0
        becomes the bool 1. If the types are the same, or integers of the same width (i64 and index, i8 and u8), nothing
        is emitted and `value` is returned.
        """
        if kind is to or (kind.name, to.name) in (("index", "i64"), ("i64", "index")):
            return value
        if kind is dtypes.i4:  # a byte whose lower half is the number
            shifted = self.w.value(f"shl {self.kind('i8')} {value}, {self.number(4, dtypes.i8)}")
            extended = self.w.value(f"ashr {self.kind('i8')} {shifted}, {self.number(4, dtypes.i8)}")
            return self.cast(extended, dtypes.i8, to)
        if to is dtypes.i4:
            byte = self.cast(value, kind, dtypes.i8)
            return self.w.value(f"and {self.kind('i8')} {byte}, {self.number(15, dtypes.i8)}")
        if is_small(kind):
            return self.cast(widened(self, value, kind), dtypes.f32, to)
        if is_small(to):
            return narrowed(self, self.cast(value, kind, dtypes.f32), to)
        source, target = self.of(kind), self.of(to)
        if to is dtypes.bool_:
            return self.w.value(f"zext {self.kind('i1')} {self.truth(value, kind)} to {target}")
        if kind.is_float and to.is_float:
            if kind.bits == to.bits:  # between f16 and bf16: through f32
                return self.cast(self.cast(value, kind, dtypes.f32), dtypes.f32, to)
            if kind is dtypes.f64 and to is dtypes.f16:
                return self.cast(self._to_odd(value), dtypes.f32, to)
            if kind is dtypes.f64 and to.bits == 16:  # the interpreter rounds twice here, too
                return self.cast(self.cast(value, kind, dtypes.f32), dtypes.f32, to)
            if (kind, to) == (dtypes.f32, dtypes.bf16) and not self.w.rounds_bf16:
                return self._upper_half(value)
            return self.w.value(f"{'fpext' if kind.bits < to.bits else 'fptrunc'} {source} {value} to {target}")
        if kind.is_float:
            if kind.bits == 16:
                return self.cast(self.cast(value, kind, dtypes.f32), dtypes.f32, to)
            return self.w.value(f"{'fptoui' if _unsigned(to) else 'fptosi'} {source} {value} to {target}")
        if to.is_float:
            if to.bits == 16:
                return self.cast(self.cast(value, kind, dtypes.f32), dtypes.f32, to)
            return self.w.value(f"{'uitofp' if _unsigned(kind) else 'sitofp'} {source} {value} to {target}")
        if source == target:
            return value
        bits_a, bits_b = max(8, kind.bits), max(8, to.bits)
        if bits_a == bits_b:
            return value
        instruction = "trunc" if bits_a > bits_b else ("zext" if _unsigned(kind) else "sext")
        return self.w.value(f"{instruction} {source} {value} to {target}")

    def _upper_half(self, value: str) -> str:
        """Emit the conversion of `value`, the LLVM name of an f32, to bf16 by integer arithmetic; return the name of
        the bf16.

        It is rounded to nearest, ties to even. This is for machines without an instruction: LLVM would call a library
        function.
        """
        llvm_type, word = self.kind("float"), self.kind("i32")

        def number(n: int) -> str:
            """Return the LLVM constant of the integer `n` as an i32, in all lanes."""
            return self.number(n, dtypes.i32)

        bits = self.w.value(f"bitcast {llvm_type} {value} to {word}")
        high = self.w.value(f"lshr {word} {bits}, {number(16)}")
        odd = self.w.value(f"and {word} {high}, {number(1)}")
        with_half = self.w.value(f"add {word} {bits}, {number(0x7FFF)}")
        rounded = self.w.value(f"lshr {word} {self.w.value(f'add {word} {with_half}, {odd}')}, {number(16)}")
        quiet_nan = self.w.value(f"or {word} {high}, {number(64)}")
        is_nan = self.w.value(f"fcmp uno {llvm_type} {value}, {value}")
        chosen = self.w.value(f"select {self.kind('i1')} {is_nan}, {word} {quiet_nan}, {word} {rounded}")
        short = self.w.value(f"trunc {word} {chosen} to {self.kind('i16')}")
        return self.w.value(f"bitcast {self.kind('i16')} {short} to {self.kind('bfloat')}")

    def _to_odd(self, value: str) -> str:
        """Emit the conversion of `value`, the LLVM name of an f64, to f32 with rounding to odd; return the LLVM name of
        the f32.

        Rounding to odd truncates an inexact result and sets its last bit. Rounding it again to f16 then equals rounding
        the f64 once.
        """
        near, wide, word = self.cast(value, dtypes.f64, dtypes.f32), self.kind("double"), self.kind("i32")
        back = self.cast(near, dtypes.f32, dtypes.f64)
        differs = self.w.value(f"fcmp one {wide} {back}, {value}")
        magnitudes = [self._call("fabs", [v], dtypes.f64) for v in (back, value)]
        rounded_up = self.w.value(f"fcmp ogt {wide} {magnitudes[0]}, {magnitudes[1]}")
        bits = self.w.value(f"bitcast {self.kind('float')} {near} to {word}")
        one = self.w.value(f"zext {self.kind('i1')} {rounded_up} to {word}")
        odd = self.w.value(f"or {word} {self.w.value(f'sub {word} {bits}, {one}')}, {self.number(1, dtypes.i32)}")
        chosen = self.w.value(f"select {self.kind('i1')} {differs}, {word} {odd}, {word} {bits}")
        return self.w.value(f"bitcast {word} {chosen} to {self.kind('float')}")


def _whole(text: str) -> int:
    """Return the integer written in `text`, the digits of a number; a point or an exponent is truncated.

    >>> _whole("12"), _whole("1.75")
    (12, 1)
    """
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _unsigned(kind: DType) -> bool:
    """True if the element type `kind` is bool or an unsigned integer type."""
    return kind is dtypes.bool_ or kind.numpy.kind == "u"
