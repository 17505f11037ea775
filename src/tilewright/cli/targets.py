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


def _processor() -> Table | str:
    from tilewright.targets.cpu import host

    family, machine = host.host_family(), host.host_machine()
    limits, asked = machine.limits, {f for level in family.levels.values() for f in level} | set(family.optional)
    rows = [
        ("name", f"{host.cpu_name()} ({platform.machine()})"),
        ("workers", f"{limits.cores}; TILEWRIGHT_THREADS sets another number"),
        ("machine", machine.name),
        ("caches", f"{_kilobytes(limits.l1_bytes)}, {_kilobytes(limits.l2_bytes)}; lines of {limits.line_bytes} bytes"),
        ("offers", " ".join(sorted(host.features())) or "nothing that the compiler asks for"),
        ("lacks", " ".join(sorted(asked - host.features())) or "nothing that the compiler uses"),
    ]
    return table(("this CPU", ""), rows)


def _kilobytes(size: int) -> str:
    return f"{size >> 10} KB"


def _atoms() -> Table:
    from tilewright.targets.cpu.host import host_machine

    rows = []
    for atom in host_machine().multiply.values():
        m, n, k = atom.shape
        rows.append((atom.name, f"{m} x {n} x {k}", f"{atom.a.dtype} * {atom.b.dtype} + {atom.c.dtype}"))
    return table(("multiplication atom of this CPU", "m x n x k", "types"), rows)


def _machines() -> Table:
    from tilewright.targets import registry

    rows = []
    for name in registry.MACHINES:
        row = registry.machine(name)
        rows.append((name, f"{len(row.multiply)} + {len(row.copies)}", _state(row)))
    return table(("described machine", "atoms", "its programs"), rows)


def _state(row: Machine) -> str:
    from tilewright.targets.cpu.families import is_cpu
    from tilewright.targets.registry import gpu, native

    if is_cpu(row.name):
        why = native(f"cpu:{row.name}").why_not
    else:
        try:
            why = gpu(f"gpu:{row.name}", None).backend.why_not(row)
        except TilewrightError:  # it has no code generator
            return "described; the interpreter runs them"
    return "run here" if why is None else f"can be read here, and interpreted: {why}"


def _names() -> str:
    return (
        "target= takes 'cpu' (the CPU at hand, the default), 'cpu:NAME' (a CPU of the table, with optional features "
        "behind dots: cpu:aarch64.neon.dotprod), 'gpu' (the GPU at hand; 'cuda' is NVIDIA's), 'gpu:NAME' (a GPU of the "
        "table), 'executor' (tile programs) and 'interpreter' (block and loop programs)"
    )
