"""A problem as commands work on it: its kernel, its plan, its data and what should come out.

Images and outputs have their channels last, as in NHWC, weights too, as in FRSC; a matrix product takes both factors as
rows of numbers, a batch of them one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import ArgumentError, ProblemError
from tilewright.problems import (
    ConvProblem,
    MatmulProblem,
    Problem,
    conv_forward,
    dtype,
    exact_data,
    matmul_reference,
    parse_conv,
    parse_matmul,
    real_bound,
    real_data,
    terms,
)
from tilewright.runtime.arrays import placed

if TYPE_CHECKING:
    from tilewright.compiler.contraction import ContractionKernel
    from tilewright.machine import Machine
    from tilewright.plan.contraction import Contraction

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]
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

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arguments, by name."""
        p = self.problem
        if isinstance(p, MatmulProblem):
            return {"a": p.src, "b": p.wei, "c": p.dst}
        n, c, *image = p.x_shape
        return {"x": (n, *image, c), "w": (p.oc, *p.k, p.ic_per_group), "y": (n, *p.o, p.oc)}

    @cached_property
    def traced(self) -> tuple[Any, dict[Any, int]]:
        """The kernel's tile program, and a number for each of its sizes."""
        from tilewright.algebra.expr import Symbol
        from tilewright.compiler.kernels import resolve

        kernel, sizes = self._kernel()
        program = kernel.trace()
        named = {s.name: s for a in program.args for d in a.type.dims for s in d.symbols if isinstance(s, Symbol)}
        known = {**program.bindings, **{named[name]: value for name, value in sizes.items()}}
        return program, {s: int(e) for s, e in resolve(known).items()}

    def _kernel(self) -> tuple[Any, dict[str, int]]:
        """(kernel, sizes by name)."""
        left, right, result = (_NAMES.get(name, name) for name in self.types)
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
            return gemm("nn", left, result, batched=has), sizes
        from tilewright.kernels.conv import IMAGE, conv

        ends = list(zip(p.p, p.p_right, strict=True))
        kernel = conv(p.k, left, result, stride=p.s, padding=ends, dilation=p.dilation, groups=p.groups)
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

    @cached_property
    def contraction(self) -> Contraction:
        """The contraction that the kernel is."""
        from tilewright.plan.contraction import recognise

        program, sizes = self.traced
        found = recognise(program, sizes)
        if isinstance(found, str):
            raise ArgumentError(f"{program.name}: {found}")
        return found

    def compiled(self, plan: str | None = None, target: str = "cpu") -> ContractionKernel:
        """The kernel's machine code for a target, by the best plan or a given one."""
        from tilewright.compiler.contraction import ContractionKernel

        return ContractionKernel(self.contraction, _plan_text(plan), target)

    def planned(self, machine: Machine, plan: str | None = None) -> ContractionKernel:
        """The kernel as a machine would do it, without machine code."""
        from tilewright.compiler.contraction import ContractionKernel

        return ContractionKernel(self.contraction, _plan_text(plan), machine=machine)

    def arrays(self, rng: np.random.Generator, exact: bool) -> Arrays:
        """Both factors, with exact or with real data, and an output full of NaN (of the outermost integer)."""
        p = self.problem
        kinds = ":".join(self.types[:2])
        if exact:
            first, second = exact_data(p, kinds, rng, result=self.types[2])
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
        adds_in = "s32" if dtype(self.types[0]).is_integer else "f64" if self.types[0] == "f64" else "f32"
        return real_bound(terms(self.problem), size, exact, accumulator=adds_in, result=self.types[2])

    def check(self, kernel: ContractionKernel, rng: np.random.Generator, target: str = "cpu") -> Checks:
        """Runs the kernel on exact and on real data, and compares."""
        arrays = self.arrays(rng, exact=True)
        *_, out = arrays.values()
        launch_on(target, kernel, arrays)()
        wanted = self.reference(arrays).astype(out.dtype)
        wrong = int(np.count_nonzero(out != wanted))
        arrays = self.arrays(rng, exact=False)
        *_, out = arrays.values()
        launch_on(target, kernel, arrays)()
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


def _plan_text(plan: str | None) -> str | None:
    """The plan that --plan gives: its text, or @ and the file that holds it."""
    if plan is not None and plan.startswith("@"):
        try:
            plan = Path(plan[1:]).read_text()
        except OSError as fault:
            raise ArgumentError(f"the plan {plan} cannot be read: {fault.strerror}") from None
    if plan is not None and not plan.strip():
        raise ArgumentError("the plan is empty: `show --level plan` prints one")
    return plan


def known_target(target: str) -> None:
    """Refuses a target that there is not."""
    from tilewright.compiler.text import INTERPRETER
    from tilewright.targets.registry import check_target

    check_target(target, (INTERPRETER,))


def launch_on(target: str, kernel: ContractionKernel, arrays: Arrays) -> Callable[[], Any]:
    """The kernel bound to arrays on a target: machine code, or its block programs on the interpreter."""
    from tilewright.compiler.host import host_text
    from tilewright.compiler.text import compile_text
    from tilewright.targets.registry import is_native

    known_target(target)
    if is_native(target):
        return kernel.bind(arrays)
    made = compile_text(host_text(kernel), target)
    c = kernel.contraction
    shapes = {o.name: o.shape for o in (c.a, c.b, c.out, *c.extras)}
    named = [a.name or "" for a in made.main.args]
    launch: Callable[[], Any] = made.bind(*[arrays[name].reshape(shapes[name]) for name in named])
    return launch
