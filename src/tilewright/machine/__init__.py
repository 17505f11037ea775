"""The form in which a target describes itself: what its instructions compute, as data with executable meaning.

| file        | subject                                                                       |
|-------------|-------------------------------------------------------------------------------|
| operands    | where an instruction's operand lives, and which element lies where            |
| multiply    | multiplication atoms: one instruction that multiplies small matrices          |
| request     | what a copy is asked to do: a box, where it comes from, where it goes         |
| views       | the same of a block program: views whose coordinates are expressions          |
| ends        | views that end before their tensors do                                        |
| copy        | copy atoms: one instruction that moves elements; answers and refusals         |
| lanes       | copies in which each lane has its own address, shared by several targets      |
| lane_views  | when such a copy can be done between views                                    |
| offsets     | where each element of a view lies, with sizes and rounds that are not known    |
| costs       | what work costs that no instruction's row tells: blocks, tasks, stores apart  |
| resources   | what waves of many lanes work with: registers, accesses, shared memory, tasks |
| description | the machine: spaces, limits, tables of atoms                                  |

The rows stand in `targets/`; passes, planners and interpreters are handed a target and import none.
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
