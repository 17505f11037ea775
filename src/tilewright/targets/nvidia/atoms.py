"""All atoms of NVIDIA machines, by name.

| file        | atoms                                                   |
|-------------|---------------------------------------------------------|
| multiply    | fma, mma.sync, wgmma                                    |
| matrices    | ldmatrix, stmatrix                                      |
| lane_copies | ld, st, cp.async                                        |
| tma, im2col | TMA, whose shared-memory side is in tma_tile            |
| *_view      | conditions of TMA copies between views                  |
"""

from __future__ import annotations

from tilewright.targets.nvidia.im2col import IM2COL
from tilewright.targets.nvidia.lane_copies import CP_ASYNC, LANE_COPIES
from tilewright.targets.nvidia.matrices import LDMATRIX, STMATRIX
from tilewright.targets.nvidia.multiply import FMA, MMA_SYNC, WGMMA
from tilewright.targets.nvidia.tma import TILED

MULTIPLY = {atom.name: atom for atom in (*MMA_SYNC, *WGMMA, *FMA)}

COPY = {atom.name: atom for atom in (*LDMATRIX, *STMATRIX, *LANE_COPIES, *CP_ASYNC, *TILED, IM2COL)}
