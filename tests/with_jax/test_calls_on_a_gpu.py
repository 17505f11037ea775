"""Kernels on a GPU that XLA calls, without one: the driver's device is the host, and XLA's buffers are its memory."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import jax
import numpy as np
import pytest
from test_memory import TEXT, Driver, told  # noqa: F401

import tilewright
import tilewright.jax
from tilewright.compiler.device import GpuDevice
from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError, ExecutionError, TargetError
from tilewright.jax import products, registry
from tilewright.jax.entries import EntryTable, XlaBuffer, XlaCall
from tilewright.jax.frames import CallFrame
from tilewright.jax.gpu import BlockLauncher, GpuCalls, XlaGpuProgram
from tilewright.jax.handler import callback_handler
from tilewright.jax.platforms import TARGETS
from tilewright.jax.registry import _ELSEWHERE, _registered, call_registered
from tilewright.kernels import gemm
from tilewright.runtime.device_arrays import DeviceArray
from tilewright.targets.nvidia.driver import device

REPORTED = (jax.errors.JaxRuntimeError, ValueError)
TILE = XlaBuffer((4, 32), np.dtype(np.float32))
CALL = XlaCall((TILE,), (TILE,), (0, 1), (0,))
_kept: list[Any] = []


def calls(name: str) -> GpuCalls:
    """Calls of a host program for a GPU, registered with XLA for the CPU; they live as long as the process."""
    executor = compile_text(TEXT, "gpu").executor
    assert executor is not None
    executor.script([np.zeros(b.shape, b.dtype) for b in CALL.buffers])  # its programs are compiled
    program = XlaGpuProgram(executor, None)
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


@pytest.fixture
def as_if_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs for GPUs are registered for XLA's calls on the host, whose memory is the fake driver's."""
    monkeypatch.setattr(registry, "ON_GPUS", "cpu")
    monkeypatch.setattr(registry, "ON_CPUS", "CUDA")


MOVED = TEXT[TEXT.index("block moved") :]


@pytest.mark.parametrize(("text", "launches"), [(TEXT, 2), (MOVED, 1)])
def test_texts_for_a_gpu_are_launched_on_xlas_stream(
    text: str,
    launches: int,
    told: Driver,  # noqa: F811
    stream: int,
    as_if_on_the_gpu: None,
) -> None:
    run = tilewright.jax.function(compile_text(text, "gpu"))
    x = np.arange(2 * 128, dtype=np.float32).reshape(2, 4, 32)
    assert (np.asarray(jax.jit(run)(x[0])) == x[0]).all()
    assert sum(name == "launch" for name, *_ in told.calls) == launches
    assert (np.asarray(jax.vmap(run)(x)) == x).all()
    assert set(told.streams) == {stream}


def test_arrays_of_a_text_that_are_not_aligned_are_copied(told: Driver) -> None:  # noqa: F811
    """A member of a batch begins where the one before ends, at any multiple of an element."""
    executable = compile_text(MOVED, "gpu")
    launcher = BlockLauncher(executable.launchable, GpuDevice("gpu"), None)
    launcher.device.made_for = "hopper"

    def copy(to: int, source: int, size: int, stream: int) -> Any:
        ctypes.memmove(to, source, size)
        return (0,)

    told.cuMemcpyDtoDAsync = copy  # type: ignore[attr-defined]
    room = np.arange(2 * 128 + 8, dtype=np.float32)
    first = -room.ctypes.data % 16 // 4 + 1  # the number of the first element that lies 4 bytes past a multiple of 16
    x, y = (
        DeviceArray(room[start:].ctypes.data, (4, 32), (32, 1), room.dtype, room, 0, 77, True)
        for start in (first, first + 128)
    )
    launcher.bind([x, y], passing=True)()
    assert (room[first + 128 : first + 256] == room[first : first + 128]).all()
    assert (room[first : first + 128] == np.arange(first, first + 128)).all()
    places = [call[1:] for call in told.calls if call[0] == "launch"]
    assert all(pointer % 16 == 0 for launch in places for pointer in launch)


@pytest.mark.parametrize("text", [TEXT, MOVED])
def test_wrong_arrays_of_a_text_for_a_gpu_are_refused_while_jax_traces(text: str) -> None:
    run = tilewright.jax.function(compile_text(text, "gpu"))
    for x, says in (
        (np.ones((4, 31), np.float32), r"31"),
        (np.ones((4, 32), np.float16), "holds f16; it must hold f32"),
    ):
        with pytest.raises(ArgumentError, match=says):
            jax.jit(run).trace(x)


