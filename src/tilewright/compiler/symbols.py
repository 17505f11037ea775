"""The symbols that `compile` binds: each must be one that the kernel has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tilewright.algebra.expr import Expr, Symbol
from tilewright.errors import ArgumentError
from tilewright.ir.core import Program
from tilewright.ir.printer import program_symbols
from tilewright.lang.global_symbols import KNOBS
from tilewright.lang.symbols import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE
from tilewright.limits import did_you_mean


def known_names(program: Program, kernel: Any, bindings: Mapping[Expr, Any]) -> list[str]:
    """The names that may be bound: symbols of the program, of the kernel's Python text, and of what these are bound to.

    A symbol that only places work (`elements_per_thread=LOADS`) is in the Python text and not in the program.
    """
    own = {s for op in program.walk() for e in op.attrs.get("over", ()) for s in e.symbols}
    own |= {s for op in program.walk() for s, _ in op.attrs.get("lookups", ())}
    found = (program_symbols(program) | set(getattr(kernel, "mentioned", ()))) - own
    found -= {GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE}
    while True:
        further = {
            s for key, value in bindings.items() if key in found and isinstance(value, Expr) for s in value.symbols
        }
        if further <= found:
            return sorted(s.name for s in found)
        found |= further


def refuse_unknown(name: str, given: Collection[str], known: Collection[str]) -> None:
    """Raises for a name that the kernel does not have; `name` is the kernel's."""
    for each in given:
        if each not in known and each not in KNOBS:
            hint = did_you_mean(each, known, 3)
            raise ArgumentError(f"symbols: {name} has no symbol {each}; it has {', '.join(known) or 'none'}{hint}")


def bound_names(bindings: Mapping[Expr, Any]) -> list[str]:
    """The names of the symbols that are bound."""
    return [s.name for s in bindings if isinstance(s, Symbol)]
