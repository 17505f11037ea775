"""The form in which a target describes itself: what its instructions compute, as data with executable meaning.

| file        | subject                                                                       |
|-------------|-------------------------------------------------------------------------------|
| operands    | where an instruction's operand lives, and which element lies where            |
| multiply    | multiplication atoms: one instruction that multiplies small matrices          |
| request     | what a copy is asked to do: a box, where it comes from, where it goes         |
| copy        | copy atoms: one instruction that moves elements; answers and refusals         |
| lanes       | copies in which each lane has its own address, shared by several targets      |
| description | the machine: spaces, limits, tables of atoms                                  |

The rows stand in `targets/`; passes, planners and interpreters are handed a target and import none.
"""

from tilewright.machine.copy import CopyAtom, Instruction, Refusal, Refused
from tilewright.machine.description import Limits, Machine, Space, UnknownName, spaces_of
from tilewright.machine.multiply import MultiplyAtom
from tilewright.machine.operands import MemoryOperand, OpaqueOperand, RegisterOperand
from tilewright.machine.request import CopyRequest, Place

__all__ = [
    "CopyAtom",
    "CopyRequest",
    "Instruction",
    "Limits",
    "Machine",
    "MemoryOperand",
    "MultiplyAtom",
    "OpaqueOperand",
    "Place",
    "Refusal",
    "Refused",
    "RegisterOperand",
    "Space",
    "UnknownName",
    "spaces_of",
]
