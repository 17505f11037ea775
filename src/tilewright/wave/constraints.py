"""Constraints: how an author says that work is cut. Meaning for grid programs, hints for logical ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tilewright.algebra.expr import ZERO, Expr, ExprLike, Symbol, as_expr
from tilewright.errors import OutOfScope
from tilewright.ir.attrs import plain_attrs
from tilewright.ir.core import Op
from tilewright.ir.location import author_location
from tilewright.ir.tile import TILE
from tilewright.lang.symbols import WORKGROUPS


def _record(name: str, **attrs: Any) -> Op:
    spec = TILE.records[name]
    return Op(spec, (), plain_attrs(spec.attrs, {k: v for k, v in attrs.items() if v is not None}))


def elements_of_a_thread(what: str, of: str, count: Expr) -> Op:
    """The record of `elements_per_thread`, an argument of reads, writes and indices."""
    return _record("elements", what=what, of=of, count=count)


def _maybe(e: ExprLike | None) -> Expr | None:
    return None if e is None else as_expr(e)


def _counts(given: Any) -> tuple[Expr, ...] | None:
    """Numbers along the dimensions of a grid, given as a sequence or as one number."""
    if given is None:
        return None
    return tuple(map(as_expr, given if isinstance(given, list | tuple) else (given,)))


BITS_OF_A_LOAD = 128
"""Wave's default of `max_bits_per_load`, which says nothing."""


class Constraint:
    """The base of all constraints."""

    def records(self) -> list[Op]:
        """What the constraint adds to a program's header."""
        return []


@dataclass(frozen=True)
class Applied:
    """A function of one symbol as what it gives: how an `apply_fn`, most often a lambda, is copied and pickled."""

    symbol: Symbol
    gives: Expr

    def __call__(self, argument: ExprLike) -> Expr:
        """What the function gives for an argument."""
        return self.gives.subs({self.symbol: argument})


@dataclass(eq=False)
class WorkgroupConstraint(Constraint):
    """Workgroup `workgroup_dim` takes tiles of `dim`; `apply_fn` says where a workgroup starts."""

    dim: Expr
    tile_size: ExprLike
    workgroup_dim: int = 0
    apply_fn: Callable[[Symbol], ExprLike] | None = None
    primary: bool = True
    iters: ExprLike | None = None
    per_device_dim: Any = None

    def __getstate__(self) -> dict[str, Any]:
        if self.apply_fn is None:
            return self.__dict__
        workgroup = WORKGROUPS[self.workgroup_dim]
        return {**self.__dict__, "apply_fn": Applied(workgroup, as_expr(self.apply_fn(workgroup)))}

    def records(self) -> list[Op]:
        start = None
        if self.apply_fn is not None:
            start = as_expr(self.apply_fn(WORKGROUPS[self.workgroup_dim]))
        return [
            _record(
                "workgroup",
                dim=as_expr(self.dim),
                tile=as_expr(self.tile_size),
                grid=self.workgroup_dim,
                start=start,
                iters=_maybe(self.iters),
                primary=None if self.primary else False,
            )
        ]


@dataclass(eq=False)
class WaveConstraint(Constraint):
    """Waves of a workgroup take tiles of `dim`; which wave takes which, `wave_id`, is left to the compiler."""

    dim: Expr
    tile_size: ExprLike
    wave_id: Any = None

    def records(self) -> list[Op]:
        return [_record("wave", dim=as_expr(self.dim), tile=as_expr(self.tile_size))]


@dataclass(eq=False)
class TilingConstraint(Constraint):
    """`iterate(dim)` goes in tiles of this size; `start` and `iters` bound the loop."""

    dim: Expr
    tile_size: ExprLike | None = None
    induction_var: Any = None
    iters: ExprLike | None = None
    start: ExprLike | None = None

    def records(self) -> list[Op]:
        start = None if self.start is None or as_expr(self.start) is ZERO else as_expr(self.start)
        return [
            _record("tiling", dim=as_expr(self.dim), tile=_maybe(self.tile_size), iters=_maybe(self.iters), start=start)
        ]


@dataclass(eq=False)
class HardwareConstraint(Constraint):
    """Wave's description of the hardware; a hint for plans, no part of the meaning."""

    threads_per_wave: int | None = None
    waves_per_block: Any = None
    workgroups_per_cluster: Any = None
    mma_type: Any = None
    vector_shapes: Mapping[Expr, ExprLike] | None = None
    max_bits_per_load: int = BITS_OF_A_LOAD
    n_service_waves: int = 0

    def records(self) -> list[Op]:
        vectors = None
        if self.vector_shapes:
            vectors = tuple((as_expr(d), as_expr(size)) for d, size in self.vector_shapes.items())
        mma = self.mma_type.name if isinstance(self.mma_type, Enum) else None
        return [
            _record(
                "hardware",
                threads=self.threads_per_wave,
                waves=_counts(self.waves_per_block),
                cluster=_counts(self.workgroups_per_cluster),
                mma=mma,
                vectors=vectors,
                load_bits=self.max_bits_per_load if self.max_bits_per_load != BITS_OF_A_LOAD else None,
                service=self.n_service_waves or None,
            )
        ]


