"""`tilewright targets`: show the features of this CPU, those the compiler uses, and the described machines."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from tilewright.cli.printing import fail, show, table
from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.machine import Machine


def targets() -> None:
    """Show the features of this CPU, the features that the compiler uses, and the machines that
    Tilewright describes.
    """
    try:
        show(_processor_table(), _atom_table(), _machine_table(), _target_help())
    except TilewrightError as fault:
        fail(str(fault))


def _processor_table() -> Table | str:
    """Return a table of this CPU: name, workers, machine description, caches, and the instruction-set features that it
    has and lacks.
    """
    from tilewright.targets.cpu import host

    family, machine = host.host_family(), host.host_machine()
    limits, used_features = (
        machine.limits,
        {f for level in family.levels.values() for f in level} | set(family.optional),
    )
    rows = [
        ("name", f"{host.cpu_name()} ({platform.machine()})"),
        ("workers", f"{limits.cores}; TILEWRIGHT_THREADS sets another number"),
        ("machine", machine.name),
        (
            "caches",
            f"{_kilobytes_text(limits.l1_bytes)}, {_kilobytes_text(limits.l2_bytes)}; "
            f"lines of {limits.line_bytes} bytes",
        ),
        ("offers", " ".join(sorted(host.features())) or "nothing that the compiler asks for"),
        ("lacks", " ".join(sorted(used_features - host.features())) or "nothing that the compiler uses"),
    ]
    return table(("this CPU", ""), rows)


def _kilobytes_text(size: int) -> str:
    """Return `size`, in bytes, as text in KB, rounded down: 32768 -> "32 KB"."""
    return f"{size >> 10} KB"


def _atom_table() -> Table:
    """Return a table of the multiplication atoms that this CPU has, with shapes and element types."""
    from tilewright.targets.cpu.host import host_machine

    rows = []
    for atom in host_machine().multiply.values():
        m, n, k = atom.shape
        rows.append((atom.name, f"{m} x {n} x {k}", f"{atom.a.dtype} * {atom.b.dtype} + {atom.c.dtype}"))
    return table(("multiplication atom of this CPU", "m x n x k", "types"), rows)


def _machine_table() -> Table:
    """Return a table of the machines that Tilewright describes. A row has the numbers of multiplication and copy atoms,
    and whether programs for the machine run here.
    """
    from tilewright.targets import registry

    rows = []
    for name in registry.MACHINES:
        row = registry.machine(name)
        rows.append((name, f"{len(row.multiply)} + {len(row.copies)}", _runnable_text(row)))
    return table(("described machine", "atoms", "its programs"), rows)


def _runnable_text(row: Machine) -> str:
    """Return a text that says whether programs for the machine `row` run here. It is one of three:

    - "run here";
    - "can be read here, and interpreted: " and the reason why they do not run;
    - "described; the interpreter runs them" for a GPU that has no code generator.
    """
    from tilewright.targets.cpu.families import is_cpu
    from tilewright.targets.registry import gpu, native

    if is_cpu(row.name):
        reason = native(f"cpu:{row.name}").why_not
    else:
        try:
            reason = gpu(f"gpu:{row.name}", None).backend.why_not(row)
        except TilewrightError:  # it has no code generator
            return "described; the interpreter runs them"
    return "run here" if reason is None else f"can be read here, and interpreted: {reason}"


def _target_help() -> str:
    """Return the sentence that lists the values of `target=`."""
    return (
        "target= takes 'cpu' (the CPU at hand, the default), 'cpu:NAME' (a CPU of the table, with optional features "
        "behind dots: cpu:aarch64.neon.dotprod), 'gpu' (the GPU at hand; 'cuda' is NVIDIA's), 'gpu:NAME' (a GPU of the "
        "table), 'executor' (tile programs) and 'interpreter' (block and loop programs)"
    )
