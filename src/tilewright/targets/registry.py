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
"""The names of all machines. Names of CPUs may be followed by optional features: `aarch64.neon.dotprod`."""

_MAKERS = {GPU: tuple(dict.fromkeys(_GPUS.values())), CUDA: ("nvidia",)}
"""For each GPU target, the makers whose machines it may be."""


@cache
def machine(name: str) -> Machine:
    """Return the machine with the name `name`, such as "hopper" or "x86.avx512". Every call returns the same object.
    Raise UnknownName if no machine has that name.
    """
    from tilewright.machine import UnknownName

    result = None
    if name in _GPUS:
        result = cast("Machine", import_module(f"tilewright.targets.{_GPUS[name]}.machine").MACHINES[name])
    elif is_cpu(name):
        result = family(name.partition(".")[0]).machine(name)
    if result is None:
        raise UnknownName("Tilewright", "machine", name, MACHINES)
    return result


def native(target: str) -> CpuTarget:
    """Return the CPU target for `target`: "cpu" is the CPU at hand, "cpu:NAME" is the machine NAME. Raise ArgumentError
    if NAME is not the name of a CPU, such as "x86.avx512".
    """
    if target == CPU:
        from tilewright.targets.cpu.target import host

        return host()
    return _named_cpu(target)


def _named_cpu(target: str) -> CpuTarget:
    """Return the CPU target for "cpu:NAME". Raise ArgumentError if no machine has the name NAME, or if that machine is
    not a CPU.
    """
    from tilewright.machine import UnknownName
    from tilewright.targets.cpu.target import named

    name = target.partition(":")[2]
    try:
        machine_row = machine(name)
    except UnknownName as fault:
        raise ArgumentError(f"target={target!r}: {fault}") from None
    if not is_cpu(name):
        raise ArgumentError(f"target={target!r}: {name} is no CPU; its programs run on target='interpreter'")
    return named(machine_row)


def gpu(target: str, described: Machine | None) -> GpuTarget:
    """Return the GPU target for `target`: "gpu", "cuda", "gpu:NAME" or "cuda:NAME". NAME is the name of a machine.
    Without NAME, the machine is `described`, the one that a block program names (None: the program names none). Raise
    ArgumentError in four cases: there is no NAME and no `described`; the machine is unknown or is not a GPU; the target
    is "cuda" and the machine is not NVIDIA's; Tilewright has no code generator for the machine.
    """
    kind, _, name = target.partition(":")
    name = name or (described.name if described is not None else "")
    names = [known for known, maker in _GPUS.items() if maker in _MAKERS[kind]]
    if name not in names:
        label = name or "a program that names no machine"
        whose = "" if kind == GPU else f" of {' or '.join(_MAKERS[kind])}"
        raise ArgumentError(f"target={target!r}: {label} is no GPU{whose}; there is {', '.join(map(repr, names))}")
    from tilewright.targets.gpu.kernel import GpuTarget

    backend_module = f"tilewright.targets.{_GPUS[name]}.backend"
    if find_spec(backend_module) is None:
        raise ArgumentError(f"target={target!r}: {name} has no code generator yet; target='interpreter' runs programs")
    return GpuTarget(target, machine(name), import_module(backend_module).BACKEND)


def stored_kernels(machine: Machine) -> tuple[ModuleType, str]:
    """Return (module, maker) for a GPU: the Python module that writes and reads launches of exported kernels, and the
    folder of the GPU's maker, such as "nvidia". Raise KeyError if `machine` is not a GPU, and ModuleNotFoundError if
    its maker has no such module (only "nvidia" has one).
    """
    maker = _GPUS[machine.name]
    return import_module(f"tilewright.targets.{maker}.stored"), maker


def gpu_machine(target: str) -> Machine:
    """Return the machine for which tile programs are planned if they are compiled for `target`. "gpu:NAME" and
    "cuda:NAME" give the machine NAME. "gpu" and "cuda" give the newest machine of the registry with code that the GPU
    at hand can run. Raise TargetError if the GPU at hand can run code of no machine. Raise ArgumentError if NAME is
    unknown or has no code generator.
    """
    if target not in _MAKERS:
        return gpu(target, None).machine
    reasons = []
    for maker in _MAKERS[target]:
        backend_module = f"tilewright.targets.{maker}.backend"
        if find_spec(backend_module) is None:
            continue
        names = [name for name, its_maker in _GPUS.items() if its_maker == maker]
        for name in reversed(names):  # the newest first
            why = import_module(backend_module).BACKEND.why_not(machine(name))
            if why is None:
                return machine(name)
            reasons.append(why)
    raise TargetError(f"target={target!r}: {reasons[0]}; code for a GPU by name, 'gpu:hopper', can be read anywhere")


def check_target(target: object, others: tuple[str, ...]) -> None:
    """Raise ArgumentError unless `target` is "cpu", "cpu:NAME", or one of the texts in `others`, such as "interpreter".
    If `others` contains "gpu", then "cuda", "gpu:NAME" and "cuda:NAME" are accepted too. Each NAME must be a machine of
    the registry that Tilewright generates code for.
    """
    known = isinstance(target, str) and (is_native(target) or target in others or (GPU in others and is_gpu(target)))
    if not known:
        choices = ", ".join(map(repr, (CPU, *others, *((CUDA,) if GPU in others else ()))))
        raise ArgumentError(f"target={target!r}: there is {choices}, or a machine by name, 'cpu:x86.avx512'")
    assert isinstance(target, str)
    if is_native(target) and target != CPU:
        _named_cpu(target)
    if is_gpu(target) and target not in _MAKERS:
        gpu(target, None)
