"""Capture of CUDA graphs: whether a stream is captured, and arrays that live as long as a graph.

When a graph is destroyed, the driver calls a function on a thread of its own, perhaps after Python has ended. So that
function is native, and only sets a word; the arrays are freed when the next graph keeps some.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Any

from tilewright.targets.nvidia.driver import Device

WITHOUT_WAITING, GIVEN_AWAY = 1, 1
"""The driver's flags: it does not wait for the callback; our reference is moved to the graph."""

TEXT = """
define void @graph_is_gone(ptr %word) {
  store atomic i64 1, ptr %word release, align 8
  ret void
}
"""
_held: list[tuple[ctypes.c_uint64, tuple[Any, ...]]] = []
"""For each graph that keeps arrays: a word, 1 when the graph is gone, and the arrays."""
_words: list[ctypes.c_uint64] = []
"""Words that no graph uses."""
_lock = Lock()


def _immortal(item: Any) -> Any:
    """Increment the reference count of `item`, so that it is never freed, and return `item`. The driver may use it
    after Python has ended.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))
    return item


@cache
def _immortal_code() -> ctypes.c_void_p:
    """Return the address of the native function that the driver calls when a graph is destroyed. The first call links
    it; its code is never freed.
    """
    from tilewright.targets.cpu.load import link, object_of  # needs LLVM, which users of exported kernels may not have

    return ctypes.c_void_p(_immortal(link(object_of(TEXT), ("graph_is_gone",))).address("graph_is_gone"))


def is_captured(capturing: Any, stream: int) -> bool:
    """True if work that is sent to `stream`, a handle of the driver, is captured into a CUDA graph now. `capturing` is
    the driver's function cuStreamIsCapturing. False if this function fails.
    """
    state = ctypes.c_int(0)
    refused = capturing(ctypes.c_void_p(stream), ctypes.byref(state))
    return not refused and state.value != 0


def hold_for_graph(device: Device, stream: int, arrays: Sequence[Any]) -> None:
    """Keep `arrays` alive as long as the CUDA graph that the stream is being captured into. `stream` is a handle of the
    driver on `device`; it must be capturing. Raise TargetError if the driver refuses.

    Arrays that were kept for graphs that no longer exist are released at this call.
    """
    with _lock:
        destroy = _immortal_code()
        destroyed = [entry for entry in _held if entry[0].value]
        _held[:] = [entry for entry in _held if not entry[0].value]
        _words.extend(word for word, _ in destroyed)
        word = _words.pop() if _words else _immortal(ctypes.c_uint64())
        word.value = 0
        _held.append((word, tuple(arrays)))
    library = device.library
    state, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    capture_arguments = (
        ctypes.c_void_p(stream),
        ctypes.byref(state),
        ctypes.byref(number),
        ctypes.byref(graph),
        None,
        None,
    )
    code = library.cuStreamGetCaptureInfo_v2(*capture_arguments)
    holder = ctypes.c_void_p()
    if not code:
        code = library.cuUserObjectCreate(ctypes.byref(holder), ctypes.byref(word), destroy, 1, WITHOUT_WAITING)
    if not code:
        code = library.cuGraphRetainUserObject(graph, holder, 1, GIVEN_AWAY)
    if code:
        raise device.fault(device.cu.CUresult(code), "arrays that a CUDA graph reads")
