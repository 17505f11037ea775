"""The form in which a target describes itself: instructions and rates, as data that can be executed and checked.

| file        | subject                                                                       |
|-------------|-------------------------------------------------------------------------------|
| operands    | operands of instructions: layouts of their elements in registers or memory    |
| multiply    | multiplication atoms: one instruction that multiplies small matrices          |
| request     | copy requests: a box of elements, its source and its target                   |
| views       | copy requests between views of a block program, with symbolic coordinates     |
| ends        | views that end before their tensors do                                        |
| copy        | copy atoms: one instruction that moves elements; answers and refusals         |
| lanes       | copies in which each lane has its own address, shared by several targets      |
| lane_views  | conditions for such a copy between views                                      |
| offsets     | offsets of all elements of a view, for all iterations and open sizes           |
| costs       | cost constants beside those of instructions: tiles, tasks, scattered stores   |
| resources   | resources of waves: registers, accesses, shared memory, bulk copies, tasks    |
| description | the machine: spaces, limits, tables of atoms                                  |

The machines are rows in `targets/`; passes, planners and interpreters are passed a target and import none.
"""

from tilewright.machine.copy import CopyAtom, CopyRefusal, Instruction, Refused
from tilewright.machine.costs import Costs, LaneCosts, ResidentCosts, TermCosts, TileCosts, TileLoadCosts, VectorCosts
from tilewright.machine.description import Limits, Machine, Space, UnknownName, spaces_of
from tilewright.machine.multiply import MultiplyAtom
from tilewright.machine.operands import MemoryOperand, OpaqueOperand, RegisterOperand
from tilewright.machine.request import CopyRequest, Place
from tilewright.machine.resources import BulkCopy, LaneAccess, RegisterFile, RowTasks, SharedMemory
from tilewright.machine.views import Condition, MemoryView, RegisterView, ViewRequest, is_number

__all__ = [
    "BulkCopy",
    "Condition",
    "CopyAtom",
    "CopyRefusal",
    "CopyRequest",
    "Costs",
    "Instruction",
    "LaneAccess",
    "LaneCosts",
    "Limits",
    "Machine",
    "MemoryOperand",
    "MemoryView",
    "MultiplyAtom",
    "OpaqueOperand",
    "Place",
    "Refused",
    "RegisterFile",
    "RegisterOperand",
    "RegisterView",
    "ResidentCosts",
    "RowTasks",
    "SharedMemory",
    "Space",
    "TermCosts",
    "TileCosts",
    "TileLoadCosts",
    "UnknownName",
    "VectorCosts",
    "ViewRequest",
    "is_number",
    "spaces_of",
]
