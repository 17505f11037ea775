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
    """A layout operation that cannot be done; the message names the layouts and the failing mode."""


class ModeError(LayoutError, IndexError):
    """A mode that a layout or an int tuple does not have."""


class ExpressionError(TilewrightError, ValueError):
    """An integer expression that has no meaning here: an unknown symbol, a true value asked of a condition."""


class NotExact(ExpressionError, ArithmeticError):
    """`a / b` was evaluated where b does not divide a."""


class DivisionByZero(ExpressionError, ZeroDivisionError):
    """`//`, `%` or `/` by 0 in an integer expression."""


class OutOfRange(ExpressionError):
    """A symbol was given a value outside the range it was declared with."""


class AccessError(TilewrightError, ValueError):
    """A transform, access or cut that cannot be done; the message names the axis or the divisors."""


SHOWN = 100
"""Of a long line, so many characters are shown on both sides of a fault."""


class ParseError(TilewrightError, ValueError):
    """Text that is not in the notation; the message shows the text with a caret under the fault."""

    def __init__(self, what: str, text: str, position: int):
        self.text = text
        self.position = position
        start = max(0, position - SHOWN) if len(text) > 2 * SHOWN else 0  # of a long text, what stands around
        line = text[start : start + 2 * SHOWN]
        super().__init__(f"{what}\n  {line}\n  {' ' * (position - start)}^")
        self.what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.text, self.position)


class ProgramError(TilewrightError, ValueError):
    """A program that makes no sense; the message points at the author's line where it is known.

    `location` is anything with a method `pointing()` that gives file, line and caret.
    """

    def __init__(self, what: str, location: Any = None):
        self.what = what
        self.location = location
        super().__init__(what if location is None else f"{what}\n{location.pointing()}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.location)


class ProblemError(TilewrightError, ValueError):
    """A problem that cannot be, or data that do not fit one; the message names key, value and rule.

    `key` is the key of the problem notation that is at fault ("ih", "g", ...), where there is one.
    """

    def __init__(self, what: str, key: str = ""):
        self.key = key
        super().__init__(what)


class BadPartition(ProgramError, LayoutError):
    """A tile that cannot be dealt out to threads as was asked: not evenly, or not to each thread once."""


class DtypeMismatch(ProgramError, TypeError):
    """Element types that do not go together."""


class DimensionMismatch(ProgramError):
    """Dimensions that do not go together."""


class BadMapping(ProgramError):
    """An index mapping that does not say, for each element of the tile, which element of memory it is."""


class NoSuchAttribute(ProgramError, AttributeError):
    """Something that arrays have, asked of a tile or of memory inside a kernel."""


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
    """A gradient was asked of an operator that has no backward; the message names it and the way out."""


class ExecutionError(ProgramError, RuntimeError):
    """A program that does, when run, what it must not: reading outside memory, say."""


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
    """What an interpreter finds wrong with a program as it runs; the message names the operations and their lines."""


class RaceFault(InterpreterFault):
    """Two agents touch one element, one of them writing, and nothing orders them."""


class DeadlockFault(InterpreterFault):
    """Every agent waits; the message says for what."""


class UninitialisedFault(InterpreterFault):
    """Memory or registers are read that nothing has written."""


class OutOfBoundsFault(InterpreterFault):
    """A coordinate lies outside its tensor, where it was not said that it may."""


class ProtocolFault(InterpreterFault):
    """A channel is used against its order: a stage that is not held, committed twice, never released."""


class NotWrittenFault(InterpreterFault):
    """An output was not written completely."""


class CodeGenerationError(TilewrightError, RuntimeError):
    """Machine code could not be generated; the message says what LLVM said."""


class NotPicklable(TilewrightError, PicklingError):
    """What another process could not find again; the message names it and what to pickle instead."""


class CacheError(TilewrightError, OSError):
    """A folder that the cache of compiled programs leaves alone; the message names it and the rule."""


class CacheWarning(UserWarning):
    """The cache of compiled programs is not used; the message names the file or folder and the rule."""


class InterpreterOnlyWarning(UserWarning):
    """An operation that only an interpreter does; machine code leaves it out."""


class MissingAtomWarning(UserWarning):
    """A product that runs as slow loops: the machine lacks its atom, or the atom does not take its factors."""


class MissingPackage(TilewrightError, ImportError):
    """A package that something needs, and that is not installed; the message names both, and how to install it."""


class TargetError(TilewrightError, RuntimeError):
    """A target that does not run here; the message names the machine that the code is for, and this one."""


class ManifestError(TilewrightError, ValueError):
    """An exported kernel that cannot be loaded: a file is missing, cut off or changed, or of another version."""
