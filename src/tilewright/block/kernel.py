"""Block kernels: `@tb.kernel(machine, waves=...)` on a Python function, whose tracing gives a block program."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_text import parse_expr
from tilewright.block.pictures import TensorPicture, operand_picture, picture_in
from tilewright.block.tensor import Tensor
from tilewright.block.tracing import Trace, number
from tilewright.errors import ArgumentError, ParseError, ProgramError
from tilewright.ir.attrs import attr_text
from tilewright.ir.binding import allowed, bind
from tilewright.ir.core import Program, building
from tilewright.ir.dtypes import DType, DTypeLike, element_type
from tilewright.ir.location import author_location, of_function
from tilewright.ir.pickling import FoundByName
from tilewright.ir.tensors import TensorType
from tilewright.ir.verifier import verify
from tilewright.lang.annotations import evaluated_annotations
from tilewright.limits import did_you_mean, written
from tilewright.machine import Machine, UnknownName
from tilewright.runtime.calls import named_values
from tilewright.targets.registry import machine as machine_named


class Argument:
    """Declaration of a tensor argument in global memory.

    `kind` is its element type: a type, its name ("f16"), or the name of a parameter that holds it ("T"). Each of `dims`
    and `strides` is an integer or a text such as "M" or "N*P*Q".
    """

    role = ""

    def __init__(self, kind: DTypeLike, *dims: Any, strides: Sequence[Any] | None = None):
        self.kind, self.dims, self.strides = kind, dims, strides

    def dtype(self, values: Mapping[str, Any]) -> DType:
        """Return the element type of this argument. `values` is {parameter name: value}: the declared type may be the
        name of a parameter that holds the type.
        """
        return element_type(values.get(self.kind, self.kind) if isinstance(self.kind, str) else self.kind)


class In(Argument):
    """Declaration of an argument that is only read."""

    role = "in"


class Out(Argument):
    """Declaration of an argument of which every element is written."""

    role = "out"


class InOut(Argument):
    """Declaration of an argument that is read and written."""

    role = "inout"


@dataclass(frozen=True)
class Size:
    """Declaration of a parameter that stays symbolic until the call, unless it is given: a multiple of `step` with `lo`
    <= value < `hi`.
    """

    lo: int
    hi: int
    step: int = 1

    def symbol(self, name: str) -> Symbol:
        """Return a symbol called `name` with the range and step of this size; it stands for the parameter while the
        kernel is traced.

        Raise an ArgumentError if the range is empty, contains negative numbers, or does not start at a multiple of the
        step, or if the step is below 1.
        """
        if self.lo < 0 or self.hi <= self.lo or self.step < 1 or self.lo % self.step:
            raise ArgumentError(
                f"{name}: Size({self.lo}, {self.hi}, {self.step}): a range holds numbers from 0 on, at least one, and "
                "starts at a multiple of its step"
            )
        return symbol(name, self.lo, self.hi - 1, multiple_of=self.step)


@dataclass(frozen=True)
class Let:
    """Declaration of a parameter computed from the parameters before it: `P: tb.Let("H + 2*PAD - R + 1")`."""

    text: str


class BlockKernel(FoundByName):
    """A block kernel before it is compiled; `tilewright.compile(kernel, params)` makes it callable."""

    def __init__(
        self,
        function: Callable[..., Any],
        machine: str | None,
        counts: Mapping[str, Any],
        launch: str | None,
        frame: Any,
    ):
        self.function, self.machine, self.counts, self.launch = function, machine, counts, launch
        self.annotations = evaluated_annotations(function, frame)
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__module__, self.__doc__ = function.__module__, function.__doc__

    def trace(self, params: Mapping[str, Any] | None = None, **named: Any) -> Program:
        """Call the Python function on symbolic tensors and return the verified block program of the operations that it
        emits.

        `params` and the keywords `named` are values of the kernel's parameters, by name; `named` wins. A `Size` without
        a value stays symbolic. Raise an ArgumentError for an unknown parameter, a parameter without a value, or a value
        that is not in the range of its `Size`.
        """
        bindings = {} if params is None else named_values(params, "params", "{'M': 64}")
        values = self._values({**bindings, **named})
        opened = [v for v in values.values() if isinstance(v, Symbol)]
        with Trace(self._machine(), values) as trace, building():
            if self.machine is not None:
                trace.builder.record("machine", {"name": self.machine})
            if opened:
                trace.builder.record("param", {"parameters": tuple((s, None) for s in opened)})
            for word, count in self.counts.items():
                if count is not None:
                    trace.builder.record(word, {"count": number(self._sized(count, values), word)})
            if self.launch is not None:
                trace.builder.record("launch", {"how": self.launch})
            self.function(*self._arguments(trace, values), **values)
            trace.finished()
        program = trace.builder.program(self.__name__, loc=of_function(self.function))
        verify(program)
        return program

    def parameters(self) -> dict[str, Any]:
        """Return {parameter name: default} of the kernel; the entry is None for a parameter without a default.

        The entry of a `Size` is the range of its allowed values, even if it also has a default. A `Let` is left out.
        """
        defaults: dict[str, Any] = {}
        for name, parameter in self._keywords().items():
            kind = self.annotations.get(name)
            if isinstance(kind, Size):
                defaults[name] = allowed(kind.symbol(name))
            elif not isinstance(kind, Let):
                defaults[name] = None if parameter.default is parameter.empty else parameter.default
        return defaults

    def draw(self, tensor: str, params: Mapping[str, Any] | None = None, **named: Any) -> TensorPicture:
        """Return a picture of the kernel's tensor called `tensor` in the program's text; a notebook displays it.

        The picture of registers shows the thread that holds each element; the picture of memory shows offsets and, for
        shared memory, banks. `tensor` may also name an operand of an atom of the machine:
        `kernel.draw("mfma.32x32x8.f16.a")`. Otherwise the kernel is traced with the parameter values in `params` and
        `named`. Raise an ArgumentError if `tensor` is no text, a ProgramError if there is no tensor of this name.
        """
        if not isinstance(tensor, str):
            raise ArgumentError(
                f"tensor={written(tensor, 80)}: the name of a tensor of {self.__name__}, or of an operand"
            )
        machine = self._machine()
        atom, _, operand = tensor.rpartition(".")
        if machine is not None and atom in machine.multiply and operand in ("a", "b", "c"):
            return operand_picture(tensor, getattr(machine.multiply[atom], operand))
        return picture_in(bind(self.trace(params, **named)), tensor, machine)

    # -- parameters and arguments ---------------------------------------------------------------------

    def _machine(self) -> Machine | None:
        """Return the machine that `@tb.kernel` names; None if it names none. Raise a ProgramError if the name is
        unknown.
        """
        try:
            return None if self.machine is None else machine_named(self.machine)
        except UnknownName as fault:
            raise ProgramError(str(fault), of_function(self.function)) from None

    def _keywords(self) -> dict[str, inspect.Parameter]:
        """Return {name: parameter} of the Python function's keyword-only parameters, which are the parameters of the
        kernel.
        """
        signature = inspect.signature(self.function).parameters
        return {n: p for n, p in signature.items() if p.kind is p.KEYWORD_ONLY}

    def _values(self, bindings: dict[str, Any]) -> dict[str, Any]:
        """Return {parameter name: value} for all parameters of the kernel, in order; `_value` computes each value.

        `bindings` is {parameter name: value} from the caller. Raise an ArgumentError if it has an unknown parameter or
        a `Let`.
        """
        parameters = self._keywords()
        settable = [n for n in parameters if not isinstance(self.annotations.get(n), Let)]
        for name in bindings:
            if name not in settable:
                hint = did_you_mean(name, settable)
                raise ArgumentError(
                    f"params: {self.__name__} has no parameter {name}; it has {', '.join(settable) or 'none'}{hint}"
                )
        values: dict[str, Any] = {}
        for name, parameter in parameters.items():
            values[name] = self._value(name, parameter, bindings, values)
        return values

    def _value(self, name: str, parameter: inspect.Parameter, bindings: dict[str, Any], before: dict[str, Any]) -> Any:
        """Return the value of the parameter `name`.

        A `Let` is computed from `before`, {name: value} of the parameters declared before it. Any other parameter has
        the caller's value in `bindings`, otherwise the default of `parameter`, otherwise, for a `Size`, a symbol. Raise
        an ArgumentError if none of these exists, or if the caller's value is not in the range of the `Size`.
        """
        kind = self.annotations.get(name)
        if isinstance(kind, Let):
            return self._sized(kind.text, before)
        if name in bindings:
            value = bindings[name]
            if isinstance(kind, Size):
                size = kind.symbol(name)
                if isinstance(value, bool) or not isinstance(value, int) or value not in allowed(size):
                    text = attr_text("parameters", ((size, None),))
                    raise ArgumentError(f"params: {name} = {value!r}; {self.__name__} takes {text}")
            return value
        if parameter.default is not parameter.empty:
            return parameter.default
        if isinstance(kind, Size):
            return kind.symbol(name)
        raise ArgumentError(f"params: {self.__name__} needs a value for {name}")

    def _sized(self, size: Any, values: dict[str, Any]) -> Any:
        """Return the value of `size`: a text such as "M + 1" becomes an int if it is constant, otherwise an expression.
        A number or an expression is returned unchanged.

        `values` is {parameter name: value}. Raise a ProgramError if the text cannot be parsed.
        """
        if not isinstance(size, str):
            return size
        numbers = {n: as_expr(v) for n, v in values.items() if isinstance(v, int | Expr) and not isinstance(v, bool)}
        try:
            parsed = parse_expr(size, numbers)
        except ParseError as fault:
            raise ProgramError(f"{self.__name__}: {fault}", of_function(self.function)) from None
        return int(parsed) if parsed.is_constant else parsed

    def _arguments(self, trace: Trace, values: dict[str, Any]) -> list[Tensor]:
        """Declare each positional parameter of the Python function as an argument of the program that `trace` builds,
        and return the arguments as tensors, in order.

        `values` is {parameter name: value} for shapes and strides. Raise a ProgramError if an annotation is not In, Out
        or InOut, or if the number of strides is not the number of dimensions.
        """
        tensors = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                continue
            kind = self.annotations.get(name)
            if not isinstance(kind, Argument):
                raise ProgramError(
                    f"argument {name} of the kernel {self.__name__} has the type {kind!r}; it must be tb.In(...), "
                    "tb.Out(...) or tb.InOut(...), and parameters stand after a *",
                    of_function(self.function),
                )
            shape = tuple(number(self._sized(d, values), f"{name}: a size") for d in kind.dims)
            strides = None
            if kind.strides is not None:
                if len(kind.strides) != len(shape):
                    raise ProgramError(
                        f"{name}: {len(kind.strides)} strides for {len(shape)} dimensions", of_function(self.function)
                    )
                strides = tuple(number(self._sized(d, values), f"{name}: a stride") for d in kind.strides)
            type_ = TensorType("global", kind.dtype(values), shape, strides, role=kind.role)
            tensors.append(Tensor(trace.argument(name, type_)))
        return tensors

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Raise a ProgramError: a kernel must be compiled before it is called."""
        raise ProgramError(
            f"the kernel {self.__name__} is not compiled: tilewright.compile({self.__name__}, params) gives what can "
            "be called",
            author_location(),
        )

    def __repr__(self) -> str:
        return f"<block kernel {self.__name__}>"


