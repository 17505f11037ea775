"""Resources of machines with waves of many lanes: registers, memory access, shared memory, bulk copies, task sizes.

Each class is a part of a machine's description. The defaults are those of a machine without that part and enable
nothing. A machine in `targets/` states every field that it has.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RegisterFile:
    """Registers of a lane, and of all lanes of a core.

    `word_bytes` are the bytes of one register. If roles of a program have different numbers of registers, a lane of a
    role has a multiple of `role_unit`, at least `role_least`, and at most `role_reserved` below the machine's limit.
    `loop_registers` are needed by a lane beside the accumulators and operands of a loop with several products:
    addresses, counters, values of rows. A lane holds at most `tensor_values` values of one tensor and `lane_values` of
    all tensors of a task; `core_values` is the limit for all lanes of a workgroup together.
    """

    word_bytes: int = 1
    role_unit: int = 1
    role_least: int = 0
    role_reserved: int = 0
    loop_registers: int = 0
    tensor_values: int = 0
    lane_values: int = 0
    core_values: int = 0

    @property
    def word_bits(self) -> int:
        """Return the bits of one register."""
        return 8 * self.word_bytes


@dataclass(frozen=True)
class LaneAccess:
    """Loads and stores of a lane, in bytes except for the count of loads.

    `vector_bytes` is the most that a lane moves with one instruction, `line_bytes` the unit in which memory is moved. A
    lane may have `own_bytes` of contiguous memory to itself. A tile that is transposed through shared memory has a side
    of `transposed_bytes`. `loads_in_flight` is the number of registers that a lane loads before it uses the first.
    """

    vector_bytes: int = 1
    line_bytes: int = 1
    own_bytes: int = 0
    transposed_bytes: int = 1
    loads_in_flight: int = 1


@dataclass(frozen=True)
class SharedMemory:
    """Layout and use of matrices in shared memory.

    `swizzle_bits` is the number of bits of a row index that permute its vectors, so that a column is spread over all
    banks. An atom that reads shared memory reads groups of `atom_rows` equally spaced rows; groups may lie anywhere.
    `atoms_in_flight` is the number of atoms of one group of waves that keeps the matrix unit busy. `hoisted_elements`
    is the largest operand, in elements, that is read before a loop for all of its iterations.
    """

    swizzle_bits: int = 0
    atom_rows: int = 1
    atoms_in_flight: int = 1
    hoisted_elements: int = 0


@dataclass(frozen=True)
class BulkCopy:
    """Asynchronous bulk copies between global and shared memory (such as TMA).

    One copy has at most `box_extent` elements along a dimension. A stage holds several filter taps if these have at
    most `taps_bytes` together. Window positions are counted over at most `counted_dims` dimensions.
    """

    box_extent: int = 0
    taps_bytes: int = 0
    counted_dims: int = 1


@dataclass(frozen=True)
class RowTasks:
    """Task sizes of memory-bound kernels: the number of waves of a task, and the values that each lane holds.

    A task has `waves` waves: `fewer_waves` if these move enough data, `most_waves` if rows are long, and at least
    `least_waves` as long as each lane has `least_values` values. A lane has `values` values of a tile, `most_values` if
    rows are long, and loads `loaded_bytes`. A split reduction has at least `part_elements` elements in each part.
    """

    waves: int = 1
    fewer_waves: int = 1
    most_waves: int = 1
    least_waves: int = 1
    values: int = 1
    most_values: int = 1
    least_values: int = 1
    loaded_bytes: int = 1
    part_elements: int = 1
