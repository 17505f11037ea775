"""Loop-level operations for workgroups of many waves: asynchronous copies and products, and synchronisation.

A *fragment* is a register with several values in each lane of a wave; `(l 32, v 4)` names lane and value. Single steps
(arrive, expect, an asynchronous copy) are done once by the wave, whichever of its lanes issues them.

| operation | means |
|---|---|
| `%r = alloc fragment f32 (32, 4)` | a register of 32 lanes with four values each |
| `%b = alloc barrier (4) arrivals 8` | four mbarriers; a phase completes after 8 arrivals and all expected bytes |
| `shuffle %r (l 32, v 4) = %s[l ^ 1, v]` | each lane takes a value of another lane (its own value costs nothing) |
| `arrive %b[s]` | one arrival; it releases the wave's earlier accesses to waves that await the phase |
| `arrive %b[s] everywhere` | one arrival at this barrier of each workgroup of the cluster |
| `expect %b[s] bytes 4096` | the phase also waits for 4096 bytes to land |
| `await %b[s] phase (n)` | waits until phase n, counted from 0, is complete; phases below 0 are complete |
| `copy_in %x (i 64)[8*m + i ?] -> %s[i] by ATOM signal %b[s]` | asynchronous copy that signals the barrier |
| `copy_in ... multicast` | the same to each workgroup of the cluster, signalling the barrier of each |
| `copy_out %s (i 64)[i] -> %y[8*m + i ?] by ATOM` | asynchronous copy that joins the next sealed group |
| `copy_lanes %x (l 32, v 8)[64*l + v] -> %s[8*l + v] by ATOM` | asynchronous copy of each lane's values |
| `copy_lanes ... inside (64*l + v < 99)` | out-of-bounds values arrive as 0; `if (l < 9)`: the lanes that copy |
| `land %b[s]` | the phase also waits for the copies that the wave's lanes have started |
| `seal`, `drain 1` | closes a group of copies out; waits until at most one still reads |
| `fence` | makes the wave's stores to shared memory visible to asynchronous copies and products |
| `atom NAME %c += %a (i 64, k 64)[64*i + k] * %b ...` | operands that the instruction reads from memory |
| `atom NAME %c += %a * %b fresh` | the accumulator starts at 0; its old contents are ignored |
| `settle 1 of %c` | waits until at most one group of products is in flight; %c is complete |
| `together` | wave barrier: stores of each lane before it are visible to the others after it |
| `barrier (1) of 4` | named barrier number 1, of four waves |
| `tasks t in 0..9 turn (w//4)` | every second task of the worker, from task 0 or 1 on (ping-pong) |

A product with an asynchronous atom stays in flight until `settle`: before that, its accumulator must not be read,
operands in registers must not be changed, and the stages it reads must not be released.
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
    """Parse `(4) arrivals 8` from `reader`, the text of a barrier type after the word `barrier`; return the type.

    The example is 4 barriers; a phase of a barrier completes after 8 arrivals. Raise ParseError if the text is not
    valid.
    """
    reader.expect("(")
    start = reader.at
    counts = reader.exprs(reader.enclosed(")"), start)
    if len(counts) != 1:
        raise reader.fail("a barrier's type says how many there are: barrier (4) arrivals 8", start)
    reader.keyword("arrivals")
    return BarrierType(counts[0], KINDS["count"].read(reader, []))


def _barrier_operand(op: Op, index: int) -> None:
    """Raise ProgramError unless operand number `index` of `op` is an array of barriers that count arrivals."""
    type_ = op.operands[index].type
    if not isinstance(type_, BarrierType):
        raise ProgramError(f"operand {index} of {op.name} is {type_}, not a barrier that counts")


def _shared_operand(op: Op, index: int) -> TensorType:
    """Return the type of operand number `index` of `op`; raise ProgramError unless it is a tensor in shared memory."""
    type_ = op.operands[index].type
    if not isinstance(type_, TensorType) or type_.space != "shared":
        raise ProgramError(f"operand {index} of {op.name} is {type_}, not shared memory")
    return type_


def _at_barrier(op: Op) -> tuple[Any, ...]:
    """Check `op`, an operation on one barrier such as `arrive` or `await`, and return (), since it has no results.

    Raise ProgramError unless operand 0 is an array of barriers, and DimensionMismatch unless the attribute `at` is one
    index into this array.
    """
    _barrier_operand(op, 0)
    if len(op.attrs["at"]) != 1:
        raise DimensionMismatch(f"{op.name}: which barrier is one number, not {len(op.attrs['at'])}")
    return ()


def _check_copy(op: Op, far: int, near: int, flat: bool = False) -> None:
    """Check `op`, an asynchronous copy between a tensor in global memory and shared memory.

    `far` is the operand number of the global tensor, `near` that of the shared tensor. Raise ProgramError if an operand
    is in other memory, and DtypeMismatch if element types differ. Raise DimensionMismatch unless `there` has one
    coordinate for each dimension of the global tensor (one flat offset if `flat`), and `at` is one flat offset.
    """
    tensor, shared = op.operands[far].type, _shared_operand(op, near)
    if not isinstance(tensor, TensorType) or tensor.space != "global":
        raise ProgramError(f"operand {far} of {op.name} is {tensor}, not an argument")
    if tensor.dtype is not shared.dtype:
        raise DtypeMismatch(f"{op.name}: {tensor.dtype} and {shared.dtype} differ")
    if len(op.attrs["there"]) != (1 if flat else len(tensor.shape)) or len(op.attrs["at"]) != 1:
        raise DimensionMismatch(f"{op.name}: {len(op.attrs['there'])} coordinates for {tensor}, and one place")


def _copy_in(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `copy_in` (from global to shared memory), and return (), since it has no results.

    The copy is asynchronous and signals a barrier. Operands are (global tensor, shared tensor, array of barriers).
    Raise ProgramError, DtypeMismatch or DimensionMismatch if the operands do not fit.
    """
    _check_copy(op, 0, 1)
    _barrier_operand(op, 2)
    return ()


