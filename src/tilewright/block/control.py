"""Loops, branches, tasks, roles and rings: Python's `for` and `with`, whose bodies are traced once.

| Python | operation |
|---|---|
| `for m, n in tb.tasks(M, N):` | `tasks m in 0..M, n in 0..N { }` |
| `for k in tb.steps(K):`, `tb.steps((lo, hi, step))` | `for k in 0..K { }` |
| `with tb.finally_():`, last in a loop | its `finally { }` |
| `with tb.if_(condition):`, `with tb.else_():` | `if (condition) { } else { }` |
| `with tb.while_(flag):` | `while %flag { }` |
| `with tb.role("load", waves=1):` | `role load waves 1 { }` |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_text import parse_expr
from tilewright.block.names import author_names, made_up
from tilewright.block.tensor import Tensor, tensor_of
from tilewright.block.tracing import Frame, number, only_value, trace
from tilewright.errors import ArgumentError, ParseError, ProgramError, PythonControlFlow
from tilewright.ir.attrs import Range
from tilewright.ir.core import Value
from tilewright.ir.location import author_location


class Loop:
    """What `for` walks once, for all rounds: gives the loop variables."""

    def __init__(self, name: str, limits: Sequence[Any], attrs: dict[str, Any], operands: tuple[Value, ...] = ()):
        self.here = trace(name)
        loc = author_location(3)
        names = author_names(loc)
        if len(names) != len(limits):
            names = made_up(len(limits))
        if not limits:
            raise ProgramError(f"{name} needs a number of rounds", loc)
        ranges: list[Range] = []
        for n, limit in zip(names, limits, strict=True):
            before = [r.symbol for r in ranges]
            found = limit(*before) if callable(limit) and not isinstance(limit, Expr) else limit
            lo, hi, step = _limits(found, name)
            ranges.append(self.here.range(n, lo, hi, step, before))
        given = {k: v for k, v in attrs.items() if v is not None}
        self.frame = Frame(name, operands, {"ranges": tuple(ranges), **given}, loc)
        self.started = False

    def __iter__(self) -> Loop:
        if self.started:
            raise ProgramError(f"{self.frame.name}: this loop was walked before; write it anew", author_location())
        return self

    def __next__(self) -> Any:
        if self.started:
            self.here.leave(self.frame)
            raise StopIteration
        self.started = True
        symbols = tuple(r.symbol for r in self.frame.attrs["ranges"])
        self.here.enter(self.frame, symbols)
        found = tuple(only_value(s) for s in symbols)
        return found[0] if len(found) == 1 else found


def _limits(found: Any, name: str) -> tuple[Expr, Expr, int]:
    if not isinstance(found, tuple):
        return as_expr(0), number(found, f"{name}: a limit"), 1
    if not 2 <= len(found) <= 3:
        raise ProgramError(f"{name}: {found!r} is no (start, end) or (start, end, step)", author_location(3))
    lo, hi = (number(e, f"{name}: a limit") for e in found[:2])
    return lo, hi, int(found[2]) if len(found) == 3 else 1


def tasks(*limits: Any, schedule: str | None = None, overlap: str | None = None, table: Tensor | None = None) -> Loop:
    """All the work there is, shared among the workers: `for m, n in tb.tasks(M, N)`; one `tasks`.

    `table=deal`, an argument of integers (rows, tasks), says which worker does which task, in which order.
    """
    given = () if table is None else (tensor_of(table, "tasks"),)
    how = "table" if given and schedule is None else schedule
    return Loop("tasks", limits, {"schedule": how, "overlap": overlap}, given)


def steps(*limits: Any, unroll: bool = False, peel: Sequence[Any] | None = None, overlap: str | None = None) -> Loop:
    """A loop that all threads take alike: `for k in tb.steps(K)`; one `for`.

    A limit is a number of rounds, (start, end) or (start, end, step), or a function of the loop variables before it.
    """
    peeled = None if peel is None else tuple(number(e, "steps: peel") for e in peel)
    return Loop("for", limits, {"unroll": unroll or None, "peel": peeled, "overlap": overlap})


@contextmanager
def finally_() -> Iterator[None]:
    """The part that ends each round of the loop it stands in, last: what `overlap=` lets run beside the next round."""
    here = trace("finally_")
    frame = here.frames[-1] if here.frames else None
    if frame is None or frame.name not in ("for", "tasks") or len(frame.blocks) != 1:
        raise ProgramError("finally_ stands once, directly in a loop over tb.tasks or tb.steps", author_location(2))
    here.next_block(frame)
    yield
    frame.ended = True


@contextmanager
def if_(condition: Any) -> Iterator[None]:
    """What is done where a condition on loop variables and sizes holds; one `if`."""
    if isinstance(condition, Tensor):
        raise PythonControlFlow("if_ takes a condition on loop variables and sizes, not a tensor", author_location(2))
    when = as_expr(int(condition) if isinstance(condition, bool) else condition)
    with trace("if_").within(Frame("if", (), {"when": when}, author_location(2))):
        yield


@contextmanager
def else_() -> Iterator[None]:
    """What is done where the condition of the `if_` before it does not hold: its second block."""
    here, loc = trace("else_"), author_location(2)
    ops = here.builder.blocks[-1].ops
    if not ops or ops[-1].name != "if" or len(ops[-1].blocks) != 1:
        raise ProgramError("else_ follows directly after `with tb.if_(...)`", loc)
    branch = ops.pop()
    frame = Frame("if", (), branch.attrs, branch.loc if branch.loc is not None else loc)  # type: ignore[arg-type]
    frame.blocks = list(branch.blocks)
    with here.within(frame):
        yield


@contextmanager
def while_(flag: Tensor) -> Iterator[None]:
    """What is done as long as a single number in registers is not zero; one `while`."""
    frame = Frame("while", (tensor_of(flag, "while_"),), {}, author_location(2))
    with trace("while_").within(frame):
        yield


@contextmanager
def role(name: str, waves: Any, registers: int | None = None) -> Iterator[None]:
    """What some waves do, with how many registers; on the outermost level of a kernel. One `role`."""
    attrs: dict[str, Any] = {"name": name, "waves": number(waves, "role: waves")}
    if registers is not None:
        attrs["registers"] = as_expr(registers)
    with trace("role").within(Frame("role", (), attrs, author_location(2))):
        yield


def barrier() -> None:
    """All waves of the role meet: one `barrier`."""
    trace("barrier").emit("barrier")


def edge(*computed: Tensor) -> None:
    """What these registers hold is computed before it, and a wait that stands after it is not done before: one `edge`.
    No result changes.

    Assemblers like to move a wait for a product before arithmetic that could go on meanwhile; an edge keeps it behind.
    """
    trace("edge").emit("edge", tuple(tensor_of(x, "edge") for x in computed))


def let(value: Any) -> Symbol:
    """A name for a number, that of the variable it is assigned to: `m = tb.let(t // 4)`; one `let`."""
    here = trace("let")
    names = author_names(author_location())
    found = symbol(here.free(names[0] if len(names) == 1 else "number"), definition=number(value, "let"))
    here.emit("let", (), {"symbol": found})
    here.known[-1].add(found)
    return found


def require(condition: str) -> None:
    """What must hold of the kernel's parameters: `tb.require("K % BK == 0")`.

    It is checked now where it is about numbers; on sizes that are open, by the header's `require`, at the call.
    """
    here, loc = trace("require"), author_location()
    known = {n: as_expr(v) for n, v in here.parameters.items() if isinstance(v, int | Expr) and not isinstance(v, bool)}
    try:
        that = parse_expr(condition, known)
    except ParseError as fault:
        raise ProgramError(f"require: {fault}", loc) from None
    if not isinstance(that, Const):
        here.builder.record("require", {"that": that}, loc)
    elif not that.value:
        given = ", ".join(f"{n} = {e}" for n, e in known.items() if re.search(rf"\b{n}\b", condition))
        raise ArgumentError(f"params: the kernel requires {condition}; here {given}")


# -- rings ------------------------------------------------------------------------------------------------


class Ring:
    """A channel: stages of shared memory that one role hands to another, used again and again."""

    def __init__(self, tensor: Tensor):
        self.value = tensor.value

    def acquire(self) -> Any:
        """The tensors of the next stage to fill, when it is free: one `acquire`."""
        return self._stage("acquire", "free")

    def commit(self) -> None:
        """The oldest stage that is acquired is full: one `commit`."""
        trace("commit").emit("commit", (self.value,))

    def wait(self) -> Any:
        """The tensors of the next stage, when it is full: one `wait`."""
        return self._stage("wait", "full")

    def release(self) -> None:
        """The oldest stage that is waited for may be filled again: one `release`."""
        trace("release").emit("release", (self.value,))

    @contextmanager
    def fill(self) -> Iterator[Any]:
        """`acquire` before, `commit` after: `with ring.fill() as (sa, sb):`."""
        stage = self.acquire()
        yield stage
        self.commit()

    @contextmanager
    def take(self) -> Iterator[Any]:
        """`wait` before, `release` after: `with ring.take() as (ta, tb):`."""
        stage = self.wait()
        yield stage
        self.release()

    def _stage(self, name: str, fallback: str) -> Any:
        op = trace(name).emit(name, (self.value,), fallback=fallback)
        found = tuple(Tensor(v) for v in op.results)
        return found[0] if len(found) == 1 else found


def ring(*tensors: Tensor, producer: str, consumer: str, stages: Any = None, apart: bool = False) -> Ring:
    """A channel from one role to another over shared memory, whose first dimension is the stages: one `channel`.

    With `apart`, groups of a role's waves hand over to themselves what each wrote, and do not wait for one another.
    """
    values = tuple(tensor_of(t, "ring") for t in tensors)
    if not values:
        raise ProgramError("ring needs shared memory for its stages", author_location())
    count = tensors[0].type.shape[0] if stages is None else number(stages, "ring: stages")
    attrs = {"stages": count, "producer": producer, "consumer": consumer} | ({"apart": True} if apart else {})
    return Ring(Tensor(trace("ring").emit("channel", values, attrs, fallback="ring").result))
