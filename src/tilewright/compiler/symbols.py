"""Checks that the symbols bound by `compile` are symbols of the kernel."""

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
    """Return the sorted names of the symbols to which the author may give values in `compile`.

    They are the symbols of `program`, the symbols in the Python text of `kernel`, and the symbols in expressions that
    `bindings`, {symbol: expression}, gives to any of these. The Python text counts because a symbol that is only a hint
    (`elements_per_thread=LOADS`) is not in the program. Iterators and address spaces are left out.
    """
    iterators = {s for op in program.walk() for e in op.attrs.get("over", ()) for s in e.symbols}
    iterators |= {s for op in program.walk() for s, _ in op.attrs.get("lookups", ())}
    symbols = (program_symbols(program) | set(getattr(kernel, "mentioned", ()))) - iterators
    symbols -= {GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE}
    while True:
        added = {
            s for key, value in bindings.items() if key in symbols and isinstance(value, Expr) for s in value.symbols
        }
        if added <= symbols:
            return sorted(s.name for s in symbols)
        symbols |= added


def refuse_unknown(name: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise ArgumentError for the first name in `given` that is neither in `known` nor a tuning symbol of Wave (KNOBS),
    such as MMA_DELAY, which has no effect here.

    `name` is the kernel's name in the message.
    """
    for symbol_name in given:
        if symbol_name not in known and symbol_name not in KNOBS:
            hint = did_you_mean(symbol_name, known, 3)
            raise ArgumentError(
                f"symbols: {name} has no symbol {symbol_name}; it has {', '.join(known) or 'none'}{hint}"
            )


def bound_names(bindings: Mapping[Expr, Any]) -> list[str]:
    """Return the list of the names of those keys of `bindings` that are symbols."""
    return [s.name for s in bindings if isinstance(s, Symbol)]
