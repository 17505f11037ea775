"""The machine table of NVIDIA's GPUs: Ampere, and Hopper, which adds wgmma, TMA and stmatrix."""

from __future__ import annotations

from dataclasses import replace

from tilewright.machine import BulkCopy, Limits, Machine, spaces_of
from tilewright.targets.gpu.functions import NVIDIA
from tilewright.targets.gpu.resources import ACCESS, COSTS, LIMITS, REGISTERS, ROW_TASKS, SHARED
from tilewright.targets.nvidia.atoms import COPY, MULTIPLY
from tilewright.targets.nvidia.multiply import SYNC

_AMPERE = frozenset({"sm_75", "sm_80"})
_HOPPER = _AMPERE | {"sm_90", "sm_90a"}


_REGISTERS = replace(
    REGISTERS,
    role_unit=8,  # registers of a role are multiples of 8 (setmaxnreg), 24 to 240
    role_least=24,
    role_reserved=15,
)
_SHARED = replace(SHARED, atom_rows=8, atoms_in_flight=3)  # wgmma reads matrices of eight rows of 16 bytes
# a tensor map's boxes, its narrowest swizzle, and the dimensions beside channels of an im2col map
_BULK = BulkCopy(box_extent=256, taps_bytes=24 << 10, counted_dims=4)


def _row(name: str, features: frozenset[str], shared: int, limits: Limits, sync: float = SYNC) -> Machine:
    """Return the description of an NVIDIA GPU with the name `name`, the features `features` and the `limits`. The
    machine has those atoms that need no other features. `shared` is the number of bytes of shared memory of a
    multiprocessor. `sync` is the number of cycles of an mma.sync on a quarter of a multiprocessor.
    """
    return Machine(
        name,
        lanes=32,
        waves=32,
        # the swizzle of a tile needs a base that is a multiple of 1024 bytes
        spaces=spaces_of(shared=shared, registers=256 << 10, alignment=1024),
        multiply={
            name: replace(atom, cycles=sync) if atom.cycles == SYNC else atom
            for name, atom in MULTIPLY.items()
            if features.issuperset(atom.features)
        },
        copies={name: atom for name, atom in COPY.items() if features.issuperset(atom.features)},
        features=features,
        limits=limits,
        cluster=8 if "sm_90" in features else 1,
        launches=frozenset({"programmatic"} if "sm_90" in features else ()),
        costs=replace(COSTS, functions=NVIDIA),
        register_file=_REGISTERS,
        lane_access=ACCESS,
        shared_memory=_SHARED,
        bulk_copy=_BULK,
        row_tasks=ROW_TASKS,
    )


# An A100 with 80 GB. From NVIDIA's whitepaper of the architecture: cores, clock, caches, rates of memory, lanes and
# special units. From published microbenchmarks (Sun et al. 2022; tests of latencies): mma.sync, copies. The costs of
# launches and of rows that are not aligned to sectors are guesses from Hopper's.
_AMPERE_LIMITS = Limits(
    255,
    instructions=3000,
    l1_bytes=192 << 10,
    l2_bytes=40 << 20,
    l2_share=0.6,
    cores=108,
    clock_ghz=1.41,
    l2_rate=38.0,  # 0.8 of 5120 bytes a cycle
    far_rate=12.0,  # 0.9 of 2039 GB/s
    far_alone=1.1,
    warm=2.2,  # L2 compared with memory, if all cores read
    shared_rate=128.0,
    copy_latency=550,
    sector_bytes=32,
    misaligned_row=1.25,  # as on Hopper
    misaligned_row_tail=1.5,
    leaving_row=2.5,
    lane_rate=64,
    function_rate=16,
    placing=27.0,  # as on Hopper
    working_registers=48,
    launch_cycles=5000,
    following_cycles=3500,
    start_cycles=2.5,
    **LIMITS,
)

_HOPPER_LIMITS = Limits(
    255,
    instructions=3000,
    l1_bytes=256 << 10,
    l2_bytes=50 << 20,
    l2_share=0.6,
    results_kept=(0.25, 0.75),
    cores=132,
    clock_ghz=1.755,
    l2_rate=75.0,
    l2_parts=2,
    alone=2.0,  # 3x3 32x28x28 128-128 in tasks of 192x64, dealt to cores in contiguous order
    strewn=1.45,  # 512x512x16384 in 4, 8 and 16 parts, launched early and plain
    rewritten=1.05,  # 3x3 NCHW 32x28x28 128-128 in tasks of 64x200 to 128x224; nt 333x4096x776 with padded rows
    crossing=2.0,
    far_rate=18.0,
    far_alone=1.11,
    warm=1.45,
    shared_rate=128.0,
    copy_latency=800,
    copy_shown=0.22,
    far_users=1.2,  # 256x4096x4096 in 2x64 tasks, walked along either side
    read_power=0.5,  # 4096x4096x4096 in tasks of 256x64
    shallow_ring=1.08,
    operands_kept=(0.5, 0.9),
    far_latency=1400,  # 512x512x16384 and 256x4096x4096 in parts with 2 to 4 stages; little at 1111x2222x3336
    lone_group=1.04,
    least_step=325,  # 512x512x16384 in tasks of 64x32 to 64x64: none is shorter
    group_step=15,  # 1111x2222x3336 in tasks of 128x160 by one group and by two
    lone_lanes=2.0,  # attention 2x16x4096x128 with one group that does not multiply ahead
    lane_store=20,
    lone_store=300,
    last_store=1.25,
    epilogue_latency=200,  # 8192x8192x1024 in tasks of 128x256, and of 128x128 with ping-pong
    meeting=500,
    sector_bytes=32,
    misaligned_row=1.25,
    misaligned_row_tail=2.5,
    leaving_row=2.5,
    task_cycles=500,
    next_task=100,  # 1x1 50x7x7 512-2048 of i8 in 2 and in 3 tasks a core
    outside_row=1.0,
    overlapping=0.65,  # 7x7 32x224x224x3-64 by 2 in tasks of 112 to 256 rows
    lane_rate=128,
    function_rate=16,
    placing=27.0,
    round_latency=1700,
    # attention 2x16x4096x128 with tiles of 64, 96 and 128 keys and 1 to 3 groups of waves; with heads of 64 lanes
    # take longer than matrix units
    group_latency=175,
    lane_latency=600,
    lone_shown=0.5,
    turn_latency=35,
    sharpness=8,  # decoding 32x8x8 with queries in registers, and read again in each iteration
    operand_latency=330,  # 16x8192x8192 with weights of i8 in steps of 64 and 128, and 128 and 256 columns
    working_registers=64,
    loading_registers=72,
    gathering_registers=96,
    gather_cycles=20,
    gather_latency=24,
    launch_cycles=4200,
    following_cycles=2600,
    start_cycles=2.2,
    **LIMITS,
)
"""An H200: rates and times are fitted to measured kernels of `benchmarks/gpu.py --plans 14`."""

MACHINES = {
    row.name: row
    for row in (
        _row("ampere", _AMPERE, 163 << 10, _AMPERE_LIMITS, sync=8.0),
        _row("hopper", _HOPPER, 227 << 10, _HOPPER_LIMITS),
    )
}


def architecture(machine: Machine) -> tuple[str, str]:
    """Return LLVM's (CPU name, feature string) for `machine`: ("sm_90a", "+ptx80") for Hopper, else ("sm_80",
    "+ptx80").
    """
    return ("sm_90a", "+ptx80") if "sm_90a" in machine.features else ("sm_80", "+ptx80")
