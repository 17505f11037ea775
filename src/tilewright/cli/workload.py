"""A problem as the commands use it: its kernel and plan, its data, and its expected results.

Tensors are channels-last: images and outputs NHWC, weights FRSC. Both operands of a GEMM are row-major; a batch of them
is contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.cli.printing import read_text
from tilewright.compiler.required import Required
from tilewright.errors import ArgumentError, ProblemError
from tilewright.problems import (
    ConvProblem,
    MatmulProblem,
    Problem,
    conv_forward,
    dtype,
    exact_data,
    matmul_reference,
    nearest_bound,
    parse_conv,
    parse_matmul,
    real_bound,
    real_data,
    terms,
)
from tilewright.runtime.arrays import placed

if TYPE_CHECKING:
    from tilewright.compiler.compiled import Compiled
    from tilewright.ir.core import Program
    from tilewright.ir.dtypes import DType
    from tilewright.machine import Machine

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]
TF32 = "tf32"
F16_SUMS = "f16sums"
_NAMES = {"s8": "i8", "s32": "i32", "s64": "i64"}


def read_types(text: str) -> tuple[str, str, str]:
    """Return the element types (left operand, right operand, result) that `text`, a value of `--dt`, names.

    One type stands for all three, except that integers have an s32 result. Three types are separated by colons:
    u8:s8:s32. Raise `ProblemError` for an unknown type or another number of types.

    >>> read_types("bf16"), read_types("s8"), read_types("bf16:bf16:f32")
    (('bf16', 'bf16', 'bf16'), ('s8', 's8', 's32'), ('bf16', 'bf16', 'f32'))
    """
    dtypes = [dtype(name) for name in text.split(":")]
    if len(dtypes) == 1:
        (only,) = dtypes
        return only.name, only.name, "s32" if only.is_integer else only.name
    if len(dtypes) != 3:
        raise ProblemError(f"--dt {text}: one type, or three as in u8:s8:s32")
    return dtypes[0].name, dtypes[1].name, dtypes[2].name


def read_workload(problem: Problem, dt: str) -> Workload:
    """Return a Workload: `problem` with the element types that the text `dt` names.

    `dt` is as in `read_types`, or "tf32" (f32 with operands rounded to tf32), or "f16sums" (f16 accumulated in f16).

    >>> read_workload(parse_matmul("2x3:3x4"), "tf32").precision
    'tf32'
    >>> read_workload(parse_matmul("2x3:3x4"), "f16sums").accumulate
    'f16'
    """
    if dt == F16_SUMS:
        return Workload(problem, ("f16", "f16", "f16"), accumulate="f16")
    if dt == TF32:
        return Workload(problem, ("f32", "f32", "f32"), TF32)
    return Workload(problem, read_types(dt))


def read_problem(text: str) -> Problem:
    """Return the problem that `text` describes: a GEMM if `text` begins with a digit, such as 128x64:64x96; otherwise a
    convolution, such as mb1ic64ih56oc64oh56kh3ph1.
    """
    return parse_matmul(text) if text[:1].isdigit() else parse_conv(text)


@dataclass(frozen=True)
class Workload:
    """A problem with its element types.

    >>> work = Workload(parse_conv("mb1ic3ih5oc4kh3ph1"), ("f32", "f32", "f32"))
    >>> work.shapes["x"], work.shapes["w"], work.shapes["y"]
    ((1, 5, 5, 3), (4, 3, 3, 3), (1, 5, 5, 4))
    """

    problem: Problem
    types: tuple[str, str, str]
    precision: str | None = None
    """"tf32" if f32 operands are rounded to tf32, otherwise None."""
    accumulate: str | None = None
    """"f16" if f16 products are accumulated in f16, otherwise None (f32)."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names (left operand, right operand, result) of the element types in kernels: those of `types`, with i
        instead of s for integers (i8 for s8).
        """
        return tuple(_NAMES.get(name, name) for name in self.types)

    @property
    def dt(self) -> str:
        """The element types as `--dt` writes them: "f16sums", "tf32", or three such as "bf16:bf16:f32"."""
        if self.accumulate is not None:
            return F16_SUMS
        return ":".join(self.types) if self.precision is None else self.precision

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{argument name: shape}: operands `a`, `b` and result `c` of a GEMM; image `x`, weights `w` and result `y`
        of a convolution.
        """
        p = self.problem
        if isinstance(p, MatmulProblem):
            return {"a": p.src, "b": p.wei, "c": p.dst}
        n, c, *image = p.x_shape
        return {"x": (n, *image, c), "w": (p.oc, *p.k, p.ic_per_group), "y": (n, *p.o, p.oc)}

    @property
    def traced(self) -> Program:
        """The tile program of the problem's kernel, traced anew."""
        program: Program = self.kernel[0].trace()
        return program

    @cached_property
    def kernel(self) -> tuple[Any, dict[str, int]]:
        """The kernel that computes the problem, with the sizes to compile it for: (kernel, {size name: number}). The
        pair is cached.
        """
        return self._make_kernel()

    def _make_kernel(self) -> tuple[Any, dict[str, int]]:
        """Return (kernel, {size name: number}): a GEMM or convolution kernel for this problem, not compiled, and the
        sizes to compile it for. Raise `ArgumentError` if the operand types differ, if an extent is 0, or if both
        operands of a GEMM are repeated along a batch axis.
        """
        left, right, result = self.names
        if left != right:
            raise ArgumentError(f"factors of two types, {self.types[0]} and {self.types[1]}, are not handled yet")
        p = self.problem
        if any(0 in shape for shape in self.shapes.values()):
            raise ArgumentError(f"{p}: an extent is 0, there is nothing to compute")
        if isinstance(p, MatmulProblem):
            from tilewright.kernels.gemm import gemm

            batch, m = self._batch_axes
            batched = tuple("a" * (a == n) + "b" * (b == n) for a, b, n in batch)
            sizes = {"M": m, "K": p.k, "N": p.n, **{f"B{n}": axis[2] for n, axis in enumerate(batch)}}
            gemm_kernel = gemm(
                "nn", left, result, batched=batched, precision=self.precision, accumulate=self.accumulate
            )
            return gemm_kernel, sizes
        from tilewright.kernels.conv import IMAGE, conv

        padding = list(zip(p.p, p.p_right, strict=True))
        options: dict[str, Any] = {
            "stride": p.s,
            "dilation": p.dilation,
            "groups": p.groups,
            "precision": self.precision,
            "accumulate": self.accumulate,
        }
        kernel = conv(p.k, left, result, padding=padding, **options)
        sizes = {"N": p.mb, "F": p.oc, **{s.name: n for s, n in zip(IMAGE[-p.rank :], p.i, strict=True)}}
        sizes |= {"CG": p.ic_per_group} if p.groups > 1 else {"C": p.ic}
        return kernel, sizes

    @property
    def _batch_axes(self) -> tuple[list[tuple[int, int, int]], int]:
        """The batch axes and M of a GEMM: ([(extent in A, extent in B, extent in the result) for each batch axis], M).

        Axes of extent 1 are left out. If B, and only B, is repeated along all axes, the list is empty, and M is the
        total number of rows of all GEMMs. Raise `ArgumentError` if both operands are repeated along an axis.
        """
        p = self.problem
        assert isinstance(p, MatmulProblem)
        axes = [axis for axis in zip(p.src[:-2], p.wei[:-2], p.batch, strict=True) if axis[2] != 1]
        if all(a == n and b == 1 for a, b, n in axes):
            return [], p.m * prod(p.batch)
        for n, (a, b, result) in enumerate(axes):
            if a == b == 1:
                raise ArgumentError(
                    f"{p}: both factors are repeated {result} times along batch axis {n}: compute it once"
                )
        return axes, p.m

    def compiled(self, plan: str | None = None, target: str = "cpu", required: Required = Required.NOTHING) -> Compiled:
        """Return the problem's kernel compiled for `target`. Its second operand is constant (packed once).

        `plan` is the text of the plan, or @FILE (None: the best plan). `required` has the properties that the plan must
        have, such as Required.FAST; raise `NoAtoms` or `SlowPlan` if the plan lacks one.
        """
        return self._kernel_for(plan, target=target, required=required)

    def planned(self, machine: Machine, plan: str | None = None) -> Compiled:
        """Return the problem's kernel planned for `machine`, without machine code. Its second operand is constant
        (packed once). `plan` is the text of the plan, or @FILE (None: the best plan).
        """
        return self._kernel_for(plan, machine=machine)

    def _kernel_for(self, plan: str | None, **target_options: Any) -> Compiled:
        """Return the problem's kernel, compiled or only planned, with a constant second operand (packed once). `plan`
        is the text of the plan, or @FILE (None: the best plan); `target_options` are the other options of `kernel_for`,
        such as `target` or `machine`.
        """
        from tilewright.compiler.native import kernel_for

        kernel, sizes = self.kernel
        _, second_operand, _ = self.shapes
        return kernel_for(kernel, sizes, plan=plan_text(plan), constant=[second_operand], **target_options)

    def factors(self, kernel: Compiled) -> tuple[DType, DType]:
        """Return the element types (of A, of B) of the multiplication atom that the compiled `kernel` uses.

        They differ from the problem's types if operands are converted first. If the plan has no atom, return the
        problem's types.
        """
        from tilewright.ir.dtypes import element_type

        atom = kernel.machine.multiply.get(kernel.plan.atom or "")
        if atom is not None:
            return atom.a.dtype, atom.b.dtype
        left, right = (element_type(_NAMES.get(name, name), "--dt") for name in self.types[:2])
        return left, right

    def arrays(self, rng: np.random.Generator, exact: bool) -> Arrays:
        """Return {argument name: array} for the kernel: random operands drawn from `rng`, and a result filled with NaN,
        or with an extreme value for integers.

        With `exact`, the operands are small integers, of which sums have no rounding error; otherwise they are real
        numbers.
        """
        p = self.problem
        operand_types = ":".join(self.types[:2])
        if exact:
            first, second = exact_data(p, operand_types, rng, accumulator=self.accumulate or "", result=self.types[2])
        else:
            first, second = real_data(p, operand_types, rng)
        if isinstance(p, ConvProblem):
            first = np.moveaxis(first, 1, -1)
            second = np.moveaxis(second.reshape(p.oc, p.ic_per_group, *p.k), 1, -1)
        a, b, out = self.shapes
        result_type = dtype(self.types[2])
        poison = (
            np.nan
            if not result_type.is_integer
            else -result_type.exact_limit - 1
            if result_type.signed
            else result_type.exact_limit
        )
        result = np.full(self.shapes[out], poison, result_type.numpy)
        return {a: placed(first), b: placed(second), out: placed(result)}

    def reference(self, arrays: Arrays) -> Array:
        """Return the expected result for the operands in `arrays` ({argument name: array}): in float64, or exactly for
        integers. The result in `arrays` is not read.
        """
        p = self.problem
        first, second, _ = arrays.values()
        if isinstance(p, MatmulProblem):
            return matmul_reference(p, first, second)
        return conv_forward(p, first, second, x_layout="nxc", w_layout="oxi", y_layout="nxc")

    def bound(self, arrays: Arrays, exact: Array) -> Array:
        """Return an array with the largest error that rounding explains for each element of the result. `arrays` is
        {argument name: array}, `exact` the reference result for these operands.
        """
        magnitude = self.reference({name: np.abs(array) for name, array in arrays.items()})
        if self.accumulate is not None:
            return nearest_bound(terms(self.problem), magnitude, self.accumulate)
        accumulator = "s32" if dtype(self.types[0]).is_integer else "f64" if self.types[0] == "f64" else "f32"
        error_bound = real_bound(terms(self.problem), magnitude, exact, accumulator=accumulator, result=self.types[2])
        # tf32 operands keep ten bits of fraction each.
        return error_bound if self.precision is None else error_bound + magnitude * 2.0**-9

    def check(self, kernel: Compiled, rng: np.random.Generator) -> Checks:
        """Run the compiled `kernel` on exact and on real data drawn from `rng`, compare the results with the reference,
        and return the outcome.
        """
        arrays = self.arrays(rng, exact=True)
        *_, out = arrays.values()
        kernel.bind(arrays)()
        expected = self.reference(arrays).astype(out.dtype)
        wrong_count = int(np.count_nonzero(out != expected))
        arrays = self.arrays(rng, exact=False)
        *_, out = arrays.values()
        kernel.bind(arrays)()
        exact = self.reference(arrays)
        if dtype(self.types[2]).is_integer:
            error_share = float(np.count_nonzero(out != exact.astype(out.dtype)) > 0) * 2
        else:
            error = np.abs(out.astype(np.float64) - exact)
            error_share = float(np.max(error / self.bound(arrays, exact))) if np.isfinite(error).all() else np.inf
        return Checks(out.size, wrong_count, error_share)


