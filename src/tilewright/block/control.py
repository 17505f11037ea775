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
    """A Python iterator that runs the body of a `for` once, to trace it, and yields the loop variables as symbols."""

    def __init__(self, name: str, limits: Sequence[Any], attrs: dict[str, Any], operands: tuple[Value, ...] = ()):
        self.here = trace(name)
        loc = author_location(3)
        names = author_names(loc)
        if len(names) != len(limits):
            names = made_up(len(limits))
        if not limits:
            raise ProgramError(f"{name} needs a number of rounds", loc)
        ranges: list[Range] = []
        for loop_variable, limit in zip(names, limits, strict=True):
            earlier = [r.symbol for r in ranges]
            bounds = limit(*earlier) if callable(limit) and not isinstance(limit, Expr) else limit
            lo, hi, step = _limits(bounds, name)
            ranges.append(self.here.range(loop_variable, lo, hi, step, earlier))
        attributes = {key: value for key, value in attrs.items() if value is not None}
        self.frame = Frame(name, operands, {"ranges": tuple(ranges), **attributes}, loc)
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
        values = tuple(only_value(s) for s in symbols)
        return values[0] if len(values) == 1 else values


def _limits(limit: Any, loop: str) -> tuple[Expr, Expr, int]:
    """Return (start, end, step) of a loop limit: an end, a pair (start, end) or a triple (start, end, step). `loop` is
    the name of the loop for error messages.
    """
    if not isinstance(limit, tuple):
        return as_expr(0), number(limit, f"{loop}: a limit"), 1
    if not 2 <= len(limit) <= 3:
        raise ProgramError(f"{loop}: {limit!r} is no (start, end) or (start, end, step)", author_location(3))
    lo, hi = (number(e, f"{loop}: a limit") for e in limit[:2])
    return lo, hi, int(limit[2]) if len(limit) == 3 else 1


def tasks(*limits: Any, schedule: str | None = None, overlap: str | None = None, table: Tensor | None = None) -> Loop:
    """Loop over all tasks (output tiles) of a kernel, which workers share: `for m, n in tb.tasks(M, N)`. Emit one
    `tasks`.

    A limit is a number of tasks, (start, end) or (start, end, step). `schedule` is "strided", "contiguous", "dynamic"
    or "table"; `overlap` is "defer" or "pingpong". `table`, an integer argument of shape (rows, tasks), lists the task
    numbers of each worker.
    """
    operands = () if table is None else (tensor_of(table, "tasks"),)
    schedule_name = "table" if operands and schedule is None else schedule
    return Loop("tasks", limits, {"schedule": schedule_name, "overlap": overlap}, operands)


def steps(*limits: Any, unroll: bool = False, peel: Sequence[Any] | None = None, overlap: str | None = None) -> Loop:
    """Loop that all threads execute uniformly: `for k in tb.steps(K)`. Emit one `for`.

    A limit is an iteration count, (start, end), (start, end, step), or a function from the loop variables before it to
    one of these. `peel` gives (first, last) numbers of iterations that are lowered separately; `overlap` is "defer" or
    "turns".
    """
    peeled = None if peel is None else tuple(number(e, "steps: peel") for e in peel)
    return Loop("for", limits, {"unroll": unroll or None, "peel": peeled, "overlap": overlap})


@contextmanager
def finally_() -> Iterator[None]:
    """Trace the `finally` block of the enclosing loop, which ends each iteration; `with tb.finally_():` stands last in
    the body. With `overlap=` it may run concurrently with the next iteration.
    """
    current = trace("finally_")
    frame = current.frames[-1] if current.frames else None
    if frame is None or frame.name not in ("for", "tasks") or len(frame.blocks) != 1:
        raise ProgramError("finally_ stands once, directly in a loop over tb.tasks or tb.steps", author_location(2))
    current.next_block(frame)
    yield
    frame.ended = True


@contextmanager
def if_(condition: Any) -> Iterator[None]:
    """Trace a block that runs only if `condition`, on loop variables and sizes, holds: `with tb.if_(k > 0):`. Emit one
    `if`.
    """
    if isinstance(condition, Tensor):
        raise PythonControlFlow("if_ takes a condition on loop variables and sizes, not a tensor", author_location(2))
    when = as_expr(int(condition) if isinstance(condition, bool) else condition)
    with trace("if_").within(Frame("if", (), {"when": when}, author_location(2))):
        yield


@contextmanager
def else_() -> Iterator[None]:
    """Trace the block that runs if the condition of the `if_` directly before it does not hold; it becomes the second
    block of that `if`.
    """
    current, loc = trace("else_"), author_location(2)
    ops = current.builder.blocks[-1].ops
    if not ops or ops[-1].name != "if" or len(ops[-1].blocks) != 1:
        raise ProgramError("else_ follows directly after `with tb.if_(...)`", loc)
    branch = ops.pop()
    frame = Frame("if", (), branch.attrs, branch.loc if branch.loc is not None else loc)  # type: ignore[arg-type]
    frame.blocks = list(branch.blocks)
    with current.within(frame):
        yield


@contextmanager
def while_(flag: Tensor) -> Iterator[None]:
    """Trace a block that repeats while `flag`, a register tensor of one number, is not zero. Emit one `while`."""
    frame = Frame("while", (tensor_of(flag, "while_"),), {}, author_location(2))
    with trace("while_").within(frame):
        yield


