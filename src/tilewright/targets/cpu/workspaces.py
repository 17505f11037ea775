"""Memory that kernels need while they run: temporary tensors and the scratch memory of workers.

Launches that use several workers take turns anyway, since each needs the pool. They share workspaces, one for each size
(rounded up to a power of two), so that all layers of a network need less than four times the memory of the largest, and
find it in the caches. A launch of one worker has a workspace of its own: such launches may run at the same time.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from tilewright.targets.cpu.pool import aligned

_LEAST = 1 << 16
_LINE = 128  # the lock lies in a line of its own
_shared: WeakValueDictionary[int, Workspace] = WeakValueDictionary()


class Workspace:
    """Memory with a lock, which a launch holds while it uses the memory. Both are given by their addresses."""

    def __init__(self, size: int):
        self._memory, self._lock = aligned(size), aligned(_LINE, _LINE)
        self.address, self.lock = int(self._memory.ctypes.data), int(self._lock.ctypes.data)

    def unlock(self) -> None:
        """Release the lock. A forked process calls it, because the thread that held the lock does not exist there."""
        self._lock[:] = 0


def workspace(size: int, workers: int) -> tuple[Workspace, int]:
    """Return (workspace, private bytes) for a launch with `workers` workers that needs `size` bytes. A launch of one
    worker, or of size 0, gets a new workspace: all its bytes are private. Other launches share one workspace for each
    size, rounded up to a power of two of at least 64 KB: no bytes are private. A shared workspace is freed with the
    last launch that uses it.
    """
    if workers == 1 or size == 0:
        return Workspace(size), size
    rounded = max(_LEAST, 1 << (size - 1).bit_length())
    shared = _shared.get(rounded)
    if shared is None:  # two threads may both make one: then their launches do not share it
        shared = _shared[rounded] = Workspace(rounded)
    return shared, 0
