"""Kernels on a GPU that XLA calls, without one: the driver's device is the host, and XLA's buffers are its memory."""

from __future__ import annotations

import ctypes
from typing import Any

import jax
import numpy as np
import pytest
from test_memory import TEXT, Driver, told  # noqa: F401

import tilewright
import tilewright.jax
from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError, ExecutionError
from tilewright.jax.entries import XlaBuffer, XlaCall
from tilewright.jax.frames import CallFrame
from tilewright.jax.gpu import GpuCalls, XlaGpuProgram
from tilewright.jax.handler import callback_handler
from tilewright.jax.members import xla_program_of
from tilewright.jax.registry import _ELSEWHERE, call_registered
from tilewright.kernels import gemm

REPORTED = (jax.errors.JaxRuntimeError, ValueError)
TILE = XlaBuffer((4, 32), np.dtype(np.float32))
CALL = XlaCall((TILE,), (TILE,), (0, 1), (0,))
_kept: list[Any] = []


def calls(name: str) -> GpuCalls:
    """Calls of a host program for a GPU, registered with XLA for the CPU; they live as long as the process."""
    program = xla_program_of(compile_text(TEXT, "gpu").executor, CALL.buffers, None, "twice")
    assert isinstance(program, XlaGpuProgram)
    kernel = GpuCalls(name, program, CALL)
    handler = callback_handler(ctypes.cast(kernel.callback, ctypes.c_void_p).value or 0)
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler.address)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
    _kept.extend([kernel, handler])
    return kernel


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> int:
    """XLA tells no stream for the CPU: this one is told."""
    monkeypatch.setattr(CallFrame, "stream", lambda _: 77)
    monkeypatch.setattr(CallFrame, "device", lambda _: 0)
    return 77


def test_launches_fills_and_workspaces_are_asked_of_xlas_stream(told: Driver, stream: int) -> None:  # noqa: F811
    calls("tilewright.test.streamed")
    x = np.arange(128, dtype=np.float32).reshape(4, 32)
    run = jax.jit(lambda x: call_registered("tilewright.test.streamed", CALL, {}, (x,))[0])
    assert (np.asarray(run(x)) == x).all()
    assert told.streams == [stream] * 4  # the result's zeros, the fill, two launches
    assert {rest[-1] for name, *rest in told.calls if name in ("take", "give back")} == {stream}


def test_under_vmap_each_member_has_its_own_part_of_the_buffers(told: Driver, stream: int) -> None:  # noqa: F811
    calls("tilewright.test.batched")
    x = np.arange(3 * 2 * 128, dtype=np.float32).reshape(3, 2, 4, 32)
    run = jax.vmap(jax.vmap(lambda x: call_registered("tilewright.test.batched", CALL, {}, (x,))[0]), in_axes=1)
    assert (np.asarray(jax.jit(run)(x)) == x.swapaxes(0, 1)).all()
    assert len(told.streams) == 4 * 6


def test_an_error_of_the_program_is_reported_with_the_kernels_name(
    told: Driver,  # noqa: F811
    stream: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = calls("tilewright.test.refused")

    def refuse(frame: CallFrame) -> None:
        raise ExecutionError("x[0] is negative")

    monkeypatch.setattr(kernel, "run", refuse)
    run = jax.jit(lambda x: call_registered("tilewright.test.refused", CALL, {}, (x,))[0])
    with pytest.raises(REPORTED, match=r"tilewright\.test\.refused: x\[0\] is negative"):
        run(np.ones((4, 32), np.float32)).block_until_ready()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_that_is_not_ours_does_not_pass_for_a_result(
    told: Driver,  # noqa: F811
    stream: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = calls("tilewright.test.broken")
    monkeypatch.setattr(kernel, "run", lambda frame: {}["missing"])
    run = jax.jit(lambda x: call_registered("tilewright.test.broken", CALL, {}, (x,))[0])
    with pytest.raises(REPORTED, match="the call of a kernel on a GPU raised an error of Python"):
        run(np.ones((4, 32), np.float32)).block_until_ready()


def test_a_platform_without_streams_is_an_error() -> None:
    calls("tilewright.test.streamless")
    run = jax.jit(lambda x: call_registered("tilewright.test.streamless", CALL, {}, (x,))[0])
    with pytest.raises(REPORTED, match="XLA does not tell the stream of a call"):
        run(np.ones((4, 32), np.float32)).block_until_ready()


def test_a_frame_tells_stream_and_device_by_the_functions_of_its_api() -> None:
    """A frame and an API as XLA lays them out, with the two functions at their places."""
    asked = []
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

    def telling(number: int) -> Any:
        def tell(address: int) -> int:
            words = (ctypes.c_uint64 * 4).from_address(address)
            asked.append(tuple(words[:3]))
            words[3] = number
            return 0

        return kind(tell)

    functions = {80: telling(0x7F00_0000_0010), 184: telling(3)}
    api = (ctypes.c_uint64 * 24)()
    for offset, function in functions.items():
        api[offset // 8] = ctypes.cast(function, ctypes.c_void_p).value or 0
    words = (ctypes.c_uint64 * 20)()
    words[2], words[3] = ctypes.addressof(api), 4242
    frame = CallFrame(ctypes.addressof(words))
    assert (frame.stream(), frame.device()) == (0x7F00_0000_0010, 3)
    assert asked == [(32, 0, 4242)] * 2


def test_a_kernel_for_a_gpu_on_the_host_is_refused_when_it_runs() -> None:
    run = tilewright.jax.function(tilewright.compile(gemm("nn", "f16", "f32"), target="gpu:hopper"))
    with pytest.raises(REPORTED, match="this kernel is compiled for a GPU, and its arrays lie on the host"):
        jax.jit(run)(np.ones((64, 64), np.float16), np.ones((64, 64), np.float16)).block_until_ready()
    assert {"cpu", "CUDA"} == set(_ELSEWHERE)


def test_a_text_for_a_gpu_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"twice is compiled for 'gpu'; .* programs of compile_text on CPUs only"):
        tilewright.jax.function(compile_text(TEXT, "gpu"))
