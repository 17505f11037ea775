"""Constraints: how an author divides work among workgroups, waves and loops.

They are part of the meaning of grid programs (kernels that use workgroup ids), and hints to the planner in all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tilewright.algebra.expr import ZERO, Expr, ExprLike, Symbol, as_expr
from tilewright.errors import OutOfScope, ProgramError
from tilewright.ir.attrs import plain_attrs
from tilewright.ir.core import Op
from tilewright.ir.location import author_location
from tilewright.ir.tile import TILE
from tilewright.lang.symbols import WORKGROUPS, workgroup_symbol
from tilewright.limits import written


def _record(name: str, **attrs: Any) -> Op:
    """Return a new record (header line of a tile program) called `name`, such as "tiling", with the attributes `attrs`.
    Attributes that are None are left out.
    """
    spec = TILE.records[name]
    return Op(spec, (), plain_attrs(spec.attrs, {k: v for k, v in attrs.items() if v is not None}))


def elements_per_thread_record(what: str, of: str, count: Expr) -> Op:
    """Return the record (header line of a tile program) of one `elements_per_thread` hint.

    `what` is the operation ("read", "write", "self_index", ...), `of` the name of the memory or dimension that the
    operation uses, and `count` the number of consecutive elements that a thread should handle at once.
    """
    return _record("elements", what=what, of=of, count=count)


def _as_expr_or_none(e: ExprLike | None) -> Expr | None:
    """Return `e` as an expression; None stays None."""
    return None if e is None else as_expr(e)


def _as_exprs(values: Any) -> tuple[Expr, ...] | None:
    """Return `values`, a list or tuple of integers and expressions or a single one, as a tuple of expressions; None
    stays None.
    """
    if values is None:
        return None
    return tuple(map(as_expr, values if isinstance(values, list | tuple) else (values,)))


def _require(is_valid: bool, name: str, value: Any, constraint: Constraint, allowed: str) -> None:
    """Raise ProgramError unless `is_valid`. The message has the argument's `name` and `value`, the class of
    `constraint`, and `allowed`, valid values in words.
    """
    if not is_valid:
        kind = type(constraint).__name__
        raise ProgramError(f"{kind}: {name}={written(value, 80)} is not {allowed}", author_location())


BITS_OF_A_LOAD = 128
"""Wave's default of `max_bits_per_load`; a constraint that has it is no hint."""


class Constraint:
    """The base of all constraints."""

    def records(self) -> list[Op]:
        """Return the records (header lines) that this constraint adds to a tile program: none in this base class."""
        return []


@dataclass(frozen=True)
class Applied:
    """A function of one symbol, stored as its result expression so that it can be pickled; a lambda cannot."""

    symbol: Symbol
    gives: Expr

    def __call__(self, argument: ExprLike) -> Expr:
        """Return the result expression with `symbol` replaced by `argument`."""
        return self.gives.subs({self.symbol: argument})


@dataclass(eq=False)
class WorkgroupConstraint(Constraint):
    """Tiles of `dim`, of `tile_size` each, go to workgroups along grid dimension `workgroup_dim`.

    `apply_fn` maps a workgroup id to the first coordinate of its tile (None: id * tile size). `iters` is the number of
    workgroups (None: as many as cover `dim`). With `primary` False, another constraint determines the number of
    workgroups along this grid dimension.
    """

    dim: Expr
    tile_size: ExprLike
    workgroup_dim: int = 0
    apply_fn: Callable[[Symbol], ExprLike] | None = None
    primary: bool = True
    iters: ExprLike | None = None
    per_device_dim: Any = None

    def __post_init__(self) -> None:
        workgroup_symbol(self.workgroup_dim, "WorkgroupConstraint: workgroup_dim")
        _require(self.apply_fn is None or callable(self.apply_fn), "apply_fn", self.apply_fn, self, "a function")

    def __getstate__(self) -> dict[str, Any]:
        if self.apply_fn is None:
            return self.__dict__
        workgroup = WORKGROUPS[self.workgroup_dim]
        return {**self.__dict__, "apply_fn": Applied(workgroup, as_expr(self.apply_fn(workgroup)))}

    def records(self) -> list[Op]:
        """Return a list of one `workgroup` record (header line of a tile program).

        It says that each workgroup along grid dimension `workgroup_dim` computes one tile of `dim`. It has the tile
        size and, if the author gave them, the first index (`apply_fn` of the workgroup id) and the number of workgroups
        (`iters`). It has `primary` only if that is False.
        """
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
                iters=_as_expr_or_none(self.iters),
                primary=None if self.primary else False,
            )
        ]


@dataclass(eq=False)
class WaveConstraint(Constraint):
    """Tiles of `dim` go to the waves of a workgroup; `wave_id`, which wave gets which tile, is ignored."""

    dim: Expr
    tile_size: ExprLike
    wave_id: Any = None

    def records(self) -> list[Op]:
        """Return a list of one `wave` record (header line of a tile program): the size of the tile of `dim` that one
        wave of a workgroup computes.
        """
        return [_record("wave", dim=as_expr(self.dim), tile=as_expr(self.tile_size))]


@dataclass(eq=False)
class TilingConstraint(Constraint):
    """The tile size of loops `iterate(dim)`; `start` is the first coordinate, `iters` the number of iterations."""

    dim: Expr
    tile_size: ExprLike | None = None
    induction_var: Any = None
    iters: ExprLike | None = None
    start: ExprLike | None = None

    def records(self) -> list[Op]:
        """Return a list of one `tiling` record (header line of a tile program), for the loop over `dim`.

        It has the tile size, the number of iterations and the first index. Values that the author did not give, and a
        first index of 0, are left out.
        """
        start = None if self.start is None or as_expr(self.start) is ZERO else as_expr(self.start)
        return [
            _record(
                "tiling",
                dim=as_expr(self.dim),
                tile=_as_expr_or_none(self.tile_size),
                iters=_as_expr_or_none(self.iters),
                start=start,
            )
        ]


