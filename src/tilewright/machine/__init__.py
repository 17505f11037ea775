"""The form in which a target describes itself: what its instructions compute, as data with executable meaning.

| file     | subject                                                                      |
|----------|------------------------------------------------------------------------------|
| operands | where an instruction's operand lives, and which element lies where            |
| multiply | multiplication atoms: one instruction that multiplies small matrices          |
| copy     | copy atoms: one instruction that moves elements                               |

The rows stand in `targets/`; passes, planners and interpreters are handed a target and import none.
"""

from tilewright.machine.copy import CopyAtom
from tilewright.machine.multiply import MultiplyAtom
from tilewright.machine.operands import MemoryOperand, OpaqueOperand, RegisterOperand

__all__ = ["CopyAtom", "MemoryOperand", "MultiplyAtom", "OpaqueOperand", "RegisterOperand"]
