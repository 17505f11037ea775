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

from tilewright.algebra.expr import ONE, Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_text import parse_expr
from tilewright.block.names import author_names, made_up
from tilewright.block.tensor import Tensor, tensor_of
from tilewright.block.tracing import Frame, number, only_value, trace
from tilewright.errors import ArgumentError, ParseError, ProgramError, PythonControlFlow
from tilewright.ir.attrs import Range
from tilewright.ir.core import Value
from tilewright.ir.location import author_location
from tilewright.limits import written


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
    """Return (start, end, step) of the loop limit `limit`.

    An end alone gives (0, end, 1), a pair gives (start, end, 1). Raise a ProgramError for a tuple of another length, if
    start or end is no integer or expression, or if the step is no integer of at least 1. `loop` is the loop's operation
    name, for messages.
    """
    if not isinstance(limit, tuple):
        return as_expr(0), number(limit, f"{loop}: a limit"), 1
    if not 2 <= len(limit) <= 3:
        raise ProgramError(f"{loop}: {limit!r} is no (start, end) or (start, end, step)", author_location(3))
    lo, hi = (number(e, f"{loop}: a limit") for e in limit[:2])
    step = number(limit[2], f"{loop}: a step") if len(limit) == 3 else ONE
    if not isinstance(step, Const) or step.value < 1:
        raise ProgramError(f"{loop}: the step is {step}; it must be a known integer of at least 1", author_location(3))
    return lo, hi, step.value


def tasks(*limits: Any, schedule: str | None = None, overlap: str | None = None, table: Tensor | None = None) -> Loop:
    """Emit one `tasks` operation, a loop over all tasks (output tiles) of a kernel, which the workers share: `for m, n
    in tb.tasks(M, N)`.

    The result is a Python iterator that runs the body once, to trace it. Each of `limits` is a number of tasks, (start,
    end), (start, end, step), or a function from the earlier loop variables to one of these.

    `schedule` says which worker does which tasks: "strided" (the default), "contiguous", "dynamic" or "table". `table`,
    an i32 tensor of shape (rows, tasks), lists the task numbers of each worker; it implies schedule="table". `overlap`
    is "defer" (the loop's `finally_` block overlaps with the next task) or "pingpong" (two halves of the waves take
    tasks in turn).
    """
    operands = () if table is None else (tensor_of(table, "tasks"),)
    schedule_name = "table" if operands and schedule is None else schedule
    return Loop("tasks", limits, {"schedule": schedule_name, "overlap": overlap}, operands)


def steps(*limits: Any, unroll: bool = False, peel: Sequence[Any] | None = None, overlap: str | None = None) -> Loop:
    """Emit one `for` operation, a loop that all threads execute uniformly: `for k in tb.steps(K)`.

    The result is a Python iterator that runs the body once, to trace it. Each of `limits` is an iteration count,
    (start, end), (start, end, step), or a function from the earlier loop variables to one of these.

    `unroll` unrolls the loop. `peel` is (first, last): the numbers of iterations at the start and at the end that are
    lowered separately. `overlap` is "defer" (the loop's `finally_` block overlaps with the next iteration) or "turns"
    (groups of waves start their products one after the other).
    """
    if peel is not None and (not isinstance(peel, Sequence) or len(peel) != 2):
        raise ProgramError(f"steps: peel={written(peel, 80)} is no pair (first, last)", author_location())
    peeled = None if peel is None else tuple(number(e, "steps: peel") for e in peel)
    return Loop("for", limits, {"unroll": unroll or None, "peel": peeled, "overlap": overlap})


@contextmanager
def finally_() -> Iterator[None]:
    """Context manager: trace its body as the `finally` block of the enclosing `tasks` or `steps` loop: `with
    tb.finally_():`.

    The block is the end of each iteration, and stands last in the loop. If the loop's `overlap` is "defer" or
    "pingpong", the block overlaps with the next iteration. Raise a ProgramError outside such a loop, or if the loop has
    a `finally_` block already.
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
    """Context manager: trace its body as a block that runs only if `condition` holds, and emit one `if`: `with tb.if_(k
    > 0):`.

    `condition` is an expression of loop variables and sizes, or a bool. Raise a PythonControlFlow if it is a tensor.
    """
    if isinstance(condition, Tensor):
        raise PythonControlFlow("if_ takes a condition on loop variables and sizes, not a tensor", author_location(2))
    when = as_expr(int(condition) if isinstance(condition, bool) else condition)
    with trace("if_").within(Frame("if", (), {"when": when}, author_location(2))):
        yield


@contextmanager
def else_() -> Iterator[None]:
    """Context manager: trace its body as the `else` block of the `if_` directly before. The `if` operation is replaced
    by one with both blocks.

    Raise a ProgramError if the last operation is no `if_`, or if it has an `else_` already.
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
    """Context manager: trace its body as a block that repeats while `flag` is not zero, and emit one `while`.

    `flag` is a register tensor of one number, which the body changes.
    """
    frame = Frame("while", (tensor_of(flag, "while_"),), {}, author_location(2))
    with trace("while_").within(frame):
        yield