@dataclass(eq=False)
class IteratorBindings(Constraint):
    """Iterator symbols and the dimensions they run over, for `source=` and `target=`."""

    bindings: Mapping[Symbol, Expr]


@dataclass(eq=False)
class ReorderingConstraint(Constraint):
    """Workgroup ids along one grid dimension, as an expression of the real ids."""

    reordered_equation: ExprLike
    workgroup_dim: int

    def records(self) -> list[Op]:
        return [_record("reordering", value=as_expr(self.reordered_equation), grid=self.workgroup_dim)]


@dataclass(eq=False)
class GridConstraint(Constraint):
    """A fixed number of workgroups, which share the work among themselves."""

    grid_size: Any

    def records(self) -> list[Op]:
        count = self.grid_size[0] if isinstance(self.grid_size, list | tuple) else self.grid_size
        return [_record("grid", count=as_expr(count))]


@dataclass(eq=False)
class Assumption(Constraint):
    """A condition on symbols that the author promises."""

    expr: Expr

    def records(self) -> list[Op]:
        return [_record("assume", that=as_expr(self.expr))]


@dataclass(eq=False)
class SymbolicAlias(Constraint):
    """A dimension whose size follows from another's: source == source_to_target(target), as in Wave.

    Where `target` is cut into workgroups, and these into waves, a wave has a tile of it and, of `source`, what follows
    from the tile: a reduction along `target` is then each wave's own.
    """

    source: Symbol
    target: Symbol
    source_to_target: Callable[[Any], ExprLike]

    def divided(self, records: list[Op]) -> list[Op]:
        """The records of all constraints, with waves along the target as workgroups of their own."""
        waves = {r.attrs["dim"]: r.attrs["tile"] for r in records if r.name == "wave"}
        found = []
        for r in records:
            if r.name == "workgroup" and r.attrs["dim"] is self.target:
                tile = waves.get(self.target, r.attrs["tile"])
                along = _record("workgroup", **{**r.attrs, "dim": self.source, "primary": False})
                along.attrs["tile"] = as_expr(self.source_to_target(tile))
                found += [_record("workgroup", **{**r.attrs, "tile": tile}), along]
            else:
                found.append(r)
        return found

    def __getstate__(self) -> dict[str, Any]:
        applied = Applied(self.target, as_expr(self.source_to_target(self.target)))
        return {**self.__dict__, "source_to_target": applied}


def DeviceConstraint(*args: Any, **options: Any) -> Constraint:  # noqa: N802 - Wave's name
    """Several devices: out of scope."""
    raise OutOfScope("DeviceConstraint: kernels for several devices are out of scope", author_location())


_MMA_NAMES = (
    *("F32_16x16x16_F16", "F32_32x32x8_F16", "F32_16x16x32_K8_F16", "F32_32x32x16_K8_F16"),
    *("I32_16x16x16_I8", "I32_32x32x8_I8", "F32_16x16x32_F8", "F32_32x32x16_F8", "F32_16x16x32_K4_F8"),
    *("F32_32x32x16_K4_F8", "I32_16x16x32_I8", "I32_32x32x16_I8", "F32_16x16x32_F16", "F32_32x32x16_F16"),
    *("F32_16x16x32_BF16", "F32_32x32x16_BF16", "RDNA4_WAVE32_F32_16x16x16_F16", "GFX1250_F32_16x16x32_F16"),
)
MMAType: Any = Enum("MMAType", list(_MMA_NAMES))  # type: ignore[misc]
MMAType.__doc__ = "Wave's names of matrix instructions; hints for plans."
ScaledMMAType = Enum("ScaledMMAType", ["F32_16x16x128_F8F6F4", "F32_32x32x64_F8F6F4", "GFX1250_F32_16x16x128_F8F6F4"])


class MMAOperand(Enum):
    """The operands of a matrix instruction."""

    M, N, K = range(3)


@dataclass(frozen=True)
class GenericDot:
    """Wave's multiplication without matrix units; a hint."""

    out_vec_size: int = 1
    k_vec_size: int = 4
    k_mult: int = 1
    along_dim: MMAOperand = MMAOperand.N