@dataclass(eq=False)
class HardwareConstraint(Constraint):
    """Wave's description of the hardware; a hint to the planner, even in grid programs."""

    threads_per_wave: int | None = None
    waves_per_block: Any = None
    workgroups_per_cluster: Any = None
    mma_type: Any = None
    vector_shapes: Mapping[Expr, ExprLike] | None = None
    max_bits_per_load: int = BITS_OF_A_LOAD
    n_service_waves: int = 0

    def records(self) -> list[Op]:
        """Return a list of one `hardware` record (header line of a tile program).

        It has the threads per wave, waves per workgroup, workgroups per cluster, MMA instruction, vector widths, load
        width in bits and number of service waves. Values that the author did not give are left out. So are the default
        load width, and an `mma_type` that is no Enum.
        """
        vectors = None
        if self.vector_shapes:
            vectors = tuple((as_expr(d), as_expr(size)) for d, size in self.vector_shapes.items())
        mma = self.mma_type.name if isinstance(self.mma_type, Enum) else None
        return [
            _record(
                "hardware",
                threads=self.threads_per_wave,
                waves=_as_exprs(self.waves_per_block),
                cluster=_as_exprs(self.workgroups_per_cluster),
                mma=mma,
                vectors=vectors,
                load_bits=self.max_bits_per_load if self.max_bits_per_load != BITS_OF_A_LOAD else None,
                service=self.n_service_waves or None,
            )
        ]


@dataclass(eq=False)
class IteratorBindings(Constraint):
    """Iterator symbols and the dimension that each runs over, for `source=` and `target=` of reads and writes."""

    bindings: Mapping[Symbol, Expr]

    def __post_init__(self) -> None:
        _require(isinstance(self.bindings, Mapping), "bindings", self.bindings, self, "{iterator: dimension}")


@dataclass(eq=False)
class ReorderingConstraint(Constraint):
    """Workgroup ids along one grid dimension, as an expression of the real ids."""

    reordered_equation: ExprLike
    workgroup_dim: int

    def __post_init__(self) -> None:
        workgroup_symbol(self.workgroup_dim, "ReorderingConstraint: workgroup_dim")

    def records(self) -> list[Op]:
        """Return a list of one `reordering` record (header line of a tile program): the expression that replaces the
        workgroup id along grid dimension `workgroup_dim`.
        """
        return [_record("reordering", value=as_expr(self.reordered_equation), grid=self.workgroup_dim)]


@dataclass(eq=False)
class GridConstraint(Constraint):
    """A fixed number of workgroups, among which the tasks are distributed. `grid_size` is the number, or a list or
    tuple of it alone: the workgroups have one dimension.
    """

    grid_size: Any

    def __post_init__(self) -> None:
        is_one = not isinstance(self.grid_size, list | tuple) or len(self.grid_size) == 1
        _require(is_one, "grid_size", self.grid_size, self, "one number of workgroups")

    def records(self) -> list[Op]:
        """Return a list of one `grid` record (header line of a tile program): the fixed number of workgroups."""
        count = self.grid_size[0] if isinstance(self.grid_size, list | tuple) else self.grid_size
        return [_record("grid", count=as_expr(count))]


@dataclass(eq=False)
class Assumption(Constraint):
    """A condition on symbols that the author promises."""

    expr: Expr

    def records(self) -> list[Op]:
        """Return a list of one `assume` record (header line of a tile program): the condition on symbols that the
        author promises to hold.
        """
        return [_record("assume", that=as_expr(self.expr))]


@dataclass(eq=False)
class SymbolicAlias(Constraint):
    """A dimension whose size follows from another's: source == source_to_target(target), as in Wave.

    If `target` is divided into workgroups and these into waves, a wave has a tile of `target` and the tile of `source`
    that follows from it: each wave then reduces along `target` by itself.
    """

    source: Symbol
    target: Symbol
    source_to_target: Callable[[Any], ExprLike]

    def __post_init__(self) -> None:
        _require(callable(self.source_to_target), "source_to_target", self.source_to_target, self, "a function")

    def divided(self, records: list[Op]) -> list[Op]:
        """Return the list `records` (header lines of a tile program) with each workgroup along `target` divided into
        one workgroup per wave.

        A `workgroup` record of `target` gets the tile size of the `wave` record of `target`, if there is one. After it
        stands a new `workgroup` record of `source`, with `source_to_target` of that tile size as its tile size. All
        other records are unchanged.
        """
        waves = {r.attrs["dim"]: r.attrs["tile"] for r in records if r.name == "wave"}
        divided_records = []
        for r in records:
            if r.name == "workgroup" and r.attrs["dim"] is self.target:
                tile = waves.get(self.target, r.attrs["tile"])
                source_record = _record("workgroup", **{**r.attrs, "dim": self.source, "primary": False})
                source_record.attrs["tile"] = as_expr(self.source_to_target(tile))
                divided_records += [_record("workgroup", **{**r.attrs, "tile": tile}), source_record]
            else:
                divided_records.append(r)
        return divided_records

    def __getstate__(self) -> dict[str, Any]:
        applied = Applied(self.target, as_expr(self.source_to_target(self.target)))
        return {**self.__dict__, "source_to_target": applied}


def DeviceConstraint(*args: Any, **options: Any) -> Constraint:  # noqa: N802 - Wave's name
    """Raise `OutOfScope`, always: kernels that span several devices are not supported. All arguments are ignored."""
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
