"""Host programs on a device whose memory is the host's, and whose kernels only tell where their arguments lie."""

# ruff: noqa: N802  (the driver's own names)

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exchanging import STREAM, Tensor, capsule
from test_driver import CAPTURING, LAUNCH

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import compile_text
from tilewright.errors import ArgumentError
from tilewright.runtime.device_arrays import DeviceArray, array_of, packed_steps
from tilewright.targets.nvidia import driver, graphs, memory
from tilewright.targets.nvidia.backend import BACKEND
from tilewright.targets.nvidia.launch import Config
from tilewright.targets.registry import machine

TEXT = """
host twice(%x: in global f32 (4, 32), %y: out global f32 (4, 32))
{
  %t = workspace global f32 (4, 32)
  fill %t 7
  launch moved(%x, %t) workers 2
  launch moved(%t, %y) workers 2
}

block moved(%from: in global f32 (4, 32), %to: out global f32 (4, 32))
  machine hopper
  waves 1
{
  tasks m in 0..4 {
    %row = view %from (j 32) -> [m, j]
    %goal = view %to (j 32) -> [m, j]
    copy %row -> %goal
  }
}
"""


class Driver:
    """A driver whose device is the host."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.streams: list[int | None] = []
        self.captures, self.mode = False, 0
        self.ended = False
        """Whether a capture was ended by a call that threads may not make meanwhile."""
        self.holders: list[tuple[int, Any, int]] = []
        self.kept: dict[int, Any] = {}

    def cuMemAlloc(self, size: int) -> Any:
        room = np.zeros(size + 256, np.uint8)
        start = room.ctypes.data + -room.ctypes.data % 256
        self.kept[start] = room
        return 0, start

    def cuMemAllocAsync(self, size: int, stream: int) -> Any:
        self.calls.append(("take", size, stream))
        return self.cuMemAlloc(size)

    def cuMemFreeAsync(self, pointer: int, stream: int) -> Any:
        self.calls.append(("give back", pointer, stream))
        return (0,)

    def cuMemFree(self, pointer: int) -> Any:
        self.calls.append(("free", pointer))
        self.ended |= self.captures and self.mode != driver.RELAXED
        return (0,)

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        mode._obj.value, self.mode = self.mode, mode._obj.value
        return 0

    def cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: int) -> Any:
        self.calls.append(("to", to, stream))
        ctypes.memmove(to, source, size)
        return (0,)

    def cuMemcpyDtoHAsync(self, to: int, source: int, size: int, stream: int) -> Any:
        self.calls.append(("from", source, stream))
        ctypes.memmove(to, source, size)
        return (0,)

    def cuMemsetD32Async(self, to: int, bits: int, count: int, stream: int) -> Any:
        self.calls.append(("set", to, count))
        self.streams.append(stream)
        np.frombuffer((ctypes.c_uint32 * count).from_address(to), np.uint32)[...] = bits
        return (0,)

    def cuCtxGetCurrent(self) -> Any:
        return 0, 1

    def cuStreamSynchronize(self, stream: int) -> Any:
        return (0,)

    def is_captured(self, stream: int, state: int) -> int:
        """The driver's cuStreamIsCapturing."""
        ctypes.c_int.from_address(state).value = int(self.captures)
        return 0

    def cuStreamGetCaptureInfo_v2(self, stream: Any, state: Any, number: Any, graph: Any, *_: Any) -> int:
        graph._obj.value = 0xABC
        return 0

    def cuUserObjectCreate(self, holder: Any, word: Any, destroy: Any, count: int, flags: int) -> int:
        holder._obj.value = 0xDEF
        gone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destroy.value)
        self.holders.append((flags, gone, ctypes.addressof(word._obj)))
        return 0

    def cuGraphRetainUserObject(self, graph: Any, holder: Any, count: int, flags: int) -> int:
        assert (graph.value, holder.value, count, flags) == (0xABC, 0xDEF, 1, 1)
        return 0

    def start(self, config: int, function: int, table: int, extra: int) -> int:
        """A kernel: it does what `moved` does."""
        places = [ctypes.c_uint64.from_address(table + 8 * i).value for i in range(2)]
        source, goal = (ctypes.c_uint64.from_address(p).value for p in places)
        self.calls.append(("launch", source, goal))
        self.streams.append(Config.from_address(config).stream)
        ctypes.memmove(goal, source, 4 * 32 * 4)
        return 0


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    device = driver.Device.__new__(driver.Device)
    device.cu, device.context, device.cores, device.number = found, 1, 132, 0
    device.library = found
    device.start, device.readdress, device.capturing = LAUNCH(found.start), None, CAPTURING(found.is_captured)
    loaded = driver.Loaded.__new__(driver.Loaded)
    loaded.device, loaded.name, loaded.function, loaded.workgroups = device, "moved", 33, 1
    monkeypatch.setattr(memory, "device", lambda number: device)
    for place in (driver, memory):
        monkeypatch.setattr(place, "why_not", lambda machine: None)
    monkeypatch.setattr(type(BACKEND), "loaded", lambda *_: loaded)
    return found


