"""PTX from a loop program, by LLVM."""

from __future__ import annotations

import llvmlite.binding as llvm

from tilewright.ir.core import Program
from tilewright.machine import Machine
from tilewright.targets.gpu.emit import Emitted, emit
from tilewright.targets.nvidia.dialect import Ptx

TRIPLE = "nvptx64-nvidia-cuda"
PASSES = ("sroa", "simplify_cfg", "instruction_combine", "simplify_cfg")


def architecture(machine: Machine) -> tuple[str, str]:
    """(the CPU, its features) by LLVM's names."""
    return ("sm_90a", "+ptx80") if "sm_90a" in machine.features else ("sm_80", "+ptx80")


def emitted(program: Program, machine: Machine) -> Emitted:
    """The LLVM IR of a loop program."""
    return emit(program, machine, Ptx())


def assembly(text: str, machine: Machine) -> str:
    """The PTX of an LLVM module."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    cpu, features = architecture(machine)
    module = llvm.parse_assembly(text)
    module.verify()
    target = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=cpu, features=features, opt=3)
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=2))
    manager = llvm.create_new_module_pass_manager()
    for name in PASSES:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)
    return str(target.emit_assembly(module))
