"""Tensor maps: TMA's descriptors of tensors, 128 bytes that the driver encodes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.targets.nvidia.im2col import Im2colMap
from tilewright.targets.nvidia.tma import TensorMap

if TYPE_CHECKING:
    from tilewright.targets.nvidia.driver import Device

MAP_BYTES = 128
_TYPES = {"bfloat16": "BFLOAT16", "float16": "FLOAT16", "float32": "FLOAT32", "float64": "FLOAT64"}
_OF_SIZE = {1: "UINT8", 2: "UINT16", 4: "UINT32", 8: "UINT64"}
"""Types by element size, for all other element types."""
LONG_ROW = 512
"""Bytes of a row from which on L2 reads ahead. A pipeline stage mostly reads all of a shorter row."""


def _l2_bytes(what: TensorMap | Im2colMap, dtype: np.dtype[Any]) -> int:
    """Return the L2 promotion of the tensor map `what`, the number of bytes that L2 reads at once: 256 if rows of
    elements of the type `dtype` have more than LONG_ROW bytes, else 128. With 256 bytes, the next pipeline stage finds
    its data in L2.
    """
    return 256 if what.extents[0] * dtype.itemsize > LONG_ROW else 128


def tensor_map(gpu: Device, what: TensorMap | Im2colMap, pointer: int, dtype: np.dtype[Any]) -> bytes:
    """Return the tensor map `what` as the driver encodes it, 128 bytes. It describes a tensor at the device address
    `pointer` with elements of the type `dtype`. `gpu` is the device. Raise TargetError if the driver refuses.
    """
    cu = gpu.cu
    name = _TYPES.get(dtype.name) or _OF_SIZE[dtype.itemsize]
    kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}")
    spans = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
    swizzle = getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{spans[what.swizzle]}")
    interleave = cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE
    l2_promotion = getattr(cu.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{_l2_bytes(what, dtype)}B")
    fill = cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
    rank = len(what.extents)
    extents = [cu.cuuint64_t(n) for n in what.extents]
    # a tensor of one dimension has no strides, but the driver wants a valid array, which it does not read
    strides = [cu.cuuint64_t(s * dtype.itemsize) for s in what.strides[1:]] or [cu.cuuint64_t(16)]
    if isinstance(what, TensorMap):
        box, steps = ([cu.cuuint32_t(n) for n in numbers] for numbers in (what.box, (1,) * rank))
        answer = cu.cuTensorMapEncodeTiled(
            kind, rank, pointer, extents, strides, box, steps, interleave, swizzle, l2_promotion, fill
        )
    else:
        steps = [cu.cuuint32_t(n) for n in (1, *what.steps, 1)]
        answer = cu.cuTensorMapEncodeIm2col(
            kind, rank, pointer, extents, strides, list(what.lower), list(what.upper), what.channels, what.pixels,
            steps, interleave, swizzle, l2_promotion, fill,
        )  # fmt: skip
    encoded = gpu.check(answer, "a tensor map")
    return ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)
