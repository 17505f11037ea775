"""The argument block of a launch: tensor maps, pointers, open sizes and the address of counters, as they are in memory.

The driver is told where each argument begins, in the order of the kernel's parameters: pointers, sizes, counters, maps.
Maps have 128 bytes and are aligned to 64, so they come first in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.targets.gpu.emit import Emitted
from tilewright.targets.nvidia.driver import Device
from tilewright.targets.nvidia.maps import MAP_BYTES, tensor_map
from tilewright.targets.nvidia.starting import MAP_ALIGNMENT


def _map_aligned_bytes(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an array of `count` zero bytes with an address that is a multiple of 64, as tensor maps require."""
    room = np.zeros(count + MAP_ALIGNMENT, np.uint8)
    start = -room.ctypes.data % MAP_ALIGNMENT
    return room[start : start + count]


class Passed:
    """The argument block for arrays at these addresses (`pointers`), and for these open sizes.

    `words` are (tensor, offset in the block) of all addresses. `maps` are (tensor, offset) of tensor maps in which the
    address is not a plain word: only the driver can change it there.
    """

    def __init__(
        self, device: Device, emitted: Emitted, arrays: list[Any], pointers: list[int], sizes: Mapping[str, int]
    ):
        self._device = device
        numbers = [*pointers, *(sizes[name] for name in emitted.sizes)]
        after = MAP_BYTES * len(emitted.parameters)
        count = len(numbers) + bool(emitted.counters)
        self.block = _map_aligned_bytes(after + 8 * count)
        self.block[after : after + 8 * len(numbers)] = np.array(numbers, np.uint64).view(np.uint8)
        self.counters = after + 8 * len(numbers)
        """The offset of the address of counters, if the kernel has any."""
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
        """Return a copy of the argument block with `address` as the address of the task counters."""
        block = _map_aligned_bytes(len(self.block))
        block[:] = self.block
        block[self.counters : self.counters + 8] = np.array([address], np.uint64).view(np.uint8)
        return block

    def _address_in(self, words: np.ndarray[Any, np.dtype[Any]], pointer: int) -> int | None:
        """Return the index of the 64-bit word that holds the tensor's address `pointer` in `words`, an encoded tensor
        map. Return None if a new address changes other words too, or if the driver refuses; then only the driver can
        change the address. The map is unchanged afterwards.

        The encoding is private to the driver, but writing one word is faster than a call of the driver.
        """
        before = words.copy()
        for other in (pointer + 256, pointer):
            refused = self._device.readdress(words.ctypes.data, other)
            positions = np.nonzero(words == other)[0]
            if refused or len(positions) != 1 or (np.delete(words, positions) != np.delete(before, positions)).any():
                words[:] = before
                return None
        return int(positions[0])
