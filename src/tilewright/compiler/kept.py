"""Kernels as the cache keeps them: what runs, by what it was made from. It is asked before anything is planned.

The key is what a plan depends on: the text of the tile program, sizes, shapes, constraints, the CPU at hand, and who
compiles. The entry is a manifest: the arguments of the host program, and the key of its machine code. A kernel is kept
where a manifest says all of it: its sizes are closed, it logs nothing, and no warning points at a line of its author's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.core import Program
from tilewright.ir.dtypes import ALL, from_numpy
from tilewright.ir.printer import program_symbols, program_text
from tilewright.runtime import cache
from tilewright.runtime.scripts import Array, HostArgument, HostMemory, Memories
from tilewright.runtime.toolchain import toolchain
from tilewright.targets.cpu.entry import EntryCode, EntryMember
from tilewright.targets.cpu.entry_executor import EntryExecutor
from tilewright.targets.cpu.host import host_text

if TYPE_CHECKING:  # what is found was planned by another process
    from tilewright.compiler.planned import PlannedKernel


def key_for(program: Program, sizes: Mapping[str, int], shapes: Sequence[tuple[int, ...]], options: str) -> str:
    """The key of a kernel for the CPU at hand; `options` is what else it is made from, as text."""
    ranges = sorted((s.name, str(s.lo), str(s.hi)) for s in program_symbols(program))
    asked = (f"{ranges}", f"{sorted(sizes.items())}", f"{list(shapes)}", options)
    return cache.key_of("kernel", program_text(program), *asked, host_text(), toolchain())


class StoredExecutor(EntryExecutor):
    """The executor of a kernel that was kept."""

    def __init__(self, name: str, main: str, arguments: tuple[HostArgument, ...], member: EntryMember):
        self.name, self.main, self.arguments, self._member = name, main, arguments, member
        self._memory_of_host = HostMemory()

    def member(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> EntryMember:
        """The entry, which is that of its only sizes."""
        self.require(arrays)
        return self._member

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """The host's memory."""
        return self._memory_of_host


# -- keeping ------------------------------------------------------------------------------------------------


class _NotKept(ValueError):
    """A manifest has no words for a kernel."""


def keep(key: str, planned: PlannedKernel, program: Program) -> None:
    """Keeps a kernel that was planned for the tile program, where a manifest has words for it."""
    request, executor = planned.request, planned.executor
    realised = planned.realised
    if request.opened or request.logs or realised.lowered.lost or realised.choice.slow is not None:
        return
    member = planned.member
    if member is None:
        return
    lines = {id(op.loc): n for n, op in enumerate(program.walk()) if op.loc is not None}
    try:
        manifest = {
            "name": executor.name,
            "main": planned.main.name,
            "args": [_argument(a) for a in executor.arguments],
            "code": member.code.key,
            "once": bool(member.once),
            "lasting": member.lasting,
            "fixed": sorted(member.fixed),
            "places": [[code, _line(loc, lines)] for code, loc in member.places.items()],
        }
    except _NotKept:
        return
    cache.store(key, json.dumps(manifest).encode())


def _line(loc: Any, lines: Mapping[int, int]) -> int | None:
    """The operation of the program that a place is of; None: it is no place of a text."""
    if loc is not None and id(loc) not in lines:
        raise _NotKept("a fault at no line of the program")
    return None if loc is None else lines[id(loc)]


def _argument(arg: HostArgument) -> list[Any]:
    assert arg.shape is not None
    return [arg.name, arg.role, arg.kind, _dtype_name(arg.dtype), list(arg.shape)]


def _dtype_name(dtype: np.dtype[Any]) -> str:
    kind = from_numpy(dtype)
    if kind is None:
        raise _NotKept(f"{dtype}")
    return kind.name


# -- finding --------------------------------------------------------------------------------------------------


def find(key: str, program: Program) -> StoredExecutor | None:
    """Return the kernel that was kept under a key, with its machine code; `program` is the tile program."""
    data = cache.load(key)
    if data is None:
        return None
    manifest = json.loads(data)
    code = cache.load(manifest["code"])
    if code is None:  # it was not used for longest, and went
        return None
    args = tuple(
        HostArgument(name, role, kind, ALL[dtype].numpy, len(shape), tuple(shape))
        for name, role, kind, dtype, shape in manifest["args"]
    )
    lines = [op.loc for op in program.walk()]
    member = EntryMember(
        manifest["name"],
        EntryCode(manifest["code"], code),
        once=(manifest["code"],) if manifest["once"] else (),
        lasting=manifest["lasting"],
        fixed=frozenset(manifest["fixed"]),
        places={code: None if line is None else lines[line] for code, line in manifest["places"]},
    )
    return StoredExecutor(manifest["name"], manifest["main"], args, member)
