"""A machine that code is made for: the CPU at hand, or one that is named and need not be at hand."""

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
    "--disable-lsr",  # addresses are placed by the compiler; the search for better ones took half the time
    "--enable-misched=false",  # programs come in a good order; LLVM's own loads too early, and spills
    "--enable-post-misched=false",
)
"""What LLVM is told for all CPUs."""


@dataclass(frozen=True)
class CodeOptions:
    """What LLVM is told of a machine; no triple: that of the process."""

    triple: str | None
    cpu: str
    features: str

    def request(self, form: str) -> dict[str, Any]:
        """What the helper that generates code is asked for: "object" or "assembly"."""
        asked = {"triple": self.triple, "cpu": self.cpu, "features": self.features, "level": 2, "form": form}
        return {**asked, "flags": FLAGS}


@dataclass(frozen=True)
class CpuTarget:
    """A machine, and how LLVM makes code for it. `why_not` says why the code does not run here; None: it does."""

    name: str
    machine: Machine
    options: CodeOptions
    why_not: str | None = None

    @cached_property
    def runs(self) -> bool:
        """Whether its code runs on the CPU at hand."""
        return self.why_not is None

    def require(self, what: str) -> None:
        """Raises where code does not run here."""
        if self.why_not is not None:
            raise TargetError(f"{what}: code for {self.machine.name} does not run here: {self.why_not}")


def host() -> CpuTarget:
    """The CPU at hand; with another number of threads it is another machine."""
    machine = host_machine()
    found = _hosts.get(machine)
    if found is None:
        found = _hosts[machine] = CpuTarget("cpu", machine, host_options())
    return found


def host_options() -> CodeOptions:
    """What LLVM is told of the CPU at hand."""
    family = host_family()
    return CodeOptions(None, cpu_name() if family.name != "portable" else family.cpu, family.host_features())


_hosts: dict[Machine, CpuTarget] = {}


def named(machine: Machine) -> CpuTarget:
    """A machine of any family: code for its features and no others, so that it can be made anywhere."""
    family, here = family_of(machine), host_family()
    told = ",".join(f"+{f}" for f in sorted(machine.features))
    name, own = f"cpu:{machine.name}", host_machine()
    if family.triple is None:  # the portable family is of every architecture
        return CpuTarget(name, _with_limits(machine, own), CodeOptions(None, family.cpu, told))
    if family is not here:
        return CpuTarget(name, machine, CodeOptions(family.triple, family.cpu, told), f"this CPU is {own.name}")
    lacking = sorted(machine.features - features())
    why = f"this CPU is {own.name}, without {', '.join(lacking)}" if lacking else None
    return CpuTarget(name, _with_limits(machine, own), CodeOptions(None, family.cpu, told), why)


def _with_limits(machine: Machine, own: Machine) -> Machine:
    """A machine with the cores and caches of the CPU at hand."""
    told = ("cores", "l1_bytes", "l1_ways", "l2_bytes", "line_bytes")
    mine: Mapping[str, Any] = {n: getattr(own.limits, n) for n in told}
    return replace(machine, limits=replace(machine.limits, **mine))
