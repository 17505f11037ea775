"""The disk cache of compiled kernels: entries by the inputs of compilation, looked up before anything is planned.

The key has all that a plan depends on: the text of the tile program, sizes, shapes, constraints, the CPU in use and the
compiler version. The entry is a manifest: the arguments of the host program, and the key of its machine code. A kernel
is stored only if a manifest can describe it: its sizes are fixed, it logs nothing, and it causes no warning.
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

if TYPE_CHECKING:  # a kernel from the cache needs no planner
    from tilewright.compiler.planned import PlannedKernel


def key_for(program: Program, sizes: Mapping[str, int], shapes: Sequence[tuple[int, ...]], options: str) -> str:
    """Return the disk-cache key of a kernel on this CPU: a hash of all inputs of its compilation.

    The inputs are the program, the ranges of its symbols, `sizes` ({name: number}), the `shapes` of the arguments, the
    CPU, the versions of the compiler and of LLVM, and `options`, a text of all other inputs.
    """
    ranges = sorted((s.name, str(s.lo), str(s.hi)) for s in program_symbols(program))
    inputs = (f"{ranges}", f"{sorted(sizes.items())}", f"{list(shapes)}", options)
    return cache.key_of("kernel", program_text(program), *inputs, host_text(), toolchain())


class StoredExecutor(EntryExecutor):
    """The executor of a kernel that was found in the disk cache: it calls the kernel's stored machine code, without
    planning.
    """

    def __init__(self, name: str, main: str, arguments: tuple[HostArgument, ...], member: EntryMember):
        self.name, self.main, self.arguments, self._member = name, main, arguments, member
        self._memory_of_host = HostMemory()

    def member(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> EntryMember:
        """Return the kernel's machine-code entry (native function). Raise ArgumentError if `arrays` do not fit the
        kernel's fixed shapes.

        `params` is not used: a cached kernel has no open sizes.
        """
        self.require(arrays)
        return self._member

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return the host's memory, in which the kernel's workspaces are allocated. `arrays` and `passing` have no
        effect."""
        return self._memory_of_host


# -- keeping ------------------------------------------------------------------------------------------------


class _NotKept(ValueError):
    """Raised if a manifest cannot describe a kernel."""


def keep(key: str, planned: PlannedKernel, program: Program) -> None:
    """Store the planned kernel `planned` in the disk cache under `key`; do nothing if a manifest cannot describe it.

    It cannot if the kernel has dynamic sizes, logs, causes warnings, or has no machine-code entry. `program` is its
    tile program: source locations are stored as indices of its operations.
    """
    request, executor = planned.request, planned.executor
    realised = planned.realised
    if request.opened or request.logs or realised.lowered.fallback_mmas or realised.choice.slow is not None:
        return
    member = planned.member
    if member is None:
        return
    op_index_of = {id(op.loc): n for n, op in enumerate(program.walk()) if op.loc is not None}
    try:
        manifest = {
            "name": executor.name,
            "main": planned.main.name,
            "args": [_argument_entry(a) for a in executor.arguments],
            "code": member.code.key,
            "once": bool(member.once),
            "lasting": member.lasting,
            "fixed": sorted(member.fixed),
            "places": [[code, _op_index_of(loc, op_index_of)] for code, loc in member.places.items()],
        }
    except _NotKept:
        return
    cache.store(key, json.dumps(manifest).encode())


def _op_index_of(loc: Any, lines: Mapping[int, int]) -> int | None:
    """Return the index of the program's operation with the source location `loc`; None if `loc` is None.

    `lines` is {id of a location object: index of its operation}. Raise _NotKept for a location of no operation.
    """
    if loc is not None and id(loc) not in lines:
        raise _NotKept("a fault at no line of the program")
    return None if loc is None else lines[id(loc)]


def _argument_entry(arg: HostArgument) -> list[Any]:
    """Return [name, role, type as text, element type, shape]: the entry of the argument `arg` in a manifest.

    Raise _NotKept if Tilewright has no name for its element type.
    """
    assert arg.shape is not None
    return [arg.name, arg.role, arg.kind, _dtype_name(arg.dtype), list(arg.shape)]


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return Tilewright's name of a numpy element type, such as "f32"; raise _NotKept if it has none."""
    dtype_ = from_numpy(dtype)
    if dtype_ is None:
        raise _NotKept(f"{dtype}")
    return dtype_.name


# -- finding --------------------------------------------------------------------------------------------------


def find(key: str, program: Program) -> StoredExecutor | None:
    """Return the executor of the kernel that the disk cache has under `key`.

    Return None if the cache lacks the kernel's entry, or its machine code, which is an entry of its own. `program` is
    the kernel's tile program: its operations give the source locations of errors.
    """
    data = cache.load(key)
    if data is None:
        return None
    manifest = json.loads(data)
    code = cache.load(manifest["code"])
    if code is None:  # evicted from the cache as the least recently used
        return None
    args = tuple(
        HostArgument(name, role, kind, ALL[dtype].numpy, len(shape), tuple(shape))
        for name, role, kind, dtype, shape in manifest["args"]
    )
    locations = [op.loc for op in program.walk()]
    member = EntryMember(
        manifest["name"],
        EntryCode(manifest["code"], code),
        once=(manifest["code"],) if manifest["once"] else (),
        lasting=manifest["lasting"],
        fixed=frozenset(manifest["fixed"]),
        places={code: None if line is None else locations[line] for code, line in manifest["places"]},
    )
    return StoredExecutor(manifest["name"], manifest["main"], args, member)
