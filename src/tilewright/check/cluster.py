"""Clusters: workgroups that run together, and copies that they share."""

from __future__ import annotations

from math import prod

from tilewright.algebra.expr import Const
from tilewright.check.places import Places
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Program, Value
from tilewright.ir.tensors import numbers
from tilewright.machine import Machine


def cluster_of(program: Program) -> int:
    """How many workgroups of a program run together."""
    record = program.record("cluster")
    return 1 if record is None else numbers((record.attrs["count"],), "cluster")[0]


def shared_channels(program: Program) -> set[Value]:
    """The channels into whose stages workgroups of a cluster bring parts for one another."""
    if cluster_of(program) == 1:
        return set()
    made = program.makers()
    found = set()
    for op in program.walk():
        if op.name == "copy" and op.attrs.get("multicast"):
            below = made[op.operands[1]]
            while below.name in ("view", "bitcast"):
                below = made[below.operands[0]]
            found.add(below.operands[0])
    return found


def check_cluster(program: Program, machine: Machine | None, places: Places) -> None:
    """Raises a ProgramError where workgroups of a cluster could not keep in step, or a machine has no such launches."""
    launch = program.record("launch")
    if launch is not None and (machine is None or launch.attrs["how"] not in machine.launches):
        name = "a program without a machine" if machine is None else machine.name
        raise ProgramError(f"launch {launch.attrs['how']}: {name} has no such launches", launch.loc)
    count = cluster_of(program)
    most = 1 if machine is None else machine.cluster
    if count > most:
        name = "a program without a machine" if machine is None else machine.name
        raise ProgramError(f"cluster {count}: {name} has at most {most} workgroups that run together")
    for op in program.walk():
        if op.name == "tasks" and count > 1:
            _check_tasks(op, count)
        if op.name == "copy" and op.attrs.get("multicast"):
            _check_multicast(op, count, machine, places)


def _check_tasks(op: Op, count: int) -> None:
    """Workgroup r of a cluster does the tasks r, r + count, ...: all are equally many."""
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
    made = places.made.get(places.root(op.operands[1]))
    atom = op.attrs.get("by")
    boxes = atom is not None and machine is not None and machine.copy_atom(atom).bytes_moved is None
    if not boxes or made is None or made.name != "acquire":
        raise ProgramError("multicast: a copy by an atom that brings whole boxes, to a stage that was acquired", op.loc)
    shape = numbers(op.operands[1].type.shape, "multicast")
    if not shape or shape[0] % count:
        raise ProgramError(
            f"multicast: the first extent of %{op.operands[1].name}, {shape[0] if shape else 1}, is cut into {count} "
            "parts, one for each workgroup of the cluster; it is no multiple of that",
            op.loc,
        )
