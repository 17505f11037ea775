"""Offsets of a host program's workspaces: in `kept` if `bind` makes or writes them, else in a call's workspace."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_rules import maximum
from tilewright.codegen.entry.abi import ALIGNMENT
from tilewright.errors import ProgramError
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.tensors import TensorType


def aligned_bytes(size: Expr) -> Expr:
    """Return `size`, an expression for a number of bytes, rounded up to a multiple of 64 (the alignment); 0 if it is
    negative.

    >>> print(aligned_bytes(as_expr(65)))
    128
    """
    return maximum(size + ALIGNMENT - 1, 0) // ALIGNMENT * ALIGNMENT


def bytes_of(kind: TensorType) -> Expr:
    """Return the number of bytes that a tensor of type `kind` occupies, as an expression; its extents may be symbolic.

    Elements narrower than a byte take one byte each. Raise ProgramError if the number of elements is not known (see
    `TensorType.room`).
    """
    return kind.room() * kind.dtype.numpy.itemsize


@dataclass(frozen=True)
class Step:
    """An operation that touches memory; `once` is True within the host program's `bind` block, which runs once."""

    op: Op
    once: bool


@dataclass
class HostMemoryMap:
    """The memory of a host program: the tensor that each value is a view of, and the offsets of workspaces.

    `roots` maps a value to the argument or workspace whose memory it is a view of. `kept` and `workspaces` give the
    byte offset of each workspace in its region; the regions' sizes are `kept_bytes` and `workspace_bytes` (without the
    scratch memory of workers).
    """

    roots: dict[Value, Value] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    kept: dict[Value, Expr] = field(default_factory=dict)
    workspaces: dict[Value, Expr] = field(default_factory=dict)
    kept_bytes: Expr = field(default_factory=lambda: as_expr(0))
    workspace_bytes: Expr = field(default_factory=lambda: as_expr(0))

    def used(self, once: bool) -> set[Value]:
        """Return the set of arguments and workspaces that operations of the host program read or write, also through
        views.

        If `once` is True, count the operations of its `bind` block, which run once for constant arguments; if False,
        the operations of every call.
        """
        return {self.roots[v] for step in self.steps if step.once is once for v in step.op.operands}

    def written(self, once: bool, roles: dict[str, list[str]]) -> set[Value]:
        """Return the set of arguments and workspaces that operations of the host program may write, also through views.

        If `once` is True, count the operations of its `bind` block, which run once for constant arguments; if False,
        the operations of every call. `roles` is {name of a launched program: list of the roles of its arguments}, such
        as "in", "out" or "inout".
        """
        written = set()
        for step in self.steps:
            op = step.op
            if step.once is not once or op.name == "check":
                continue
            for place, value in enumerate(op.operands):
                if op.name != "launch" or roles[op.attrs["program"]][place] != "in":
                    written.add(self.roots[value])
        return written


def memory_map(host: Program, roles: dict[str, list[str]], *, is_serial: bool = False) -> HostMemoryMap:
    """Return a HostMemoryMap: byte offsets of workspaces (temporary tensors), and the tensor that each view is of.

    Workspaces that the `bind` block makes or writes get offsets in the memory `kept`, which later calls only read. All
    others get offsets in the workspace of a call. `roles` is {name of a launched program: list of the roles of its
    arguments}, such as "in", "out" or "inout". If `is_serial` is True, calls with the same `kept` never run at the same
    time, so that they may write to it.

    Raise ProgramError for a workspace that is not packed. Unless `is_serial`, also raise it for a workspace in `kept`
    that calls write.
    """
    memory = HostMemoryMap({a: a for a in host.args})
    workspaces: list[tuple[Value, bool]] = []
    _walk(host.body, False, memory, workspaces)
    written_by_bind = memory.written(True, roles)
    written_by_calls = memory.written(False, roles)
    for value, once in () if is_serial else workspaces:
        if value in written_by_calls and (once or value in written_by_bind):
            raise ProgramError(
                f"%{value.name} is written by `bind` and by every call; exported, what `bind` writes is shared by "
                "calls that run at the same time: give the calls a workspace of their own"
            )
    for value, once in workspaces:
        kind = value.type
        if kind.strides is not None or kind.swizzle is not None:
            raise ProgramError(f"workspace %{value.name} is {kind}; a workspace is packed")
        if once or value in written_by_bind:
            memory.kept[value] = memory.kept_bytes
            memory.kept_bytes = memory.kept_bytes + aligned_bytes(bytes_of(kind))
        else:
            memory.workspaces[value] = memory.workspace_bytes
            memory.workspace_bytes = memory.workspace_bytes + aligned_bytes(bytes_of(kind))
    return memory


def _walk(block: Block, once: bool, memory: HostMemoryMap, workspaces: list[tuple[Value, bool]]) -> None:
    """Add the operations of `block` and its inner blocks to `memory.steps`, and the tensor that each view is of to its
    `roots`.

    Append (workspace, True if it is made within `bind`) to `workspaces` for each workspace. `once` is True if the block
    belongs to the host program's `bind` block, which runs once for constant arguments.
    """
    for op in block.ops:
        if op.name == "workspace":
            memory.roots[op.results[0]] = op.results[0]
            workspaces.append((op.results[0], once))
        elif op.name in ("reshape", "restride"):
            memory.roots[op.results[0]] = memory.roots[op.operands[0]]
        elif op.name not in ("let", "if", "bind", "return"):
            memory.steps.append(Step(op, once))
        for inner in op.blocks:
            _walk(inner, once or op.name == "bind", memory, workspaces)