@contextmanager
def role(name: str, waves: Any, registers: int | None = None) -> Iterator[None]:
    """Context manager: trace its body as the program of the role `name`, and emit one `role`.

    `waves` waves of the workgroup, and no others, execute this code (warp specialisation). `registers` is the number of
    registers of each of their threads (None: not set). A role stands on the outermost level of a kernel.
    """
    attrs: dict[str, Any] = {"name": name, "waves": number(waves, "role: waves")}
    if registers is not None:
        attrs["registers"] = as_expr(registers)
    with trace("role").within(Frame("role", (), attrs, author_location(2))):
        yield


def barrier() -> None:
    """Emit one `barrier`: all waves of the role, or of the workgroup outside roles, wait for one another."""
    trace("barrier").emit("barrier")


def edge(*computed: Tensor) -> None:
    """Emit one `edge`, a scheduling barrier for the assembler. The register tensors `computed` are computed before the
    edge, and waits that follow in the text stay after it.

    An edge changes no result. Assemblers like to move a wait for a product before arithmetic that could overlap with
    the product; an edge prevents that.
    """
    trace("edge").emit("edge", tuple(tensor_of(x, "edge") for x in computed))


def let(value: Any) -> Symbol:
    """Emit one `let`, which names the number `value` (an integer or an expression), and return the new symbol.

    The symbol is called like the variable to which the author assigns it, as in `m = tb.let(t // 4)`; without a
    variable, it is called `number`. A number is appended if another symbol in scope has the name.
    """
    current = trace("let")
    targets = author_names(author_location())
    named = symbol(current.free(targets[0] if len(targets) == 1 else "number"), definition=number(value, "let"))
    current.emit("let", (), {"symbol": named})
    current.known[-1].add(named)
    return named


def require(condition: str) -> None:
    """Require the text `condition`, on the kernel's parameters, to hold: `tb.require("K % BK == 0")`.

    If the condition has only known numbers, it is checked while tracing; raise an ArgumentError if it does not hold.
    Otherwise it becomes a `require` record of the program's header, which is checked at each call. Raise a ProgramError
    if the text is no condition.
    """
    current, loc = trace("require"), author_location()
    if not isinstance(condition, str):
        raise ProgramError(f"require: {written(condition, 80)} is no text", loc)
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
        """Emit one `acquire`, which waits until the next stage is free.

        Return the tensors of this stage, which the producer fills: one tensor, or a tuple of several.
        """
        return self._stage("acquire", "free")

    def commit(self) -> None:
        """Emit one `commit`: the producer passes the oldest stage that it has acquired and not committed to the
        consumer.
        """
        trace("commit").emit("commit", (self.value,))

    def wait(self) -> Any:
        """Emit one `wait`, which waits until the next stage is full.

        Return the tensors of this stage, which the consumer reads: one tensor, or a tuple of several.
        """
        return self._stage("wait", "full")

    def release(self) -> None:
        """Emit one `release`: the consumer frees the oldest stage that it has waited for and not released, so that the
        producer may fill it again.
        """
        trace("release").emit("release", (self.value,))

    @contextmanager
    def fill(self) -> Iterator[Any]:
        """Context manager for a producer: `acquire` before the body, `commit` after it. The value is the tensors of the
        stage: `with ring.fill() as (sa, sb):`. If the body raises, nothing is committed.
        """
        stage = self.acquire()
        yield stage
        self.commit()

    @contextmanager
    def take(self) -> Iterator[Any]:
        """Context manager for a consumer: `wait` before the body, `release` after it. The value is the tensors of the
        stage: `with ring.take() as (ta, tb):`. If the body raises, nothing is released.
        """
        stage = self.wait()
        yield stage
        self.release()

    def _stage(self, name: str, fallback: str) -> Any:
        """Emit the operation `name` ("acquire" or "wait"), and return the tensors of its stage: one tensor, or a tuple
        of several.

        `fallback` is the name of these tensors in the program's text if the author assigns them to no variable.
        """
        op = trace(name).emit(name, (self.value,), fallback=fallback)
        tensors = tuple(Tensor(result) for result in op.results)
        return tensors[0] if len(tensors) == 1 else tensors


def ring(*tensors: Tensor, producer: str, consumer: str, stages: Any = None, apart: bool = False) -> Ring:
    """Emit one `channel` and return it as a `Ring`: stages of shared memory that the role named `producer` fills and
    the role named `consumer` reads, in turn.

    `tensors` are the shared memory; their first dimension counts the stages. `stages` is the number of stages (None:
    the first extent of the first tensor). `apart` is for a channel from a role to itself: each group of the role's
    waves passes on what it wrote and does not wait for other groups. Raise a ProgramError without tensors.
    """
    values = tuple(tensor_of(t, "ring") for t in tensors)
    if not values:
        raise ProgramError("ring needs shared memory for its stages", author_location())
    count = tensors[0].type.shape[0] if stages is None else number(stages, "ring: stages")
    attrs = {"stages": count, "producer": producer, "consumer": consumer} | ({"apart": True} if apart else {})
    return Ring(Tensor(trace("ring").emit("channel", values, attrs, fallback="ring").result))
