"""The description of a family of CPUs; code for any of its machines can be made on any other machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tilewright.errors import TargetError

if TYPE_CHECKING:  # a family is asked for the CPU at hand before anything is planned or written
    from tilewright.codegen.text import Scale
    from tilewright.ir.core import Op
    from tilewright.machine import Machine
    from tilewright.targets.cpu.emit import NativeEmitter
    from tilewright.targets.cpu.relocation import ObjectForm

Multiply = Callable[["NativeEmitter", "Op"], None]
"""Writes C += A * B by an atom's instruction."""


class TileRegisters(Protocol):
    """The instructions of matrix registers (AMX's tiles), for families that have them."""

    count: int
    """The number of tile registers."""
    before_use: str
    """For users of C: the call that a program needs before it uses tiles, in words."""

    def load(self, e: NativeEmitter, op: Op, tile: int, pointer: str, stride: str) -> None:
        """Emit the load of tile register number `tile` with the emitter `e`. `pointer` is the address of the first row,
        and `stride` the distance between rows in bytes; both are LLVM values. The attributes of the load `op` may
        contain hints. Protocol method.
        """
        ...

    def store(self, e: NativeEmitter, tile: int, pointer: str, stride: str) -> None:
        """Emit the store of tile register number `tile` with the emitter `e`. `pointer` is the address of the first
        row, and `stride` the distance between rows in bytes; both are LLVM values. Protocol method.
        """
        ...

    def zero(self, e: NativeEmitter, tile: int) -> None:
        """Emit the instruction that sets tile register number `tile` to zero, with the emitter `e`. Protocol method."""
        ...

    def prologue(self, e: NativeEmitter, configuration: str) -> list[str]:
        """Return the LLVM lines for the beginning of a function that uses tile registers; the caller writes them.
        `configuration` is the LLVM pointer to the bytes of `configuration()`. Protocol method.
        """
        ...

    def epilogue(self, e: NativeEmitter) -> None:
        """Emit the instruction for the end of a function that uses tile registers, with the emitter `e`. Protocol
        method.
        """
        ...

    def configuration(self) -> Any:
        """Return the configuration of the tile registers as an array of bytes. Protocol method."""
        ...


@dataclass(frozen=True)
class Family:
    """A family of CPUs.

    `levels` are its named machines with their features, the smallest first. `optional` are further features that a
    machine may have, and that its name then lists (`aarch64.neon.dotprod`). `row` returns the machine for a name and
    features; `detect` returns the features of the CPU at hand. `triple` and `cpu` are LLVM's names for code of a named
    machine. `products` returns the writers of its multiplication atoms. `pause` is a line of LLVM IR for spin loops,
    `declares` the declaration that it needs; `register` is the letter of vector registers in inline assembly
    constraints.
    """

    name: str
    architectures: tuple[str, ...]
    triple: str | None
    cpu: str
    levels: Mapping[str, frozenset[str]]
    optional: tuple[str, ...]
    row: Callable[[str, frozenset[str]], Machine]
    detect: Callable[[], frozenset[str]]
    host_features: Callable[[], str]
    products: Callable[[], Mapping[str, Multiply]]
    tiles: TileRegisters | None = None
    pause: str = ""
    declares: str = ""
    register: str = "r"
    scale: Scale | None = None
    """Writes the instruction that multiplies by a power of two; None if there is none."""
    futex: int | None = None
    """The number of Linux' futex system call, which waits on a word of memory."""
    objects: ObjectForm | None = None
    """The relocations of its object files; None: they cannot be linked here."""

    def machine(self, name: str) -> Machine | None:
        """Return the machine `name` of this family, such as "aarch64.neon.dotprod": one of the names in `levels`, then
        features in `optional` after dots. Return None if the name has another form.
        """
        fitting = [level for level in self.levels if name == level or name.startswith(f"{level}.")]
        if not fitting:
            return None
        level = max(fitting, key=len)
        more = name[len(level) + 1 :].split(".") if name != level else []
        if any(feature not in self.optional for feature in more):
            return None
        return self.described(self.levels[level] | set(more))

    def described(self, features: frozenset[str]) -> Machine:
        """Return the machine of this family that has exactly the features `features`. Its name is
        `name_of(features)`.
        """
        return self.row(self.name_of(features), features)

    def name_of(self, features: frozenset[str]) -> str:
        """Return the name of the machine with the features `features`: the highest level of the family of which it has
        all features, then further optional features after dots. Raise TargetError if it lacks features of the lowest
        level.

        >>> from tilewright.targets.cpu.families import family
        >>> arm = family("aarch64")
        >>> arm.name_of(arm.levels["aarch64.neon"] | {"bf16", "dotprod"})
        'aarch64.neon.dotprod.bf16'
        """
        level = next((n for n in reversed(list(self.levels)) if features >= self.levels[n]), None)
        if level is None:
            lowest, needed = next(iter(self.levels.items()))
            raise TargetError(f"no machine has these features: {lowest} needs {', '.join(sorted(needed - features))}")
        more = [f for f in self.optional if f in features and f not in self.levels[level]]
        return ".".join([level, *more])
