"""CUDA graphs that are captured: whether a stream is, and arrays that live as long as a graph.

The driver tells when a graph is gone, by a function that it calls on a thread of its own, perhaps after Python has
ended. So that function is native, and only sets a word; arrays go when the next graph keeps some.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Any

from tilewright.targets.nvidia.driver import Device

WITHOUT_WAITING, GIVEN_AWAY = 1, 1
"""The driver's flags: it does not wait for the function that it calls; our reference becomes the graph's."""

TEXT = """
define void @graph_is_gone(ptr %word) {
  store atomic i64 1, ptr %word release, align 8
  ret void
}
"""
_held: list[tuple[ctypes.c_uint64, tuple[Any, ...]]] = []
"""For each graph that keeps arrays: a word, 1 when the graph is gone, and the arrays."""
_words: list[ctypes.c_uint64] = []
"""Words that are in use by nobody."""
_lock = Lock()


def _immortal(thing: Any) -> Any:
    """The same object, which is never freed: the driver may use it when Python has ended."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


@cache
def _immortal_code() -> ctypes.c_void_p:
    """The address of the function that the driver calls."""
    from tilewright.targets.cpu.load import link, object_of  # by LLVM, which callers of what is exported may lack

    return ctypes.c_void_p(_immortal(link(object_of(TEXT), ("graph_is_gone",))).address("graph_is_gone"))


def is_captured(capturing: Any, stream: int) -> bool:
    """True if the work of a stream goes into a CUDA graph; `capturing` is the driver's cuStreamIsCapturing."""
    state = ctypes.c_int(0)
    refused = capturing(ctypes.c_void_p(stream), ctypes.byref(state))
    return not refused and state.value != 0


def hold_for_graph(device: Device, stream: int, arrays: Sequence[Any]) -> None:
    """Keeps arrays for as long as the graph lives that a stream is captured into."""
    with _lock:
        destroy = _immortal_code()
        gone = [entry for entry in _held if entry[0].value]
        _held[:] = [entry for entry in _held if not entry[0].value]
        _words.extend(word for word, _ in gone)
        word = _words.pop() if _words else _immortal(ctypes.c_uint64())
        word.value = 0
        _held.append((word, tuple(arrays)))
    library = device.library
    state, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    told = ctypes.c_void_p(stream), ctypes.byref(state), ctypes.byref(number), ctypes.byref(graph), None, None
    code = library.cuStreamGetCaptureInfo_v2(*told)
    holder = ctypes.c_void_p()
    if not code:
        code = library.cuUserObjectCreate(ctypes.byref(holder), ctypes.byref(word), destroy, 1, WITHOUT_WAITING)
    if not code:
        code = library.cuGraphRetainUserObject(graph, holder, 1, GIVEN_AWAY)
    if code:
        raise device.fault(device.cu.CUresult(code), "arrays that a CUDA graph reads")