def kernel(
    machine: str | None = None, *, waves: Any = None, cluster: Any = None, launch: str | None = None
) -> Callable[[Callable[..., Any]], BlockKernel]:
    """Return a decorator that turns a Python function into a `BlockKernel` for the machine named `machine`, with
    `waves` waves in a workgroup.

    `cluster` is the number of workgroups that run together and can share loads (`copy(..., multicast=True)`);
    `launch="programmatic"` lets a launch begin while the previous launch ends. The function's positional arguments are
    tensors in global memory. Its parameters follow a `*`; while the function is traced they are Python values, or
    symbols for sizes that stay open (known only at the call).

    >>> import tilewright.block as tb
    >>> @tb.kernel()
    ... def double(x: tb.In("f32", "M", "N"), y: tb.Out("f32", "M", "N"), *, M: tb.Size(1, 65536), N=16):
    ...     for m in tb.tasks(M):
    ...         row, to = x[m, :], y[m, :]
    ...         to[...] = row + row
    >>> print(double.trace(), end="")
    block double(%x: in global f32 (M, 16), %y: out global f32 (M, 16))
      param M in 1..65536
    {
      tasks m in 0..M {
        %row = view %x (i 16) -> [m, i]
        %to = view %y (i 16) -> [m, i]
        map %to = %row + %row
      }
    }
    """

    def decorate(function: Callable[..., Any]) -> BlockKernel:
        """Return `function` as a block kernel with the decorator's settings."""
        return BlockKernel(function, machine, {"waves": waves, "cluster": cluster}, launch, sys._getframe(1))

    return decorate
