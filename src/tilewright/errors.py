"""Every error Tilewright raises on purpose, in one place.

Each message names the thing, its value and the way out. All derive from `TilewrightError` and, where a
builtin exception fits, from that too, so that `except ValueError` keeps working.
"""

from __future__ import annotations

from pickle import PicklingError
from typing import Any


class TilewrightError(Exception):
    """The base of all errors raised by Tilewright."""


class LimitExceeded(TilewrightError, ValueError):
    """More than Tilewright takes: the message names the value and the limit; `tilewright.limits` lists them all."""


class LayoutError(TilewrightError, ValueError):
    """An impossible layout operation; the message names the layouts and the failing mode."""


class ModeError(LayoutError, IndexError):
    """A mode that a layout or an int tuple does not have."""


class ExpressionError(TilewrightError, ValueError):
    """An integer expression that is invalid here, such as an unknown symbol, or a symbolic condition used as a bool."""


class NotExact(ExpressionError, ArithmeticError):
    """`a / b` was evaluated where b does not divide a."""


class DivisionByZero(ExpressionError, ZeroDivisionError):
    """`//`, `%` or `/` by 0 in an integer expression."""


class OutOfRange(ExpressionError):
    """A symbol was given a value outside the range it was declared with."""


class AccessError(TilewrightError, ValueError):
    """An impossible transform, access or split; the message names the axis or the divisors."""


SHOWN = 100
"""The number of characters of a long line that are shown on each side of an error."""


class ParseError(TilewrightError, ValueError):
    """Text that does not parse; the message shows the text with a caret under the error."""

    def __init__(self, what: str, text: str, position: int):
        self.text = text
        self.position = position
        start = (
            max(0, position - SHOWN) if len(text) > 2 * SHOWN else 0
        )  # of a long text, only the part around the error
        line = text[start : start + 2 * SHOWN]
        super().__init__(f"{what}\n  {line}\n  {' ' * (position - start)}^")
        self.what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.text, self.position)


class ProgramError(TilewrightError, ValueError):
    """An invalid program; the message points at the author's line if it is known.

    `location` is anything with a method `pointing()` that gives file, line and caret.
    """

    def __init__(self, what: str, location: Any = None):
        self.what = what
        self.location = location
        super().__init__(what if location is None else f"{what}\n{location.pointing()}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.location)


class ProblemError(TilewrightError, ValueError):
    """An impossible problem, or data that do not fit it; the message names key, value and rule.

    `key` is the key of the problem notation that is at fault ("ih", "g", ...), where there is one.
    """

    def __init__(self, what: str, key: str = ""):
        self.key = key
        super().__init__(what)


class BadPartition(ProgramError, LayoutError):
    """A tile that cannot be distributed over threads as requested: not evenly, or not once to each thread."""


class DtypeMismatch(ProgramError, TypeError):
    """Element types that do not match."""


class DimensionMismatch(ProgramError):
    """Dimensions that do not match."""


class BadMapping(ProgramError):
    """An index mapping that does not give an element of memory for each element of the tile."""


class NoSuchAttribute(ProgramError, AttributeError):
    """An attribute that arrays have, but tiles and memory inside a kernel do not."""


class PythonControlFlow(ProgramError, TypeError):
    """Python's `if`, `for` or `while` on a tile: its values are not known while the kernel is traced."""


class NothingWritten(ProgramError):
    """A kernel that never writes."""


class UnboundSymbol(ProgramError):
    """A symbol that is neither bound nor found in an argument's shape."""


class MissingTiling(ProgramError):
    """An `iterate` whose tile size is part of its meaning, without a TilingConstraint."""


class OutOfScope(ProgramError, NotImplementedError):
    """A name of Wave's that Tilewright deliberately does not offer."""


class NoAtoms(ProgramError):
    """A product that must run on the machine's multiplication atoms, by `require_atoms`, and does not."""


class SlowPlan(ProgramError):
    """A kernel that must be planned near its roofline, by `require_fast`, and is not."""


class ArgumentError(TilewrightError, TypeError):
    """An argument of a kernel call that does not fit: the message names it, its value and what is allowed."""


class TracedArgument(ArgumentError):
    """An argument that a framework traces instead of computing: it has no values yet, or what is done with it would be
    lost. The message names the argument, who traces it, and the way out.
    """


class MissingBackward(TilewrightError, RuntimeError):
    """A gradient of an operator that has no backward; the message names the operator and an alternative."""


class ExecutionError(ProgramError, RuntimeError):
    """A program that does something illegal when run, such as reading out of bounds."""


class NarrowingWarning(UserWarning):
    """A write that rounds to a narrower element type without a cast."""


class AliasingWarning(UserWarning):
    """A kernel argument that is read and written through different accesses."""


class FastPathLost(UserWarning):
    """A product that runs as plain loops although the machine has a multiplication atom for its types."""


class SlowPlanWarning(UserWarning):
    """A kernel whose plan is predicted to take more than 4 times its roofline, and more than 20 us above it."""


class BatchLoopWarning(UserWarning):
    """An operator under torch.vmap that is called once for each element of the batch."""


class IgnoredOptionWarning(UserWarning):
    """An option of Wave's that has no meaning here."""


class InterpreterFault(ExecutionError):
    """An error of a program that an interpreter finds at run time; the message names operations and their lines."""


class RaceFault(InterpreterFault):
    """Two agents (waves, copies) access one element, at least one writes, and nothing orders them."""


class DeadlockFault(InterpreterFault):
    """Every agent waits; the message says for what."""


class UninitialisedFault(InterpreterFault):
    """Memory or registers are read that nothing has written."""


class OutOfBoundsFault(InterpreterFault):
    """A coordinate is out of bounds of its tensor, and is not marked with ?."""


class ProtocolFault(InterpreterFault):
    """A channel is used out of order: a stage that is not held, is committed twice, or is never released."""


class NotWrittenFault(InterpreterFault):
    """An output was not written completely."""


class CodeGenerationError(TilewrightError, RuntimeError):
    """Machine code could not be generated; the message says what LLVM said."""


class NotPicklable(TilewrightError, PicklingError):
    """An object that another process could not find by name; the message says what to pickle instead."""


class CacheError(TilewrightError, OSError):
    """A folder that the cache of compiled programs refuses to use; the message names it and the rule."""


class CacheWarning(UserWarning):
    """The cache of compiled programs is not used; the message names the file or folder and the rule."""


class InterpreterOnlyWarning(UserWarning):
    """An operation that only interpreters execute; machine code ignores it."""


class MissingAtomWarning(UserWarning):
    """A product that runs as slow loops: the machine lacks its atom, or the atom does not fit its operands."""


class MissingPackage(TilewrightError, ImportError):
    """A required package is not installed; the message names it, who needs it, and how to install it."""


class TargetError(TilewrightError, RuntimeError):
    """A target that does not run here; the message names the machine that the code is for, and this one."""


class ManifestError(TilewrightError, ValueError):
    """An exported kernel that cannot be loaded: a file is missing, cut off or changed, or of another version."""
