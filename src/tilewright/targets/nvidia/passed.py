"""What a kernel is passed: tensor maps, pointers, open sizes and the address of counters, as they lie in memory.

The driver is told where each argument begins, in the order of the kernel's parameters: pointers, sizes, counters, maps.
Maps are 128 bytes at a multiple of 64, so they lie first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.targets.gpu.emit import Emitted
from tilewright.targets.nvidia.driver import Device
from tilewright.targets.nvidia.maps import MAP_BYTES, tensor_map
from tilewright.targets.nvidia.starting import MAP_ALIGNMENT


def _aligned(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return `count` bytes, all 0, aligned so that maps may begin there."""
    room = np.zeros(count + MAP_ALIGNMENT, np.uint8)
    start = -room.ctypes.data % MAP_ALIGNMENT
    return room[start : start + count]


class Passed:
    """The arguments for arrays that lie at these addresses, and for these open sizes.

    `words` are (tensor, offset in the block) of all addresses; `maps` are those of tensor maps in which an address is
    no word that could be changed: the driver does that.
    """

    def __init__(
        self, device: Device, emitted: Emitted, arrays: list[Any], pointers: list[int], sizes: Mapping[str, int]
    ):
        self._device = device
        numbers = [*pointers, *(sizes[name] for name in emitted.sizes)]
        after = MAP_BYTES * len(emitted.parameters)
        count = len(numbers) + bool(emitted.counters)
        self.block = _aligned(after + 8 * count)
        self.block[after : after + 8 * len(numbers)] = np.array(numbers, np.uint64).view(np.uint8)
        self.counters = after + 8 * len(numbers)
        """Where the address of counters goes, if the kernel has any."""
        self.offsets = np.array(
            [*(after + 8 * i for i in range(count)), *(MAP_BYTES * i for i in range(len(emitted.parameters)))],
            np.uint64,
        )
        self.words = [(i, after + 8 * i) for i in range(len(arrays))]
        self.maps: list[tuple[int, int]] = []
        for i, parameter in enumerate(emitted.parameters):
            tensor = parameter.tensor
            data = tensor_map(device, parameter.what.at(sizes), pointers[tensor], arrays[tensor].dtype)
            self.block[MAP_BYTES * i : MAP_BYTES * (i + 1)] = np.frombuffer(data, np.uint8)
            word = self._address_in(self.block[MAP_BYTES * i :][:MAP_BYTES].view(np.uint64), pointers[tensor])
            if word is None:
                self.maps.append((tensor, MAP_BYTES * i))
            else:
                self.words.append((tensor, MAP_BYTES * i + 8 * word))

    def block_with_counters(self, address: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a copy of the block that has this address of counters."""
        block = _aligned(len(self.block))
        block[:] = self.block
        block[self.counters : self.counters + 8] = np.array([address], np.uint64).view(np.uint8)
        return block

    def _address_in(self, words: np.ndarray[Any, np.dtype[Any]], pointer: int) -> int | None:
        """The word of a tensor map that is the tensor's address, where the driver changes nothing else for another one.

        Maps are the driver's own; writing a word is quicker than asking it.
        """
        before = words.copy()
        for other in (pointer + 256, pointer):
            refused = self._device.readdress(words.ctypes.data, other)
            positions = np.nonzero(words == other)[0]
            if refused or len(positions) != 1 or (np.delete(words, positions) != np.delete(before, positions)).any():
                words[:] = before
                return None
        return int(positions[0])
