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
    """Return the machine (GPU or CPU) of that name, such as "hopper" or "x86.avx512"; the same object at every call.
    Raise UnknownName if there is no machine of that name.
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
    """Return the CPU target for "cpu" (the CPU at hand) or "cpu:NAME" (a machine by name). Raise ArgumentError if NAME
    is no CPU of the registry.
    """
    if target == CPU:
        from tilewright.targets.cpu.target import host

        return host()
    return _named_cpu(target)


def _named_cpu(target: str) -> CpuTarget:
    """Return the CPU target for "cpu:NAME", where NAME is a machine of the registry. Raise ArgumentError if there is no
    such machine, or if it is no CPU.
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
    """Return the GPU target for "gpu", "cuda", or either followed by ":NAME" (the name of a machine). Without a NAME
    the machine is `described`, the machine that a program is written for (None: the program names none). "cuda" accepts
    NVIDIA's machines only. Raise ArgumentError if there is no such GPU, or no code generator for it.
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
    """Return the Python module that writes and reads launches of exported kernels for `machine`, and the folder name of
    its maker, such as "nvidia". `machine` must be a GPU.
    """
    maker = _GPUS[machine.name]
    return import_module(f"tilewright.targets.{maker}.stored"), maker


def gpu_machine(target: str) -> Machine:
    """Return the machine that tile kernels are planned for. It is the one that the target names; for plain "gpu" or
    "cuda", the newest machine of the registry whose code the GPU at hand can run. Raise TargetError if the GPU at hand
    runs none. Raise ArgumentError if the name is unknown.
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
    """Raise ArgumentError unless `target` is a CPU target ("cpu", "cpu:NAME") or one of `others`. If `others` has
    "gpu", all GPU targets are accepted too. NAME must be a machine of the registry. `others` are the further targets
    that the caller accepts, such as "interpreter".
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
