"""`tilewright targets`: what this CPU offers, and what the compiler would use."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from tilewright.cli.printing import fail, show, table
from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.machine import Machine


def targets() -> None:
    """Show what this CPU offers and what the compiler would use of it, and the machines that Tilewright describes."""
    try:
        show(_processor(), _atoms(), _machines(), _names())
    except TilewrightError as fault:
        fail(str(fault))


def _is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def _processor() -> Table | str:
    from tilewright.runtime import environment
    from tilewright.targets.x86 import cpu

    if not _is_x86():
        return f"this CPU: {platform.machine()}; Tilewright has no machine code for it, programs run on the interpreter"
    lacking = sorted(cpu.machine().features - cpu.features())
    fits = cpu.machine().name + (f", the nearest; it lacks {', '.join(lacking)}" if lacking else "")
    rows = [
        ("name", cpu.name()),
        ("workers", f"{environment.threads()}; TILEWRIGHT_THREADS sets another number"),
        ("machine", fits),
        ("offers", " ".join(sorted(cpu.features())) or "nothing beyond x86-64"),
        ("lacks", " ".join(sorted(set(cpu.ASKED_FOR) - cpu.features())) or "nothing that the compiler uses"),
    ]
    return table(("this CPU", ""), rows)


def _atoms() -> Table:
    from tilewright.targets.x86 import cpu
    from tilewright.targets.x86.atoms import MULTIPLY

    rows = []
    for atom in MULTIPLY.values():
        m, n, k = atom.shape
        missing = [feature for feature in atom.features if feature not in cpu.features()]
        use = "used" if not missing else f"lacks {', '.join(missing)}: loops with the same meaning, slower"
        rows.append((atom.name, f"{m} x {n} x {k}", f"{atom.a.dtype} * {atom.b.dtype} + {atom.c.dtype}", use))
    return table(("multiplication atom", "m x n x k", "types", "on this CPU"), rows)


def _machines() -> Table:
    from tilewright.targets import registry

    rows = []
    for name in registry.MACHINES:
        row = registry.machine(name)
        rows.append((name, f"{len(row.multiply)} + {len(row.copies)}", _state(row)))
    return table(("machine", "atoms", "its programs"), rows)


def _state(row: Machine) -> str:
    from tilewright.targets.x86 import cpu

    if not row.name.startswith("x86."):
        return "described; not runnable natively, the interpreter runs them"
    if not _is_x86():
        return "the interpreter runs them; this CPU is no x86"
    if row.name == cpu.machine().name:
        return "run natively; this row fits the CPU best"
    missing = sorted(row.features - cpu.features())
    return "run natively" + (f", slower: no {', '.join(missing)}" if missing else "")


def _names() -> str:
    from tilewright.compiler.text import TARGETS

    return f"compile_text takes target= {', '.join(map(repr, TARGETS))}"
