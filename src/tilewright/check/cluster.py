"""Checks of clusters: workgroups that run together and share copies (multicast)."""

from __future__ import annotations

from math import prod

from tilewright.algebra.expr import Const
from tilewright.analysis.views import Places
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Program, Value
from tilewright.ir.tensors import numbers
from tilewright.machine import Machine


def cluster_of(program: Program) -> int:
    """Return the cluster size of `program`: the number of workgroups that run together as a cluster; 1 if `program` has
    no `cluster` record.
    """
    record = program.record("cluster")
    return 1 if record is None else numbers((record.attrs["count"],), "cluster")[0]


def shared_channels(program: Program) -> set[Value]:
    """Return the channels of `program` into whose stages some copy is multicast: one workgroup of a cluster then fills
    stages of the other workgroups. Return an empty set if the cluster size is 1.
    """
    if cluster_of(program) == 1:
        return set()
    maker_of = program.makers()
    channels = set()
    for op in program.walk():
        if op.name == "copy" and op.attrs.get("multicast"):
            maker = maker_of[op.operands[1]]
            while maker.name in ("view", "bitcast"):
                maker = maker_of[maker.operands[0]]
            channels.add(maker.operands[0])
    return channels


def check_cluster(program: Program, machine: Machine | None, places: Places) -> None:
    """Raise a ProgramError if `machine` (None: no machine) does not have the launch mode or the cluster size of
    `program`.

    Raise one too if a `tasks` loop could give workgroups of a cluster different numbers of tasks, or if a multicast
    copy is invalid. `places` finds the tensor that a view is a part of.
    """
    launch = program.record("launch")
    if launch is not None and (machine is None or launch.attrs["how"] not in machine.launches):
        name = "a program without a machine" if machine is None else machine.name
        raise ProgramError(f"launch {launch.attrs['how']}: {name} has no such launches", launch.loc)
    count = cluster_of(program)
    largest = 1 if machine is None else machine.cluster
    if count > largest:
        name = "a program without a machine" if machine is None else machine.name
        raise ProgramError(f"cluster {count}: {name} has at most {largest} workgroups that run together")
    for op in program.walk():
        if op.name == "tasks" and count > 1:
            _check_tasks(op, count)
        if op.name == "copy" and op.attrs.get("multicast"):
            _check_multicast(op, count, machine, places)


def _check_tasks(op: Op, count: int) -> None:
    """Raise a ProgramError unless the `tasks` loop `op` gives all `count` workgroups of a cluster equally many tasks.

    The loop's schedule must be strided (workgroup r takes tasks r, r + count, ...). The number of tasks must be
    constant, and a multiple of `count`.
    """
    schedule = op.attrs.get("schedule", "strided")
    if schedule != "strided":
        raise ProgramError(f"cluster {count}: tasks are dealt out strided, not `schedule {schedule}`", op.loc)
    lengths = [-(-(r.hi - r.lo) // r.step) for r in op.attrs["ranges"]]
    if not all(isinstance(n, Const) for n in lengths):
        raise ProgramError(f"cluster {count}: the number of tasks must be known when the program is compiled", op.loc)
    total = prod(max(0, int(n)) for n in lengths)
    if total % count:
        raise ProgramError(
            f"cluster {count}: {total} tasks are no multiple of {count}; add some whose elements lie outside, marked ?",
            op.loc,
        )


def _check_multicast(op: Op, count: int, machine: Machine | None, places: Places) -> None:
    """Raise a ProgramError if the multicast `copy` operation `op` is invalid.

    It must name a bulk copy atom of `machine` (None: no machine, always an error), and write an acquired stage of a
    channel. Each of the `count` workgroups of a cluster copies an equal part of the first dimension, so the extent of
    this dimension must be a multiple of `count`. `places` finds the tensor that a view is a part of.
    """
    maker = places.makers.get(places.root(op.operands[1]))
    atom = op.attrs.get("by")
    is_bulk = atom is not None and machine is not None and machine.copy_atom(atom).bytes_moved is None
    if not is_bulk or maker is None or maker.name != "acquire":
        raise ProgramError("multicast: a copy by an atom that brings whole boxes, to a stage that was acquired", op.loc)
    shape = numbers(op.operands[1].type.shape, "multicast")
    if not shape or shape[0] % count:
        raise ProgramError(
            f"multicast: the first extent of %{op.operands[1].name}, {shape[0] if shape else 1}, is cut into {count} "
            "parts, one for each workgroup of the cluster; it is no multiple of that",
            op.loc,
        )
