"""A machine to compile for: the CPU at hand, or a named one, which need not be at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tilewright.errors import TargetError
from tilewright.targets.cpu.families import family_of
from tilewright.targets.cpu.host import cpu_name, features, host_family, host_machine

if TYPE_CHECKING:
    from tilewright.machine import Machine

FLAGS = (
    "--disable-lsr",  # the compiler places addresses itself; LLVM's search for better ones took half the time
    "--enable-misched=false",  # programs are emitted in a good order; LLVM's scheduler loads too early, and spills
    "--enable-post-misched=false",
)
"""LLVM's flags for all CPUs."""


@dataclass(frozen=True)
class CodeOptions:
    """LLVM's target triple, CPU name and features; a triple of None is that of this process."""

    triple: str | None
    cpu: str
    features: str

    def request(self, form: str) -> dict[str, Any]:
        """Return a dict with these options for the code generation helper. `form` is the output: "object" or
        "assembly".
        """
        asked = {"triple": self.triple, "cpu": self.cpu, "features": self.features, "level": 2, "form": form}
        return {**asked, "flags": FLAGS}


@dataclass(frozen=True)
class CpuTarget:
    """A machine, and LLVM's options for it. `why_not` is the reason why its code does not run here (None: it does)."""

    name: str
    machine: Machine
    options: CodeOptions
    why_not: str | None = None

    @cached_property
    def runs(self) -> bool:
        """True if code for this target runs on the CPU at hand."""
        return self.why_not is None

    def require(self, what: str) -> None:
        """Raise TargetError if code for this target does not run on the CPU at hand. The message names `what`, the
        program.
        """
        if self.why_not is not None:
            raise TargetError(f"{what}: code for {self.machine.name} does not run here: {self.why_not}")


def host() -> CpuTarget:
    """Return the target for the CPU at hand. Calls return the same object until the number of threads changes."""
    machine = host_machine()
    target = _hosts.get(machine)
    if target is None:
        target = _hosts[machine] = CpuTarget("cpu", machine, host_options())
    return target


def host_options() -> CodeOptions:
    """Return LLVM's options for the CPU at hand: its CPU name and features, and the target triple of this process."""
    family = host_family()
    return CodeOptions(None, cpu_name() if family.name != "portable" else family.cpu, family.host_features())


_hosts: dict[Machine, CpuTarget] = {}


def named(machine: Machine) -> CpuTarget:
    """Return the target for `machine`, a CPU of any family. Its code uses only the features of the machine, so that it
    can be compiled on any CPU. `why_not` of the target says why the code does not run on the CPU at hand. The portable
    machine, and machines of the host's family, get the number of cores and the cache sizes of the CPU at hand.
    """
    family, here = family_of(machine), host_family()
    enabled = ",".join(f"+{f}" for f in sorted(machine.features))
    name, host_row = f"cpu:{machine.name}", host_machine()
    if family.triple is None:  # the portable family is of every architecture
        return CpuTarget(name, _with_limits(machine, host_row), CodeOptions(None, family.cpu, enabled))
    if family is not here:
        return CpuTarget(name, machine, CodeOptions(family.triple, family.cpu, enabled), f"this CPU is {host_row.name}")
    lacking = sorted(machine.features - features())
    why = f"this CPU is {host_row.name}, without {', '.join(lacking)}" if lacking else None
    return CpuTarget(name, _with_limits(machine, host_row), CodeOptions(None, family.cpu, enabled), why)


def _with_limits(machine: Machine, host: Machine) -> Machine:
    """Return a copy of `machine` with the number of cores and the cache sizes (bytes, ways, line) of `host`."""
    names = ("cores", "l1_bytes", "l1_ways", "l2_bytes", "line_bytes")
    values: Mapping[str, Any] = {n: getattr(host.limits, n) for n in names}
    return replace(machine, limits=replace(machine.limits, **values))
