"""The codes that an exported kernel returns: each mistake of a caller has its kind, its place and its sentence."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from exported_kernels import compiled

import tilewright
from tilewright.codegen.entry.abi import KIND_BITS, ErrorKind
from tilewright.deploy.cpu_library import KernelLibrary
from tilewright.deploy.threads import PoolStruct
from tilewright.runtime.arrays import empty


class Lent:
    """What a caller lends a call, to be spoilt."""

    def __init__(self) -> None:
        self.arrays = [empty(shape, np.float32) for shape in ((37, 41), (41, 29), (37, 29))]
        for array in self.arrays:
            array.fill(1)
        self.buffers = [a.ctypes.data for a in self.arrays]
        self.kept, self.workspace = empty((1 << 15,), np.uint8), empty((1 << 15,), np.uint8)
        self.addresses = [0, 0, self.kept.ctypes.data, self.workspace.ctypes.data, 0]

    def given(self) -> tuple[int, ...]:
        self.words = np.array(self.buffers, np.uint64)
        return (self.words.ctypes.data if self.buffers else 0, *self.addresses[1:])


@pytest.fixture
def library(tmp_path):
    files = tilewright.export(compiled("gemm_packed"), tmp_path / "gemm")
    return KernelLibrary(files.code, files.manifest)


def null(lent):
    lent.buffers[2] = 0


def no_buffers(lent):
    lent.buffers = []


def misaligned(lent):
    lent.buffers[0] += 2


def overlapping(lent):
    lent.buffers[2] = lent.buffers[0] + 64


def no_kept(lent):
    lent.addresses[2] = 0


def misaligned_workspace(lent):
    lent.addresses[3] += 32


def empty_pool(lent):
    lent.pool = PoolStruct(None, 4096, 0)
    lent.addresses[4] = ctypes.addressof(lent.pool)


def pool_without_run(lent):
    lent.pool = PoolStruct(None, None, 4)
    lent.addresses[4] = ctypes.addressof(lent.pool)


MISTAKES = [
    (null, ErrorKind.NULL_BUFFER, 2, "the buffer c is null"),
    (no_buffers, ErrorKind.NULL_BUFFER, 0, "the buffer a is null"),
    (misaligned, ErrorKind.MISALIGNED_BUFFER, 0, "the buffer a does not lie at a multiple of 4 bytes"),
    (overlapping, ErrorKind.OVERLAPPING_BUFFERS, 2, "the buffer c, which is written, overlaps another"),
    (no_kept, ErrorKind.BAD_KEPT, 0, "kept is null, or does not lie at a multiple of 64 bytes"),
    (misaligned_workspace, ErrorKind.BAD_WORKSPACE, 0, "workspace is null, or does not lie at a multiple of 64 bytes"),
    (empty_pool, ErrorKind.BAD_POOL, 0, "the pool has no function `run`, or fewer than one worker"),
    (pool_without_run, ErrorKind.BAD_POOL, 0, "the pool has no function `run`, or fewer than one worker"),
]


@pytest.mark.parametrize(("spoil", "kind", "place", "says"), MISTAKES)
def test_a_mistake_has_its_kind_its_place_and_its_sentence(spoil, kind, place, says, library):
    lent = Lent()
    assert library.bind(lent.given()) == 0
    spoil(lent)
    code = library.call(lent.given())
    assert (code & (1 << KIND_BITS) - 1, code >> KIND_BITS) == (kind, place)
    assert library.manifest["errors"][str(code)] == says
    message = library._function("gemm_message", ctypes.c_char_p, 0, ctypes.c_int32)
    assert message(code) == says.encode()
    assert (lent.arrays[2] == 1).all()


def test_buffers_that_a_function_does_not_use_may_be_null(library):
    lent = Lent()
    whole = list(lent.buffers)
    lent.buffers = [0, whole[1], 0]
    assert library.bind(lent.given()) == 0
    lent.buffers = [whole[0], 0, whole[2]]
    assert library.call(lent.given()) == 0
    assert (lent.arrays[2] == 41).all()


def test_a_code_that_is_none_has_a_sentence_too(library):
    message = library._function("gemm_message", ctypes.c_char_p, 0, ctypes.c_int32)
    assert message(0) == b""
    assert message(12345) == b"no code of this kernel"