@dataclass(frozen=True)
class Checks:
    """The outcome of a check: `count` elements, of which `wrong` are wrong on exact data; `share` is the largest error
    on real data, divided by its bound.
    """

    count: int
    wrong: int
    share: float

    @property
    def passed(self) -> bool:
        """True if no element was wrong on exact data and no error on real data exceeded its bound."""
        return self.wrong == 0 and self.share <= 1

    def lines(self) -> list[str]:
        """Return the outcome as two lines of text: one for exact data, one for real data."""
        exact = f"all {self.count} elements are equal" if not self.wrong else f"{self.wrong} of {self.count} differ"
        real = f"the largest error is {self.share:.2g} of its bound"
        return [f"exact data: {exact}", f"real data:  {real}{'' if self.share <= 1 else ': too large'}"]


def plan_text(plan: str | None) -> str | None:
    """Return the plan text that `plan`, a value of `--plan`, names: the text itself, or the contents of FILE for
    `@FILE`; None stays None. Raise `ArgumentError` if the text is empty or the file cannot be read.
    """
    if plan is not None and plan.startswith("@"):
        plan = read_text(Path(plan[1:]), "the plan")
    if plan is not None and not plan.strip():
        raise ArgumentError("the plan is empty: `show --level plan` prints one")
    return plan


def known_target(target: str) -> None:
    """Raise `ArgumentError` unless the text `target` names a target of the compiler, or the interpreter."""
    from tilewright.targets.names import GPU, INTERPRETER
    from tilewright.targets.registry import check_target

    check_target(target, (INTERPRETER, GPU))
