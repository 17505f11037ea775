"""Names of Wave that Tilewright does not implement; calling one raises an error that says why."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Flag
from typing import Any

from tilewright.errors import OutOfScope
from tilewright.ir.location import author_location
from tilewright.limits import did_you_mean


class MemoryAccessFlags(Flag):
    """Wave's cache hints; accepted and not used."""

    NONE = 0
    VOLATILE = 1
    NONTEMPORAL = 2


_SCHEDULES = "manual schedules are out of scope: plans say how, and the compiler schedules"
_THREADS = "a tile program has no threads; say what is computed on whole tiles"
_HARDWARE = "it names a hardware mechanism; the compiler places these itself"
_REASONS = {
    **dict.fromkeys(
        (
            *(
                "get_node_by_tag",
                "get_node_by_tag_and_type",
                "partition_by_address_space",
                "partition_by_dim",
                "cluster",
            ),
            *("reorder_graph", "pipeline", "stagger", "interleave_ops", "insert_before", "insert_after"),
            *(
                "insert_at_start",
                "insert_at_end",
                "unroll",
                "filter_nodes",
                "interleave_operations",
            ),
            *("SetWavePrio", "SchedulingBarrier", "SchedulingGroupBarrier", "SharedMemoryBarrier", "WorkgroupBarrier"),
            *("MMA", "Iterate", "GatherToLDS", "Read", "Write", "IndexSequence", "get_proxy", "get_result"),
        ),
        _SCHEDULES,
    ),
    **dict.fromkeys(("shuffle", "extract_slice", "THREAD_0"), _THREADS),
    **dict.fromkeys(
        (
            *("set_wave_prio", "scheduling_barrier", "scheduling_group_barrier", "memory_counter_wait"),
            *("memory_counter_wait_barrier", "tensor_counter_wait", "shared_memory_barrier_signal"),
            *("shared_memory_barrier_wait", "gather_to_lds", "tensor_load_to_lds", "bounds_check"),
        ),
        _HARDWARE,
    ),
}
_INSTEAD = {
    "where": "select(condition, a, b)",
    "mean": "sum(t, dim=N) / N",
    **dict.fromkeys(("matmul", "dot"), "mma(a, b, accumulator)"),
    "transpose": "permute(t, [N, M])",
    "load": "read(memory)",
    "store": "write(tile, memory)",
    "arange": "self_index(N, dtype)",
}
"""{name in other libraries: what is written here}."""


def out_of_scope(name: str, known: Iterable[str]) -> Any:
    """Return, for a name of Wave that Tilewright does not implement, a function that always raises `OutOfScope` with
    the reason.

    Raise `AttributeError` for any other `name`; the message suggests what to write instead, perhaps one of the names
    `known`.
    """
    reason = _REASONS.get(name)
    if reason is None:
        hint = f"; write tkw.{_INSTEAD[name]}" if name in _INSTEAD else did_you_mean(name, known)
        raise AttributeError(f"module 'tilewright.wave' has no attribute {name!r}{hint}")

    def refuse(*args: Any, **options: Any) -> Any:
        """Raise `OutOfScope`, always."""
        raise OutOfScope(f"tkw.{name}: {reason}", author_location())

    refuse.__name__ = name
    return refuse


def tag(value: Any, name: str | None = None) -> Any:
    """Return `value` unchanged. Wave tags operations for manual schedules, which are ignored here; so `name` is
    ignored.
    """
    return value
