"""Index arithmetic of host programs, in LLVM's text."""

from __future__ import annotations

import ctypes

import pytest

from tilewright.algebra.expr import symbol
from tilewright.algebra.expr_divide import exact_divide
from tilewright.codegen.entry.sizes import HostWriter, load_sizes

llvm = pytest.importorskip("llvmlite.binding")


def computed(expression, sizes, values):
    """The value of an expression of sizes, by the machine code of the instructions that are emitted for it."""
    w = HostWriter()
    load_sizes(w, sizes)
    result = w.integer(expression)
    body = "\n".join(line for scope in w.scopes for line in scope.lines)
    text = f"define i64 @f(ptr %sizes) {{\nentry:\n{body}\nret i64 {result}\n}}"
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly("\n".join([*w.declared, text])), llvm.Target.from_default_triple().create_target_machine()
    )
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address("f"))
    return function(ctypes.cast((ctypes.c_int64 * len(values))(*values), ctypes.c_void_p))


A, B = symbol("A", 0, 100), symbol("B", 0, 9)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [(exact_divide(A, B), 12), (A // B, 12), (A % B, 0), ((A + 1) % B, 1), (exact_divide(A, B) + A // B, 24)],
    ids=str,
)
def test_an_exact_quotient_by_a_size_that_may_be_0_is_no_remainder(expression, expected):
    """It was the remainder once."""
    assert computed(expression, (A, B), (36, 3)) == expected


@pytest.mark.parametrize("expression", [exact_divide(A, B), A // B, A % B], ids=str)
def test_a_divisor_of_0_stops_no_program(expression):
    """The branch that divides by it is not taken."""
    computed(expression, (A, B), (36, 0))