@contextmanager
def role(name: str, waves: Any, registers: int | None = None) -> Iterator[None]:
    """Trace the program of a role (specialised waves of the workgroup): `waves` waves with `registers` registers a
    thread. Emit one `role`; it stands on the outermost level of a kernel.
    """
    attrs: dict[str, Any] = {"name": name, "waves": number(waves, "role: waves")}
    if registers is not None:
        attrs["registers"] = as_expr(registers)
    with trace("role").within(Frame("role", (), attrs, author_location(2))):
        yield


def barrier() -> None:
    """Emit one `barrier`, at which all waves of the role wait for one another."""
    trace("barrier").emit("barrier")


def edge(*computed: Tensor) -> None:
    """Emit one `edge`, a scheduling barrier: the registers `computed` are computed before it, later waits come after
    it.

    It changes no result. Assemblers like to move a wait for a product before arithmetic that could overlap with the
    product; an edge prevents that.
    """
    trace("edge").emit("edge", tuple(tensor_of(x, "edge") for x in computed))


def let(value: Any) -> Symbol:
    """Return a symbol that names the number `value`; it is called like the variable it is assigned to:
    `m = tb.let(t // 4)`. Emit one `let`.
    """
    current = trace("let")
    targets = author_names(author_location())
    named = symbol(current.free(targets[0] if len(targets) == 1 else "number"), definition=number(value, "let"))
    current.emit("let", (), {"symbol": named})
    current.known[-1].add(named)
    return named


def require(condition: str) -> None:
    """Require a condition on the kernel's parameters: `tb.require("K % BK == 0")`.

    A condition on known numbers is checked while tracing. A condition on open sizes becomes a `require` record of the
    program's header and is checked at each call.
    """
    current, loc = trace("require"), author_location()
    known = {
        n: as_expr(v) for n, v in current.parameters.items() if isinstance(v, int | Expr) and not isinstance(v, bool)
    }
    try:
        parsed = parse_expr(condition, known)
    except ParseError as fault:
        raise ProgramError(f"require: {fault}", loc) from None
    if not isinstance(parsed, Const):
        current.builder.record("require", {"that": parsed}, loc)
    elif not parsed.value:
        values = ", ".join(f"{n} = {e}" for n, e in known.items() if re.search(rf"\b{n}\b", condition))
        raise ArgumentError(f"params: the kernel requires {condition}; here {values}")


# -- rings ------------------------------------------------------------------------------------------------


class Ring:
    """A channel: stages of shared memory that a producer role hands to a consumer role, in turn."""

    def __init__(self, tensor: Tensor):
        self.value = tensor.value

    def acquire(self) -> Any:
        """Return the tensors of the next stage to fill (one tensor, or a tuple) after waiting until it is free. Emit
        one `acquire`.
        """
        return self._stage("acquire", "free")

    def commit(self) -> None:
        """Mark the oldest acquired stage as full. Emit one `commit`."""
        trace("commit").emit("commit", (self.value,))

    def wait(self) -> Any:
        """Return the tensors of the next stage to read (one tensor, or a tuple) after waiting until it is full. Emit
        one `wait`.
        """
        return self._stage("wait", "full")

    def release(self) -> None:
        """Mark the oldest stage that was waited for as free to be filled again. Emit one `release`."""
        trace("release").emit("release", (self.value,))

    @contextmanager
    def fill(self) -> Iterator[Any]:
        """Context manager for a producer: `acquire` before the block, `commit` after it; yields the stage's tensors:
        `with ring.fill() as (sa, sb):`.
        """
        stage = self.acquire()
        yield stage
        self.commit()

    @contextmanager
    def take(self) -> Iterator[Any]:
        """Context manager for a consumer: `wait` before the block, `release` after it; yields the stage's tensors:
        `with ring.take() as (ta, tb):`.
        """
        stage = self.wait()
        yield stage
        self.release()

    def _stage(self, name: str, fallback: str) -> Any:
        """Emit the operation `name` (`acquire` or `wait`) and return the tensors of its stage: one tensor, or a tuple.
        `fallback` names them where they are assigned to no variable.
        """
        op = trace(name).emit(name, (self.value,), fallback=fallback)
        tensors = tuple(Tensor(result) for result in op.results)
        return tensors[0] if len(tensors) == 1 else tensors


def ring(*tensors: Tensor, producer: str, consumer: str, stages: Any = None, apart: bool = False) -> Ring:
    """Return a channel from role `producer` to role `consumer` over shared memory. Emit one `channel`.

    The first dimension of each of `tensors` counts the stages, unless `stages` does. With `apart`, groups of the role's
    waves hand over to themselves what each of them wrote, and do not wait for other groups.
    """
    values = tuple(tensor_of(t, "ring") for t in tensors)
    if not values:
        raise ProgramError("ring needs shared memory for its stages", author_location())
    count = tensors[0].type.shape[0] if stages is None else number(stages, "ring: stages")
    attrs = {"stages": count, "producer": producer, "consumer": consumer} | ({"apart": True} if apart else {})
    return Ring(Tensor(trace("ring").emit("channel", values, attrs, fallback="ring").result))