def test_a_text_for_a_gpu_is_refused_on_the_host() -> None:
    run = tilewright.jax.function(compile_text(MOVED, "gpu"))
    with pytest.raises(REPORTED, match="this kernel is compiled for a GPU, and its arrays lie on the host"):
        jax.jit(run)(np.ones((4, 32), np.float32)).block_until_ready()


# -- operators: which kernels are compiled for a platform --------------------------------------------------------


@pytest.fixture
def compiled_for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for JAX's CUDA platform are compiled for Hopper, as there is no GPU at hand."""
    monkeypatch.setitem(TARGETS, "cuda", "gpu:hopper")


def lowered(function: Any, *arrays: Any, platforms: tuple[str, ...] = ("cuda",)) -> str:
    """Return the program of a function that is lowered for these platforms, as text."""
    return str(jax.jit(function).trace(*arrays).lower(lowering_platforms=platforms).as_text())


def kernels_of(text: str) -> list[GpuCalls | EntryTable]:
    """Return what is registered for each custom call in the text of a lowered program, in its order."""
    return [_registered[name][1] for name in re.findall(r"custom_call @(tilewright\.[\w.]+)", text)]


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float16)


@pytest.mark.parametrize(
    ("function", "arrays", "name"),
    [
        (tilewright.jax.matmul, (ones(3, 64, 40), ones(40, 24)), "gemm"),
        (tilewright.jax.conv1d, (ones(2, 37, 16), ones(24, 3, 16)), "conv"),
        (tilewright.jax.conv2d, (ones(2, 17, 19, 16), ones(24, 3, 3, 16)), "conv"),
        (tilewright.jax.conv3d, (ones(1, 7, 9, 11, 16), ones(24, 3, 3, 3, 16)), "conv"),
    ],
)
def test_operators_and_their_gradients_are_compiled_for_the_gpu(
    function: Any,
    arrays: Any,
    name: str,
    compiled_for_hopper: None,
) -> None:
    def loss(*arrays: Any) -> Any:
        return (function(*arrays).astype(np.float32) ** 2).sum()

    for kernels in (kernels_of(lowered(function, *arrays)), kernels_of(lowered(jax.grad(loss, (0, 1)), *arrays))):
        assert kernels
        assert all(isinstance(k, GpuCalls) and k.name.startswith(name) for k in kernels)


def test_nothing_is_compiled_while_jax_traces_and_nothing_for_gpus_on_the_host(
    compiled_for_hopper: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[str] = []
    compile_kernel = products.kernel_for

    def compile_noted(kernel: Any, sizes: Any, *, target: str) -> Any:
        targets.append(target)
        return compile_kernel(kernel, sizes, target=target)

    monkeypatch.setattr(products, "kernel_for", compile_noted)
    a, b = ones(19, 21), ones(21, 23)
    traced = jax.jit(lambda a, b: tilewright.jax.matmul(a, b)).trace(a, b)
    assert targets == []
    assert (np.asarray(traced.lower().compile()(a, b)) == 21).all()
    assert targets == ["cpu"]
    traced.lower(lowering_platforms=("cuda",))
    assert targets == ["cpu", "gpu:hopper"]


def test_a_program_for_both_platforms_has_a_kernel_of_each(compiled_for_hopper: None) -> None:
    kernels = kernels_of(lowered(tilewright.jax.matmul, ones(8, 16), ones(16, 24), platforms=("cpu", "cuda")))
    assert [type(k) for k in kernels] == [EntryTable, GpuCalls]


def test_a_batch_is_one_call_on_the_gpu(compiled_for_hopper: None) -> None:
    text = lowered(jax.vmap(tilewright.jax.matmul, (0, None, 0)), ones(3, 8, 16), ones(16, 24), ones(3, 24))
    assert text.count("custom_call @tilewright") == 1


def test_a_platform_without_kernels_is_refused() -> None:
    with pytest.raises(TargetError, match=r"kernels for CPUs and for NVIDIA's GPUs \(cpu, cuda\), not for tpu"):
        lowered(tilewright.jax.matmul, ones(8, 16), ones(16, 24), platforms=("tpu",))


def test_lowering_for_cuda_without_a_gpu_says_what_lacks() -> None:
    if not isinstance(device(), str):
        pytest.skip("there is a GPU")
    with pytest.raises(TargetError, match="target='cuda'"):
        lowered(tilewright.jax.matmul, ones(8, 17), ones(17, 24))