def test_a_host_program_runs_with_workspaces_on_the_device(told: Driver) -> None:
    x = np.arange(128, dtype=np.float32).reshape(4, 32)
    run = compile_text(TEXT, "gpu")
    np.testing.assert_array_equal(run(x), x)
    names = [name for name, *_ in told.calls]
    assert [n for n in names if n != "free"][-5:] == ["to", "set", "launch", "launch", "from"]
    (_, first, work), (_, again, last) = [call for call in told.calls if call[0] == "launch"]
    assert work == again
    assert len({first, work, last}) == 3


def test_workspaces_go_back_when_nobody_has_them(told: Driver) -> None:
    x, y = np.ones((4, 32), np.float32), np.zeros((4, 32), np.float32)
    run = compile_text(TEXT, "gpu").bind(x, y)
    run()
    before = sum(name == "free" for name, *_ in told.calls)
    del run
    assert sum(name == "free" for name, *_ in told.calls) == before + 3  # the workspace, and what x and y became


def test_memory_is_filled_and_read(told: Driver) -> None:
    where = BACKEND.memory(machine("hopper"), 0)
    for dtype, value in ((np.dtype(np.float32), 2.5), (np.dtype(np.float64), 2.5)):
        made = where.empty((3, 5), dtype)
        where.fill(made, value)
        np.testing.assert_array_equal(where.numpy(made.reshape((5, 3))), np.full((5, 3), value))
    apart = DeviceArray(made.pointer, (3, 2), (5, 1), dtype, None)
    assert not where.takes(apart)
    with pytest.raises(ArgumentError, match="not contiguous"):
        where.copy(apart, made)


class HostTensor(Tensor):
    """A tensor of a torch whose GPU is the host."""

    def __init__(self, shape: tuple[int, ...], dtype: str = "torch.float32"):
        self.room = np.zeros(int(np.prod(shape)) * (4 if dtype == "torch.float32" else 1) + 256, np.uint8)
        self.place = self.room.ctypes.data + -self.room.ctypes.data % 256
        super().__init__(DeviceArray(self.place, shape, packed_steps(shape), np.dtype("f4"), None), self.place)
        self.dtype, self.device = dtype, SimpleNamespace(type="cuda", index=0)  # type: ignore[assignment]

    def data_ptr(self) -> int:
        return self.place

    def stride(self) -> tuple[int, ...]:
        return packed_steps(self.shape)

    @property
    def values(self) -> Any:
        """What it holds."""
        return self.room[self.place - self.room.ctypes.data :][:512].view(np.float32).reshape(4, 32)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: list[HostTensor] = []

    def empty(shape: Any, dtype: str, device: Any) -> HostTensor:
        made.append(HostTensor(shape if isinstance(shape, tuple) else (shape,), dtype))
        return made[-1]

    capturing = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: False)
    found: Any = ModuleType("torch")
    found.Tensor, found.cuda, found.empty, found.made = HostTensor, capturing, empty, made
    found.strided, found.is_grad_enabled = "strided", lambda: True
    found.empty_strided = lambda shape, strides, dtype, device: empty(shape, dtype, device)
    found.uint8, found.float32 = "torch.uint8", "torch.float32"
    monkeypatch.setattr(HostTensor, "__dlpack_c_exchange_api__", capsule(), raising=False)
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


