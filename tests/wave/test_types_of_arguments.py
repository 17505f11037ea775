"""Argument types that are texts mean what they mean where they are written, whatever their callers call things."""

from __future__ import annotations

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels

M, N = tkl.sym.M, tkl.sym.N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def test_a_callers_variable_does_not_become_a_dimension():
    """A caller with a variable N of its own got a bias of that many elements, and another kernel."""

    def calling(N):
        return kernels.gemm("nt", "bf16", bias=True).trace()

    assert str(calling(64)) == str(kernels.gemm("nt", "bf16", bias=True).trace())
    assert "%bias: global f32[N]" in str(calling(64))


def test_variables_of_the_functions_around_count():
    def outer(kind):
        N = 5  # noqa: F841, the types name it

        def inner():
            @tkw.wave()
            def copy(x: tkl.Memory[M, N, GLOBAL, kind], y: tkl.Memory[M, N, GLOBAL, kind]):
                tkw.write(tkw.read(x), y)

            return copy

        return inner()

    assert "%x: global f16[M, 5]" in str(outer(tkl.f16).trace())
