"""The places of a host program's memory: in `kept`, if it is written once, or in the workspace of a call."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_rules import maximum
from tilewright.codegen.entry.abi import ALIGNMENT
from tilewright.errors import ProgramError
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.tensors import TensorType


def in_lines(size: Expr) -> Expr:
    """A number of bytes, up to a multiple of the alignment; 0 for a negative one."""
    return maximum(size + ALIGNMENT - 1, 0) // ALIGNMENT * ALIGNMENT


def bytes_of(kind: TensorType) -> Expr:
    """The bytes of a tensor."""
    return kind.room() * kind.dtype.numpy.itemsize


@dataclass(frozen=True)
class Step:
    """An operation that does something, and whether it is done once (in `bind`) or at every call."""

    op: Op
    once: bool


@dataclass
class HostMemoryMap:
    """The tensors of a host program: what each is a view of, and where workspaces lie.

    `roots` has the argument or workspace whose memory a value shows. `kept` and `workspaces` give the offset of each
    workspace in its region, whose sizes are `kept_bytes` and `workspace_bytes` (without the scratch memory of workers).
    """

    roots: dict[Value, Value] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    kept: dict[Value, Expr] = field(default_factory=dict)
    workspaces: dict[Value, Expr] = field(default_factory=dict)
    kept_bytes: Expr = field(default_factory=lambda: as_expr(0))
    workspace_bytes: Expr = field(default_factory=lambda: as_expr(0))

    def used(self, once: bool) -> set[Value]:
        """The arguments and workspaces that steps touch."""
        return {self.roots[v] for step in self.steps if step.once is once for v in step.op.operands}

    def written(self, once: bool, roles: dict[str, list[str]]) -> set[Value]:
        """The arguments and workspaces that steps write; `roles` are those of each program's arguments."""
        written = set()
        for step in self.steps:
            op = step.op
            if step.once is not once or op.name == "check":
                continue
            for place, value in enumerate(op.operands):
                if op.name != "launch" or roles[op.attrs["program"]][place] != "in":
                    written.add(self.roots[value])
        return written


def memory_map(host: Program, roles: dict[str, list[str]], *, apart: bool = False) -> HostMemoryMap:
    """The memory of a host program; `roles` are those of each program's arguments.

    `apart` says that calls with one `kept` take turns, so that they may write to it.
    """
    memory = HostMemoryMap({a: a for a in host.args})
    workspaces: list[tuple[Value, bool]] = []
    _walk(host.body, False, memory, workspaces)
    lasting = memory.written(True, roles)
    again = memory.written(False, roles)
    for value, once in () if apart else workspaces:
        if value in again and (once or value in lasting):
            raise ProgramError(
                f"%{value.name} is written by `bind` and by every call; exported, what `bind` writes is shared by "
                "calls that run at the same time: give the calls a workspace of their own"
            )
    for value, once in workspaces:
        kind = value.type
        if kind.strides is not None or kind.swizzle is not None:
            raise ProgramError(f"workspace %{value.name} is {kind}; a workspace is packed")
        if once or value in lasting:
            memory.kept[value] = memory.kept_bytes
            memory.kept_bytes = memory.kept_bytes + in_lines(bytes_of(kind))
        else:
            memory.workspaces[value] = memory.workspace_bytes
            memory.workspace_bytes = memory.workspace_bytes + in_lines(bytes_of(kind))
    return memory


def _walk(block: Block, once: bool, memory: HostMemoryMap, workspaces: list[tuple[Value, bool]]) -> None:
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