def test_a_host_program_of_launches_is_one_call_after_its_first(
    told: Driver, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, results = compile_text(TEXT.replace("  fill %t 7\n", ""), "gpu"), []
    monkeypatch.setitem(STREAM, 0, 7)
    for n in range(3):
        x = HostTensor((4, 32))
        x.values[...] = np.arange(128).reshape(4, 32) + n
        results.append((run(x), x))
        if not n:
            monkeypatch.setattr(run, "_arguments", None)  # from now on nothing is looked at length
    for y, x in results:
        np.testing.assert_array_equal(y.values, x.values)
    launched = [call for call in told.calls if call[0] == "launch"]
    assert len(launched) == 6
    for (_, x, work), (_, again, y) in zip(launched[::2], launched[1::2], strict=True):
        assert work == again
        assert len({x, work, y}) == 3
    assert len([t for t in torch.made if t.dtype == "torch.uint8"]) == 3  # a workspace for each call
    assert not [name for name, *_ in told.calls if name == "free"]


def test_every_call_has_a_workspace_of_torch_for_itself(
    told: Driver, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stayed with a launch was used by two streams at a time, and by a CUDA graph after it was freed."""
    run, works = compile_text(TEXT.replace("  fill %t 7\n", ""), "gpu"), []
    for stream, told.captures in ((7, False), (7, False), (9, False), (9, True), (9, True)):
        monkeypatch.setitem(STREAM, 0, stream)
        before = len(torch.made)
        x = HostTensor((4, 32))
        x.values[...] = np.arange(128).reshape(4, 32)
        np.testing.assert_array_equal(run(x).values, x.values)
        works += [t for t in torch.made[before:] if t.dtype == "torch.uint8"]
    launched = [call for call in told.calls if call[0] == "launch"]
    assert [w.data_ptr() for w in works] == [work for _, _, work in launched[::2]]
    assert len({w.data_ptr() for w in works}) == 5  # torch has them all, and says who gets which again
    assert told.streams == [7, 7, 7, 7, 9, 9, 9, 9, 9, 9]


def test_packed_weights_that_a_graph_reads_live_as_long_as_it(told: Driver, torch: Any) -> None:
    text = TEXT.replace("  fill %t 7\n", "").replace("  launch moved(%x, %t) workers 2\n", "")
    text = text.replace("  %t = workspace", "  bind {\n  %t = workspace")
    text = text.replace("(4, 32)\n  launch", "(4, 32)\n  launch moved(%x, %t) workers 2\n  }\n  launch", 1)
    executor = compile_text(text, "gpu").executor
    arrays = [array_of(HostTensor((4, 32)), "x") for _ in range(2)]
    for told.captures in (False, True):
        kept = executor.keep(arrays)
        (packed,) = [array.pointer for array in kept.arrays.values()]
        executor.bind(arrays, kept=kept, passing=True)()
        assert told.calls[-1] == ("launch", packed, arrays[1].pointer)
        del kept
        assert (("free", packed) in told.calls) is not told.captures
    (_, gone, word) = told.holders.pop()
    assert told.holders == []
    gone(word)  # the driver says so when the graph is
    captured = executor.keep(arrays)
    executor.bind(arrays, kept=captured, passing=True)()
    assert ("free", packed) in told.calls
    assert not told.ended  # by what the graph before this one had kept
    assert told.mode == 0
    graphs._held.clear()


M, N = tkl.sym.M, tkl.sym.N


@tkw.wave()
def copied(
    x: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    y: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
) -> None:
    tkw.write(tkw.read(x), y)


@pytest.mark.parametrize("given", [1, 2])
def test_a_tile_kernel_is_not_bound_anew_for_tensors_like_those_before(
    told: Driver, torch: Any, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tilewright.compile(copied, target="gpu:hopper")
    for n in range(3):
        tensors = [HostTensor((4, 32)) for _ in range(given)]
        tensors[0].values[...] = np.arange(128).reshape(4, 32) + n
        made = run(*tensors)
        np.testing.assert_array_equal((tensors[-1] if given == 2 else made).values, tensors[0].values)
        if not n:
            monkeypatch.setattr(run, "_bind_kernel", None)
    monkeypatch.undo()
    assert sum(name == "launch" for name, *_ in told.calls) == 3


def test_all_work_on_arrays_that_follow_a_stream_goes_to_it(told: Driver, torch: Any) -> None:
    """Where torch was in use, it went to torch's current stream, and workspaces came from torch."""
    x, y = np.arange(128, dtype=np.float32).reshape(4, 32), np.zeros((4, 32), np.float32)
    arrays = [
        DeviceArray(a.ctypes.data, a.shape, packed_steps(a.shape), a.dtype, None, stream=77, follows_stream=True)
        for a in (x, y)
    ]
    if any(a.pointer % 16 for a in arrays):
        pytest.skip("the host's memory does not lie as a GPU's does")
    compile_text(TEXT, "gpu").executor.bind(arrays, passing=True)()
    np.testing.assert_array_equal(y, x)
    assert told.streams == [77, 77, 77]
    assert torch.made == []
    assert [(name, rest[-1]) for name, *rest in told.calls if name in ("take", "give back")] == [
        ("take", 77),
        ("give back", 77),
    ]
