"""All machines by name, and the targets that programs are compiled for.

>>> machine("x86.amx").multiply_atom("amx.bf16").shape
(16, 16, 32)
>>> sorted(machine("aarch64.neon.dotprod").multiply)[-2:]
['neon.sdot', 'neon.udot']
>>> machine("hoper")
Traceback (most recent call last):
tilewright.machine.description.UnknownName: Tilewright has no machine 'hoper'; it has hopper, ...
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, cast

from tilewright.errors import ArgumentError, TargetError
from tilewright.targets.cpu.families import family, is_cpu
from tilewright.targets.names import CPU, CUDA, GPU, is_gpu, is_native

if TYPE_CHECKING:  # calls of kernels that the cache keeps need no machine
    from tilewright.machine import Machine
    from tilewright.targets.cpu.target import CpuTarget
    from tilewright.targets.gpu.kernel import GpuTarget

_GPUS = {"ampere": "nvidia", "hopper": "nvidia", "cdna3": "amd", "xe": "intel"}
MACHINES = (
    "x86.avx2",
    "x86.avx512f",
    "x86.avx512",
    "x86.amx",
    "aarch64.neon",
    "portable",
    *_GPUS,
)
"""The names of all machines; those of CPUs may go on with features that are optional, `aarch64.neon.dotprod`."""

_MAKERS = {GPU: tuple(dict.fromkeys(_GPUS.values())), CUDA: ("nvidia",)}
"""Whose machines a target may be."""


@cache
def machine(name: str) -> Machine:
    """The machine of that name; there is one object for each name."""
    from tilewright.machine import UnknownName

    found = None
    if name in _GPUS:
        found = cast("Machine", import_module(f"tilewright.targets.{_GPUS[name]}.machine").MACHINES[name])
    elif is_cpu(name):
        found = family(name.partition(".")[0]).machine(name)
    if found is None:
        raise UnknownName("Tilewright", "machine", name, MACHINES)
    return found


def native(target: str) -> CpuTarget:
    """The target of that name: "cpu", or "cpu:" and a machine."""
    if target == CPU:
        from tilewright.targets.cpu.target import host

        return host()
    return _named(target)


def _named(target: str) -> CpuTarget:
    from tilewright.machine import UnknownName
    from tilewright.targets.cpu.target import named

    name = target.partition(":")[2]
    try:
        found = machine(name)
    except UnknownName as fault:
        raise ArgumentError(f"target={target!r}: {fault}") from None
    if not is_cpu(name):
        raise ArgumentError(f"target={target!r}: {name} is no CPU; its programs run on target='interpreter'")
    return named(found)


def gpu(target: str, described: Machine | None) -> GpuTarget:
    """The GPU of that name; "gpu" is whichever machine a program is written for, "cuda" too, if it is NVIDIA's."""
    kind, _, name = target.partition(":")
    name = name or (described.name if described is not None else "")
    there = [known for known, maker in _GPUS.items() if maker in _MAKERS[kind]]
    if name not in there:
        what = name or "a program that names no machine"
        whose = "" if kind == GPU else f" of {' or '.join(_MAKERS[kind])}"
        raise ArgumentError(f"target={target!r}: {what} is no GPU{whose}; there is {', '.join(map(repr, there))}")
    from tilewright.targets.gpu.kernel import GpuTarget

    place = f"tilewright.targets.{_GPUS[name]}.backend"
    if find_spec(place) is None:
        raise ArgumentError(f"target={target!r}: {name} has no code generator yet; target='interpreter' runs programs")
    return GpuTarget(target, machine(name), import_module(place).BACKEND)


def stored_kernels(machine: Machine) -> tuple[ModuleType, str]:
    """Return the module that writes and reads launches of a GPU's exported kernels, and who makes it."""
    maker = _GPUS[machine.name]
    return import_module(f"tilewright.targets.{maker}.stored"), maker


def gpu_machine(target: str) -> Machine:
    """The machine that tile kernels are planned for: the named one, or the GPU at hand."""
    if target not in _MAKERS:
        return gpu(target, None).machine
    said = []
    for maker in _MAKERS[target]:
        place = f"tilewright.targets.{maker}.backend"
        if find_spec(place) is None:
            continue
        names = [name for name, whose in _GPUS.items() if whose == maker]
        for name in reversed(names):  # the newest first
            why = import_module(place).BACKEND.why_not(machine(name))
            if why is None:
                return machine(name)
            said.append(why)
    raise TargetError(f"target={target!r}: {said[0]}; code for a GPU by name, 'gpu:hopper', can be read anywhere")


def check_target(target: object, others: tuple[str, ...]) -> None:
    """Raises for a target that is neither a CPU nor one of the others."""
    known = isinstance(target, str) and (is_native(target) or target in others or (GPU in others and is_gpu(target)))
    if not known:
        there = ", ".join(map(repr, (CPU, *others, *((CUDA,) if GPU in others else ()))))
        raise ArgumentError(f"target={target!r}: there is {there}, or a machine by name, 'cpu:x86.avx512'")
    assert isinstance(target, str)
    if is_native(target) and target != CPU:
        _named(target)
    if is_gpu(target) and target not in _MAKERS:
        gpu(target, None)
