"""What a family of CPUs tells of itself; code for any of its machines can be made on any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # a family is asked for the CPU at hand before anything is planned or written
    from tilewright.codegen.text import Scale
    from tilewright.ir.core import Op
    from tilewright.machine import Machine
    from tilewright.targets.cpu.emit import NativeEmitter
    from tilewright.targets.cpu.relocation import ObjectForm

Multiply = Callable[["NativeEmitter", "Op"], None]
"""Writes C += A * B by an atom's instruction."""


class TileRegisters(Protocol):
    """The instructions of matrix registers, where a family has any."""

    count: int
    """How many there are."""
    before_use: str
    """The preparation of a program in C before it uses them, in words."""

    def load(self, e: NativeEmitter, op: Op, tile: int, pointer: str, stride: str) -> None: ...  # noqa: D102
    def store(self, e: NativeEmitter, tile: int, pointer: str, stride: str) -> None: ...  # noqa: D102
    def zero(self, e: NativeEmitter, tile: int) -> None: ...  # noqa: D102
    def prologue(self, e: NativeEmitter, configuration: str) -> list[str]: ...  # noqa: D102
    def epilogue(self, e: NativeEmitter) -> None: ...  # noqa: D102
    def configuration(self) -> Any: ...  # noqa: D102


@dataclass(frozen=True)
class Family:
    """A family of CPUs.

    `levels` are its named machines, each with its features, the smallest first; `optional` are features that a machine
    may have besides, and that its name then says (`aarch64.neon.dotprod`). `row` describes a machine with given
    features; `detect` tells those of the CPU at hand. `triple` and `cpu` are LLVM's names for code that is made for a
    named machine. `products` gives what writes its own multiplication atoms. `pause` is a line of LLVM IR that waits
    for a moment in a loop that looks again and again, `declares` what it needs; `register` is the letter that an inline
    assembly constraint has for vector registers.
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
    """Writes the instruction that multiplies by a power of two, for machines that have it."""
    futex: int | None = None
    """The number of Linux's system call for waiting on a word of memory."""
    objects: ObjectForm | None = None
    """How its object files are linked; None: not here."""

    def machine(self, name: str) -> Machine | None:
        """The machine of that name: a level, and optional features behind dots. None: it is none of this family's."""
        fitting = [level for level in self.levels if name == level or name.startswith(f"{level}.")]
        if not fitting:
            return None
        level = max(fitting, key=len)
        more = name[len(level) + 1 :].split(".") if name != level else []
        if any(feature not in self.optional for feature in more):
            return None
        return self.described(self.levels[level] | set(more))

    def described(self, features: frozenset[str]) -> Machine:
        """The machine with these features, under its own name."""
        return self.row(self.name_of(features), features)

    def name_of(self, features: frozenset[str]) -> str:
        """The highest level that the features hold, and what they hold besides.

        >>> from tilewright.targets.cpu.families import family
        >>> arm = family("aarch64")
        >>> arm.name_of(arm.levels["aarch64.neon"] | {"bf16", "dotprod"})
        'aarch64.neon.dotprod.bf16'
        """
        level = next(n for n in reversed(list(self.levels)) if features >= self.levels[n])
        more = [f for f in self.optional if f in features and f not in self.levels[level]]
        return ".".join([level, *more])
