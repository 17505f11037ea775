"""The loop level's words for workgroups of many waves: what runs at once, and what makes one wait for another.

A wave has lanes; a *fragment* holds so many values in each of them, and `(l 32, v 4)` names lane and value. Single
steps (arrive, expect, a copy that goes on by itself) are done once by the wave, whichever of its lanes issues them.

| operation | means |
|---|---|
| `%r = alloc fragment f32 (32, 4)` | a register of 32 lanes with four values each |
| `%b = alloc barrier (4) arrivals 8` | four barriers that count; each waits for 8 arrivals, and for bytes |
| `shuffle %r (l 32, v 4) = %s[l ^ 1, v]` | each lane takes a value of a lane; of its own: only a name |
| `arrive %b[s]` | one arrival; what the wave did before is ordered before whoever awaits the phase |
| `arrive %b[s] everywhere` | one arrival at this barrier of each workgroup of the cluster |
| `expect %b[s] bytes 4096` | the phase also waits for so many bytes to land |
| `await %b[s] phase (n)` | until phase n of the barrier, counted from 0, is complete; before 0 everything is |
| `copy_in %x (i 64)[8*m + i ?] -> %s[i] by ATOM signal %b[s]` | goes on by itself, and lands at the barrier |
| `copy_in ... multicast` | the same to each workgroup of the cluster, landing at that barrier of each |
| `copy_out %s (i 64)[i] -> %y[8*m + i ?] by ATOM` | goes on by itself, as part of the next sealed group |
| `copy_lanes %x (l 32, v 8)[64*l + v] -> %s[8*l + v] by ATOM` | each lane's values go on by themselves |
| `copy_lanes ... inside (64*l + v < 99)` | what the tensor does not have arrives as 0; `if (l < 9)`: lanes that copy |
| `land %b[s]` | the phase also waits for what the wave's lanes have begun to copy |
| `seal`, `drain 1` | closes a group of copies out; waits until at most one still reads |
| `fence` | what the wave stored to shared memory is there for copies and products that go on by themselves |
| `atom NAME %c += %a (i 64, k 64)[64*i + k] * %b ...` | operands that the instruction reads from memory |
| `atom NAME %c += %a * %b fresh` | the sum begins at 0, whatever the register held |
| `settle 1 of %c` | waits until at most one group of products goes on; %c is there |
| `together` | the lanes of the wave meet: what each stored before, the others may load after |
| `barrier (1) of 4` | four waves that name the same number meet |
| `tasks t in 0..9 turn (w//4)` | of the worker's tasks, every second, beginning with number 0 or 1 |

A product whose atom completes later goes on by itself: its sum must not be looked at, nor an operand in registers
changed, before `settle`; the stages it reads are not given back before that either.
"""

from __future__ import annotations

from typing import Any

from tilewright.errors import DimensionMismatch, DtypeMismatch, ProgramError
from tilewright.ir import block as block_level
from tilewright.ir.attrs import KINDS
from tilewright.ir.core import Op, OpSpec
from tilewright.ir.loop_types import BarrierType, FragmentType, VectorType
from tilewright.ir.parser import Reader
from tilewright.ir.tensors import TensorType


def read_barrier(reader: Reader) -> BarrierType:
    """The rest of a barrier's type: how many, and how often each is arrived at."""
    reader.expect("(")
    start = reader.at
    counts = reader.exprs(reader.enclosed(")"), start)
    if len(counts) != 1:
        raise reader.fail("a barrier's type says how many there are: barrier (4) arrivals 8", start)
    reader.keyword("arrivals")
    return BarrierType(counts[0], KINDS["count"].read(reader, []))


def _barrier_operand(op: Op, place: int) -> None:
    found = op.operands[place].type
    if not isinstance(found, BarrierType):
        raise ProgramError(f"operand {place} of {op.name} is {found}, not a barrier that counts")


def _shared_operand(op: Op, place: int) -> TensorType:
    found = op.operands[place].type
    if not isinstance(found, TensorType) or found.space != "shared":
        raise ProgramError(f"operand {place} of {op.name} is {found}, not shared memory")
    return found


def _at_barrier(op: Op) -> tuple[Any, ...]:
    _barrier_operand(op, 0)
    if len(op.attrs["at"]) != 1:
        raise DimensionMismatch(f"{op.name}: which barrier is one number, not {len(op.attrs['at'])}")
    return ()


def _copied(op: Op, far: int, near: int, flat: bool = False) -> None:
    tensor, shared = op.operands[far].type, _shared_operand(op, near)
    if not isinstance(tensor, TensorType) or tensor.space != "global":
        raise ProgramError(f"operand {far} of {op.name} is {tensor}, not an argument")
    if tensor.dtype is not shared.dtype:
        raise DtypeMismatch(f"{op.name}: {tensor.dtype} and {shared.dtype} differ")
    if len(op.attrs["there"]) != (1 if flat else len(tensor.shape)) or len(op.attrs["at"]) != 1:
        raise DimensionMismatch(f"{op.name}: {len(op.attrs['there'])} coordinates for {tensor}, and one place")


