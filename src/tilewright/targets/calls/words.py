"""The words (64-bit fields) of tables and records of calls, in order, and the LLVM instructions that load them."""

from __future__ import annotations

from tilewright.targets.calls.llvm_text import fields

ARGUMENTS = 64
"""The most arguments and outputs of a call."""
WORDS = 512
"""The most words of a description."""
HEADER = 4
"""Words before the extents and strides of an argument: its type; its element type, value or device; flags or
element form; misalignment."""
ENTRY = ("hash", "count", "words", "record")
"""The words of an entry: the hash of a description, how many words it has, where they are, the record."""
SMALL = ("place", "dims", "rank", "size", "unit", "bytes", "reads", "writes")
"""The words of a small copy: the array; where its extents and strides are, and how many there are; the bytes of an
element, of the unit of strides, and of all elements; whether it is read, and whether it is written back."""
COPY = ("place", "make", "back")
"""The words of another copy: the argument; the function that returns a contiguous copy; the function that copies it
back, or null."""
FIXED = ("place", "object", "version", "address")
"""The words of an argument that must be one tensor: the argument, the tensor's Python object, its version, its
address."""
PATCH = ("which", "where")
"""The words of an address in a launch: the number of an array of the call, and where its address is stored."""
TEXT_BYTES = 16
"""The most UTF-8 bytes that a text argument may have."""
SIZES = (1, 2, 4, 8, 16)
"""Element sizes that small copies support, in bytes."""
PAIR = ("a", "b", "low", "high", "at_distance", "wanted")
"""The words of a pair: two arrays; the two distances of the second from the first between which they overlap; whether
they must be at one distance, and at which."""


TABLE = (
    "entries",  # how many, then each
    "array_type", "tensor_type", "parameter_type", "float_type", "int_type", "bool_type",
    "look", "following", "negated",  # functions of tensors: describe them, tell whether calls are traced, `is_neg`
    "grads", "recording",  # `requires_grad`, and the function that tells whether gradients are recorded
    "text_type", "list_type",
    "false", "unlike", "none",
    "version",  # `_version`
    "at_length",  # the address of a word: while it is not 0, no call is repeated
)  # fmt: skip
"""The words of a table; a null `following` or `grads` is not asked."""
RECORD = (
    "given", "outputs", "results",  # how many arguments the call gets, arrays it makes, and returns of these
    "pairs", "pair",
    "fixes", "fixed", "alive",  # arguments that must be one tensor; a word that is 0 when they are gone, or null
    "variable", "threads",  # the name of a variable of the environment, and its value; null: it is not set
    "copies", "copy",
    "smalls", "small",  # arrays that are copied to the stack, or from there
    "makers", "finishers",  # the functions that make outputs, and those that turn them into results, or null
    "told", "tell", "telling",  # arguments whose writes torch counts, and the function that counts them
    "launch", "launched",  # i32 (launched, addresses): 0, `LAUNCH_UNLIKE`, or an error code
    "trouble",  # the function that raises for an error code
    "keeper",  # the record's Python object
)  # fmt: skip
"""The words of a record."""
_POINTERS = {
    *TABLE, "pair", "fixed", "alive", "small", "variable", "threads", "copy", "makers", "finishers", "tell", "telling",
    "launch", "launched", "trouble", "keeper",
}  # fmt: skip


def table_fields(*names: str) -> str:
    """Return LLVM instructions that load the words `names` of the call table at %table. `names` are from TABLE. Each
    loaded value is named like its word.
    """
    return fields(names, TABLE, "table", _POINTERS)


def record_fields(*names: str) -> str:
    """Return LLVM instructions that load the words `names` of the call record at %record. `names` are from RECORD. Each
    loaded value is named like its word.
    """
    return fields(names, RECORD, "record", _POINTERS)
