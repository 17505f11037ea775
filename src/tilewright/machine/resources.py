"""Resources of waves of many lanes: registers, accesses to memory, shared memory, bulk copies, task sizes.

Each class is a part of a machine's row. The defaults are those of a machine without that part: nothing is tuned by
them. A row in `targets/` gives every field that its machine has.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RegisterFile:
    """Registers of a lane, and of all lanes of a core.

    `word_bytes` are the bytes of one register. Where roles of a program have different numbers of registers, a lane has
    a multiple of `role_unit`, at least `role_least`, and `role_reserved` fewer than the machine's most.
    `loop_registers` are those of a lane beside the accumulators and operands of a loop of several products: addresses,
    counters, values of rows. A lane holds at most `tensor_values` of one tensor and `lane_values` of all tensors of a
    task; `core_values` are those of all lanes of a workgroup together.
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
        """Bits of one register."""
        return 8 * self.word_bytes


@dataclass(frozen=True)
class LaneAccess:
    """How lanes load and store, in bytes but for the counts.

    `vector_bytes` is the most that a lane moves with one instruction, `line_bytes` what memory moves together. A lane
    may have `own_bytes` of contiguous memory for itself, which other lanes do not touch. A tile that is transposed
    through shared memory has a side of `transposed_bytes`. `loads_in_flight` are the registers that a lane loads before
    it uses the first.
    """

    vector_bytes: int = 1
    line_bytes: int = 1
    own_bytes: int = 0
    transposed_bytes: int = 1
    loads_in_flight: int = 1


@dataclass(frozen=True)
class SharedMemory:
    """How matrices lie in shared memory.

    `swizzle_bits` are the bits of a row's number that move its vectors, so that a column is spread over all banks. An
    atom that reads shared memory reads `atom_rows` rows that are equally far apart; further groups of as many may lie
    anywhere. `atoms_in_flight` are the atoms of one group of waves that keep the unit busy which multiplies.
    `hoisted_elements` is the most of an operand that is read before a loop, for all of its iterations.
    """

    swizzle_bits: int = 0
    atom_rows: int = 1
    atoms_in_flight: int = 1
    hoisted_elements: int = 0


@dataclass(frozen=True)
class BulkCopy:
    """Copies between global and shared memory that the machine does by itself.

    One copy has at most `box_extent` elements along a dimension; rows of results are multiples of `row_bytes`. A stage
    holds several filter taps while these have at most `taps_bytes` together. Positions of windows are counted over at
    most `counted_dims` dimensions.
    """

    box_extent: int = 0
    row_bytes: int = 1
    taps_bytes: int = 0
    counted_dims: int = 1


@dataclass(frozen=True)
class RowTasks:
    """Tasks of programs that memory bounds: how many waves do one, and how much a lane has of it.

    A task has `waves`; `fewer_waves` where these move enough, `most_waves` where rows are long, and at least
    `least_waves` while its lanes have `least_values` each. A lane has `values` of a tile, `most_values` where rows are
    long, and loads `loaded_bytes`. A reduction that is split has at least `part_elements` in each part.
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