def _copy_in(op: Op) -> tuple[Any, ...]:
    _copied(op, 0, 1)
    _barrier_operand(op, 2)
    return ()


def _copy_lanes(op: Op) -> tuple[Any, ...]:
    _copied(op, 0, 1, flat=True)
    if len(op.attrs["over"]) != 2:
        raise DimensionMismatch(f"copy_lanes: lane and value are two axes, not {len(op.attrs['over'])}")
    return ()


def _copy_out(op: Op) -> tuple[Any, ...]:
    _copied(op, 1, 0)
    if op.operands[1].type.role == "in":
        raise ProgramError(f"copy_out to %{op.operands[1].name}, an argument that is declared `in`")
    return ()


def _atom(op: Op) -> tuple[Any, ...]:
    for place, axes, at in ((0, "", ""), (1, "a", "a_at"), (2, "b", "b_at")):
        found = op.operands[place].type
        if axes in op.attrs:
            _shared_operand(op, place)
            if len(op.attrs[axes]) != 2 or len(op.attrs[at]) != 1:
                raise DimensionMismatch(f"atom: operand {axes} in memory is a matrix, with one place for each element")
        elif not isinstance(found, VectorType):
            raise ProgramError(f"operand {place} of atom is {found}, not a register")
    return ()


def _settle(op: Op) -> tuple[Any, ...]:
    for value in op.operands:
        if not isinstance(value.type, FragmentType):
            raise ProgramError(f"settle: {value.type} is no fragment")
    return ()


def _nothing(op: Op) -> tuple[Any, ...]:
    return ()


_TASKS = block_level.BLOCK.ops["tasks"]

SPECS = (
    OpSpec(
        "arrive",
        {"at": "exprs", "everywhere": "bool?"},
        result_types=_at_barrier,
        notation="arrive $0{at}[ ?everywhere]",
    ),
    OpSpec(
        "expect", {"at": "exprs", "bytes": "count"}, result_types=_at_barrier, notation="expect $0{at} bytes {bytes}"
    ),
    OpSpec(
        "await",
        {"at": "exprs", "phase": "expr"},
        result_types=_at_barrier,
        notation="await $0{at} phase {phase}[ of $*]",
    ),
    OpSpec(
        "copy_in",
        {
            "over": "axes",
            "there": "places",
            "at": "exprs",
            "by": "dotted",
            "signal": "exprs",
            "inside": "expr?",
            "multicast": "bool?",
        },
        result_types=_copy_in,
        notation="copy_in $0 {over}{there} -> $1{at} by {by} signal $2{signal}[ inside {inside}][ ?multicast]",
    ),
    OpSpec(
        "copy_lanes",
        {"over": "axes", "there": "exprs", "at": "exprs", "by": "dotted", "inside": "expr?", "when": "expr?"},
        result_types=_copy_lanes,
        notation="copy_lanes $0 {over}{there} -> $1{at} by {by}[ inside {inside}][ if {when}]",
    ),
    OpSpec("land", {"at": "exprs"}, result_types=_at_barrier, notation="land $0{at}"),
    OpSpec(
        "copy_out",
        {"over": "axes", "at": "exprs", "there": "places", "by": "dotted", "inside": "expr?"},
        result_types=_copy_out,
        notation="copy_out $0 {over}{at} -> $1{there} by {by}[ inside {inside}]",
    ),
    OpSpec("seal", result_types=_nothing, notation="seal"),
    OpSpec("drain", {"pending": "int"}, result_types=_nothing, notation="drain {pending}"),
    OpSpec("fence", result_types=_nothing, notation="fence"),
    OpSpec(
        "atom",
        {"atom": "dotted", "a": "axes?", "a_at": "exprs?", "b": "axes?", "b_at": "exprs?", "fresh": "bool?"},
        result_types=_atom,
        notation="atom {atom} $0 += $1[ {a}{a_at}] * $2[ {b}{b_at}][ ?fresh]",
    ),
    OpSpec("together", {}, result_types=_nothing, notation="together"),
    OpSpec("settle", {"pending": "int"}, result_types=_settle, notation="settle {pending}[ of $*]"),
    OpSpec("barrier", {"id": "expr?", "waves": "count?"}, result_types=_nothing, notation="barrier[ {id} of {waves}]"),
    OpSpec(
        "tasks",
        {"ranges": "ranges", "schedule": "name?", "turn": "expr?", "overlap": "name?"},
        blocks=2,
        chained=True,
        result_types=_TASKS.result_types,
        notation="tasks {ranges}[ schedule {schedule}][ turn {turn}][ overlap {overlap}] {}[ finally {}]",
    ),
)
