"""A problem as commands work on it: its kernel, its plan, its data and what should come out.

Images and outputs have their channels last, as in NHWC, weights too, as in FRSC; a matrix product takes both factors as
rows of numbers, a batch of them one after another.
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
    """The element types of both factors and of the result that --dt names.

    One type stands for all three; sums of integers are the result themselves. Three are written as u8:s8:s32.

    >>> read_types("bf16"), read_types("s8"), read_types("bf16:bf16:f32")
    (('bf16', 'bf16', 'bf16'), ('s8', 's8', 's32'), ('bf16', 'bf16', 'f32'))
    """
    kinds = [dtype(name) for name in text.split(":")]
    if len(kinds) == 1:
        (kind,) = kinds
        return kind.name, kind.name, "s32" if kind.is_integer else kind.name
    if len(kinds) != 3:
        raise ProblemError(f"--dt {text}: one type, or three as in u8:s8:s32")
    return kinds[0].name, kinds[1].name, kinds[2].name


def read_workload(problem: Problem, dt: str) -> Workload:
    """A problem with the types that --dt names: those of `read_types`; or tf32, which is f32 rounded to that; or
    f16sums, which is f16 summed in f16.

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
    """The convolution or, where it begins with a digit, the matrix product that the text writes."""
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
    """To what factors of f32 are rounded: tf32, or nothing."""
    accumulate: str | None = None
    """In what products of f16 are summed: f16, or as usual."""

    @property
    def names(self) -> tuple[str, ...]:
        """The element types as kernels call them."""
        return tuple(_NAMES.get(name, name) for name in self.types)

    @property
    def dt(self) -> str:
        """The types as `--dt` says them."""
        if self.accumulate is not None:
            return F16_SUMS
        return ":".join(self.types) if self.precision is None else self.precision

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arguments, by name."""
        p = self.problem
        if isinstance(p, MatmulProblem):
            return {"a": p.src, "b": p.wei, "c": p.dst}
        n, c, *image = p.x_shape
        return {"x": (n, *image, c), "w": (p.oc, *p.k, p.ic_per_group), "y": (n, *p.o, p.oc)}

    @property
    def traced(self) -> Program:
        """The kernel's tile program."""
        program: Program = self.kernel[0].trace()
        return program

    @cached_property
    def kernel(self) -> tuple[Any, dict[str, int]]:
        """The kernel, and a number for each of its sizes."""
        return self._kernel()

    def _kernel(self) -> tuple[Any, dict[str, int]]:
        """(kernel, sizes by name)."""
        left, right, result = self.names
        if left != right:
            raise ArgumentError(f"factors of two types, {self.types[0]} and {self.types[1]}, are not handled yet")
        p = self.problem
        if any(0 in shape for shape in self.shapes.values()):
            raise ArgumentError(f"{p}: an extent is 0, there is nothing to compute")
        if isinstance(p, MatmulProblem):
            from tilewright.kernels.gemm import gemm

            batch, m = self._batches
            has = tuple("a" * (a == n) + "b" * (b == n) for a, b, n in batch)
            sizes = {"M": m, "K": p.k, "N": p.n, **{f"B{n}": axis[2] for n, axis in enumerate(batch)}}
            made = gemm("nn", left, result, batched=has, precision=self.precision, accumulate=self.accumulate)
            return made, sizes
        from tilewright.kernels.conv import IMAGE, conv

        ends = list(zip(p.p, p.p_right, strict=True))
        options: dict[str, Any] = {
            "stride": p.s,
            "dilation": p.dilation,
            "groups": p.groups,
            "precision": self.precision,
            "accumulate": self.accumulate,
        }
        kernel = conv(p.k, left, result, padding=ends, **options)
        sizes = {"N": p.mb, "F": p.oc, **{s.name: n for s, n in zip(IMAGE[-p.rank :], p.i, strict=True)}}
        sizes |= {"CG": p.ic_per_group} if p.groups > 1 else {"C": p.ic}
        return kernel, sizes

    @property
    def _batches(self) -> tuple[list[tuple[int, int, int]], int]:
        """(extents on the left, on the right and of the result for each batch axis, rows of a product).

        Axes of extent 1 are left out; where all products have one right factor, they are one product with more rows.
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
        """The kernel for a target, by the best plan or a given one; its second factor is constant.

        A property that is `required` of the plan and lacking is an error.
        """
        return self._compiled(plan, target=target, required=required)

    def planned(self, machine: Machine, plan: str | None = None) -> Compiled:
        """The kernel as a machine would do it, without machine code."""
        return self._compiled(plan, machine=machine)

    def _compiled(self, plan: str | None, **where: Any) -> Compiled:
        from tilewright.compiler.native import kernel_for

        kernel, sizes = self.kernel
        _, second, _ = self.shapes
        return kernel_for(kernel, sizes, plan=plan_text(plan), constant=[second], **where)

    def factors(self, kernel: Compiled) -> tuple[DType, DType]:
        """The element types that are multiplied: those of both factors, or what they are converted to first."""
        from tilewright.ir.dtypes import element_type

        atom = kernel.machine.multiply.get(kernel.plan.atom or "")
        if atom is not None:
            return atom.a.dtype, atom.b.dtype
        left, right = (element_type(_NAMES.get(name, name), "--dt") for name in self.types[:2])
        return left, right

    def arrays(self, rng: np.random.Generator, exact: bool) -> Arrays:
        """Both factors, with exact or with real data, and an output full of NaN (of the outermost integer)."""
        p = self.problem
        kinds = ":".join(self.types[:2])
        if exact:
            first, second = exact_data(p, kinds, rng, accumulator=self.accumulate or "", result=self.types[2])
        else:
            first, second = real_data(p, kinds, rng)
        if isinstance(p, ConvProblem):
            first = np.moveaxis(first, 1, -1)
            second = np.moveaxis(second.reshape(p.oc, p.ic_per_group, *p.k), 1, -1)
        a, b, out = self.shapes
        kind = dtype(self.types[2])
        poison = np.nan if not kind.is_integer else -kind.exact_limit - 1 if kind.signed else kind.exact_limit
        made = np.full(self.shapes[out], poison, kind.numpy)
        return {a: placed(first), b: placed(second), out: placed(made)}

    def reference(self, arrays: Arrays) -> Array:
        """What should come out, in float64 or exactly in integers."""
        p = self.problem
        first, second, _ = arrays.values()
        if isinstance(p, MatmulProblem):
            return matmul_reference(p, first, second)
        return conv_forward(p, first, second, x_layout="nxc", w_layout="oxi", y_layout="nxc")

    def bound(self, arrays: Arrays, exact: Array) -> Array:
        """How far a result of these real data may lie from the exact one."""
        size = self.reference({name: np.abs(array) for name, array in arrays.items()})
        if self.accumulate is not None:
            return nearest_bound(terms(self.problem), size, self.accumulate)
        adds_in = "s32" if dtype(self.types[0]).is_integer else "f64" if self.types[0] == "f64" else "f32"
        found = real_bound(terms(self.problem), size, exact, accumulator=adds_in, result=self.types[2])
        return found if self.precision is None else found + size * 2.0**-9  # each factor keeps ten bits of fraction

    def check(self, kernel: Compiled, rng: np.random.Generator) -> Checks:
        """Runs the kernel on exact and on real data, and compares."""
        arrays = self.arrays(rng, exact=True)
        *_, out = arrays.values()
        kernel.bind(arrays)()
        wanted = self.reference(arrays).astype(out.dtype)
        wrong = int(np.count_nonzero(out != wanted))
        arrays = self.arrays(rng, exact=False)
        *_, out = arrays.values()
        kernel.bind(arrays)()
        exact = self.reference(arrays)
        if dtype(self.types[2]).is_integer:
            share = float(np.count_nonzero(out != exact.astype(out.dtype)) > 0) * 2
        else:
            error = np.abs(out.astype(np.float64) - exact)
            share = float(np.max(error / self.bound(arrays, exact))) if np.isfinite(error).all() else np.inf
        return Checks(out.size, wrong, share)


@dataclass(frozen=True)
class Checks:
    """Elements in all, elements that differ on exact data, and the largest error on real data as a share of its
    bound.
    """

    count: int
    wrong: int
    share: float

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return self.wrong == 0 and self.share <= 1

    def lines(self) -> list[str]:
        """The outcome in words."""
        exact = f"all {self.count} elements are equal" if not self.wrong else f"{self.wrong} of {self.count} differ"
        real = f"the largest error is {self.share:.2g} of its bound"
        return [f"exact data: {exact}", f"real data:  {real}{'' if self.share <= 1 else ': too large'}"]


def plan_text(plan: str | None) -> str | None:
    """The plan that --plan gives: its text, or @ and the file that holds it."""
    if plan is not None and plan.startswith("@"):
        plan = read_text(Path(plan[1:]), "the plan")
    if plan is not None and not plan.strip():
        raise ArgumentError("the plan is empty: `show --level plan` prints one")
    return plan


def known_target(target: str) -> None:
    """Refuses a target that there is not."""
    from tilewright.targets.names import GPU, INTERPRETER
    from tilewright.targets.registry import check_target

    check_target(target, (INTERPRETER, GPU))
