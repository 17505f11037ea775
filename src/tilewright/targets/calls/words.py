"""The words of tables and records of calls, and the LLVM instructions that load them."""

from __future__ import annotations

from collections.abc import Sequence

ARGUMENTS = 64
"""The most arguments and outputs of a call."""
WORDS = 512
"""The most words of a description."""
HEADER = 4
"""Words before the extents and strides of an argument: type, element type or value or device, form, misalignment."""
ENTRY = 4
"""Words of an entry: the hash of a description, how many words it has, where they are, the record."""
SMALL = 8
"""Words of a small copy: the array; where its extents and strides are, and how many there are; the bytes of an element,
of the unit of strides, and of all elements; whether it is read, and whether it is written back."""
FIXED = 4
"""Words of an argument that must be one tensor: the argument, the tensor's Python object, its version, its address."""
TEXT_BYTES = 16
"""The most bytes of a text that is an argument."""
SIZES = (1, 2, 4, 8, 16)
"""Bytes of elements that small copies are made of."""
PAIR = 6
"""Words of a pair: two arrays; the distance of the second from the first, and whether it is this one, or lies between
two distances that would make them overlap."""


TABLE = (
    "entries",  # how many, then each
    "array_type", "tensor_type", "parameter_type", "float_type", "int_type", "bool_type",
    "look", "following", "negated",  # of tensors: who describes them, who tells that calls are traced, `is_neg`
    "grads", "recording",  # `requires_grad`, and who tells that gradients are recorded
    "text_type", "list_type",
    "false", "unlike", "none",
    "version",  # `_version`
    "at_length",  # a word: while it is not 0, no call is like one before
)  # fmt: skip
"""The words of a table; a null `following` or `grads` is not asked."""
RECORD = (
    "given", "outputs", "results",  # how many arguments the call gets, arrays it makes, and returns of these
    "pairs", "pair",
    "fixes", "fixed", "alive",  # arguments that must be one tensor; a word that is 0 when they are gone, or null
    "variable", "threads",  # the name of a variable of the environment, and its value; null: it is not set
    "copies", "copy",  # (argument, who gives a contiguous array with its elements, who copies that back or null)
    "smalls", "small",  # arguments that are copied to the stack, `SMALL` words each
    "makers", "finishers",  # who makes each output, and who gives what the caller gets for it, or null
    "told", "tell", "telling",  # arguments that torch is told of as written, and who tells it
    "launch", "launched",  # i32 (launched, addresses): 0, `LAUNCH_UNLIKE`, or what went wrong
    "trouble",  # who raises for that
    "keeper",  # the record's Python object
)  # fmt: skip
"""The words of a record."""
_POINTERS = {
    *TABLE, "pair", "fixed", "alive", "small", "variable", "threads", "copy", "makers", "finishers", "tell", "telling",
    "launch", "launched", "trouble", "keeper",
}  # fmt: skip


def fields(names: Sequence[str], words: Sequence[str], at: str, pointers: set[str] | frozenset[str]) -> str:
    """Return LLVM instructions that load some words of a record (a row of i64 words).

    `names` are the words to load, `words` the names of all of the record in order; `at` is the record's pointer, and
    those in `pointers` are loaded as pointers.
    """
    lines = []
    for name in names:
        kind = "ptr" if name in pointers else "i64"
        lines += [
            f"  %word.{name} = getelementptr i64, ptr %{at}, i64 {words.index(name)}",
            f"  %{name} = load {kind}, ptr %word.{name}",
        ]
    return "\n".join(lines)


def table_fields(*names: str) -> str:
    """Return LLVM instructions that load these words of %table."""
    return fields(names, TABLE, "table", _POINTERS)


def record_fields(*names: str) -> str:
    """Return LLVM instructions that load these words of %record."""
    return fields(names, RECORD, "record", _POINTERS)