def _copy_lanes(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `copy_lanes`, and return (), since it has no results.

    In a `copy_lanes`, each lane copies values from global to shared memory. Operands are (global tensor, shared
    tensor). Raise DimensionMismatch unless the attribute `over` has two axes: lane and value. Raise ProgramError,
    DtypeMismatch or DimensionMismatch if the operands do not fit.
    """
    _check_copy(op, 0, 1, flat=True)
    if len(op.attrs["over"]) != 2:
        raise DimensionMismatch(f"copy_lanes: lane and value are two axes, not {len(op.attrs['over'])}")
    return ()


def _copy_out(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `copy_out` (from shared to global memory), and return (), since it has no results.

    Operands are (shared tensor, global tensor). Raise ProgramError if the global tensor is an `in` argument, and
    ProgramError, DtypeMismatch or DimensionMismatch if the operands do not fit.
    """
    _check_copy(op, 1, 0)
    block_level.check_writable(op, 1)
    return ()


def _multiply_atom(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `atom` (a matrix multiply instruction), and return (), since it has no results.

    Operands are (accumulator, A, B). The accumulator must be a register. A and B must be registers, or shared memory if
    the attribute `a` or `b` gives their axes. Raise ProgramError or DimensionMismatch.
    """
    for index, axes, at in ((0, "", ""), (1, "a", "a_at"), (2, "b", "b_at")):
        type_ = op.operands[index].type
        if axes in op.attrs:
            _shared_operand(op, index)
            if len(op.attrs[axes]) != 2 or len(op.attrs[at]) != 1:
                raise DimensionMismatch(f"atom: operand {axes} in memory is a matrix, with one place for each element")
        elif not isinstance(type_, VectorType):
            raise ProgramError(f"operand {index} of atom is {type_}, not a register")
    return ()


def _wait_products(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `settle` (a wait for asynchronous products), and return (), since it has no results.

    Raise ProgramError unless all operands, the accumulators, are fragments.
    """
    for value in op.operands:
        if not isinstance(value.type, FragmentType):
            raise ProgramError(f"settle: {value.type} is no fragment")
    return ()


def _no_results(op: Op) -> tuple[Any, ...]:
    """Return (): the operation `op` has no results, and needs no check."""
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
    OpSpec("seal", result_types=_no_results, notation="seal"),
    OpSpec("drain", {"pending": "int"}, result_types=_no_results, notation="drain {pending}"),
    OpSpec("fence", result_types=_no_results, notation="fence"),
    OpSpec(
        "atom",
        {"atom": "dotted", "a": "axes?", "a_at": "exprs?", "b": "axes?", "b_at": "exprs?", "fresh": "bool?"},
        result_types=_multiply_atom,
        notation="atom {atom} $0 += $1[ {a}{a_at}] * $2[ {b}{b_at}][ ?fresh]",
    ),
    OpSpec("together", {}, result_types=_no_results, notation="together"),
    OpSpec("settle", {"pending": "int"}, result_types=_wait_products, notation="settle {pending}[ of $*]"),
    OpSpec(
        "barrier", {"id": "expr?", "waves": "count?"}, result_types=_no_results, notation="barrier[ {id} of {waves}]"
    ),
    OpSpec(
        "tasks",
        {"ranges": "ranges", "schedule": "name?", "turn": "expr?", "overlap": "name?"},
        blocks=2,
        chained=True,
        result_types=_TASKS.result_types,
        notation="tasks {ranges}[ schedule {schedule}][ turn {turn}][ overlap {overlap}] {}[ finally {}]",
    ),
)
