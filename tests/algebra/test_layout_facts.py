"""Known facts of the layout algebra, one to a line, as they are printed.

Each row is checked twice: the operation prints the expected text, and the expected layout meets the
operation's definition at every coordinate, so that a wrong row cannot hide a wrong operation.
`<...>` is a tuple of tilers, `-` is None.
"""

import pytest
from layout_strategies import (
    count,
    dot,
    extended_value,
    flat_leaves,
    index_of,
    is_injective,
    natural_coordinates,
    strides_chain,
    values,
)

from tilewright.algebra import (
    ComposedLayout,
    Layout,
    Swizzle,
    blocked_product,
    coalesce,
    compatible,
    complement,
    composition,
    cosize,
    depth,
    downcast,
    filter,
    filter_zeros,
    flat_divide,
    flat_product,
    flatten,
    idx2crd,
    left_inverse,
    local_partition,
    local_tile,
    logical_divide,
    logical_product,
    make_layout,
    make_layout_like,
    make_ordered_layout,
    max_common_layout,
    max_common_vector,
    nullspace,
    parse_layout,
    raked_product,
    rank,
    recast,
    replace,
    reverse,
    right_inverse,
    shape_div,
    size,
    slice_and_offset,
    take,
    tile_to_shape,
    tiled_divide,
    tiled_product,
    upcast,
    zipped_divide,
    zipped_product,
)
from tilewright.algebra.layout import shape_text
from tilewright.errors import LayoutError

FACTS = """
size | 4:1 | 4
size | (4,8):(1,4) | 32
size | (4,(2,4)):(2,(1,8)) | 32
size | ((2,3),4,3):((2,4),12,48) | 72
size | (((2,2),3),(4,3)) | 144
size | (1,1):(0,0) | 1
size | (32,128):(0,1) | 4096
size | 7:-3 | 7
cosize | 4:1 | 4
cosize | 4:2 | 7
cosize | (4,8):(1,4) | 32
cosize | (4,8):(8,1) | 32
cosize | (4,8):(1,5) | 39
cosize | ((2,3),4,3):((2,4),12,48) | 143
cosize | (4,8):(0,1) | 8
cosize | (4,8):(0,0) | 1
cosize | 4:-2 | 7
cosize | (4,8):(-1,4) | 32
cosize | (3,1):(2,100) | 5
cosize | (4,2):(1,16) | 20
cosize | (4,(2,3)):(1@0,(1@0@1,1@1@1)) | (4,(2,3))
depth | 4 | 0
depth | (4) | 1
depth | (4,8) | 1
depth | (4,(2,4)) | 2
depth | (((2,2),3),(4,3)) | 3
depth | ((2,2),3) | 2
rank | 4 | 1
rank | (4) | 1
rank | (4,8) | 2
rank | (4,(2,4)) | 2
rank | (((2,2),3),(4,3)) | 2
rank | ((2,2),2,5) | 3
flatten | 4:1 | 4:1
flatten | (4):(1) | (4):(1)
flatten | (4,(2,4)):(2,(1,8)) | (4,2,4):(2,1,8)
flatten | (((2,2),2),4):(((1,4),2),8) | (2,2,2,4):(1,4,2,8)
flatten | ((2,3),4,3):((2,4),12,48) | (2,3,4,3):(2,4,12,48)
coalesce | (2,(1,6)):(1,(6,2)) | 12:1
coalesce | (4,8):(1,4) | 32:1
coalesce | (4,8):(8,1) | (4,8):(8,1)
coalesce | (4,8):(1,5) | (4,8):(1,5)
coalesce | (2,2,2):(1,2,4) | 8:1
coalesce | (2,2,2):(1,2,8) | (4,2):(1,8)
coalesce | (2,2,2):(4,2,1) | (2,2,2):(4,2,1)
coalesce | (1,1,1):(3,5,7) | 1:0
coalesce | 1:5 | 1:0
coalesce | (4,1,2):(1,0,4) | 8:1
coalesce | (4,1,2):(1,99,5) | (4,2):(1,5)
coalesce | (4,3):(0,0) | 12:0
coalesce | (4,3,2):(0,0,1) | (12,2):(0,1)
coalesce | (4,3,2):(1,0,0) | (4,6):(1,0)
coalesce | (4,(3,2)):(2,(8,24)) | 24:2
coalesce | ((2,2),(2,2)):((1,2),(4,8)) | 16:1
coalesce | ((2,2),(2,2)):((1,4),(2,8)) | (2,2,2,2):(1,4,2,8)
coalesce | (3,4):(-1,-3) | 12:-1
coalesce | (3,4):(-1,3) | (3,4):(-1,3)
coalesce | (2,3,4):(12,4,1) | (2,3,4):(12,4,1)
coalesce | (2,3,4):(1,2,6) | 24:1
coalesce | (2,3,4):(5,10,30) | 24:5
coalesce | (2,1,3,1,4):(1,7,2,7,6) | 24:1
coalesce | ((4),((2))):((1),((4))) | 8:1
coalesce | (4,8):(1@0,1@1) | (4,8):(1@0,1@1)
coalesce | (4,8):(1@0,4@0) | 32:1@0
coalesce | (2,2,3):(0,1,2) | (2,6):(0,1)
coalesce | (32,128):(0,1) | (32,128):(0,1)
coalesce | (6,4):(4,24) | 24:4
coalesce | (6,4):(4,23) | (6,4):(4,23)
coalesce | (5,5,5):(1,5,25) | 125:1
coalesce | (5,5,5):(25,5,1) | (5,5,5):(25,5,1)
coalesce | (2,(1,6)):(1,(6,2)) | (1,1) | (2,6):(1,2)
coalesce | (2,(1,6)):(1,(6,2)) | (1) | (2,(1,6)):(1,(6,2))
coalesce | ((2,2),(2,2)):((1,2),(4,8)) | (1,1) | (4,4):(1,4)
coalesce | ((2,2),(2,2)):((1,2),(4,8)) | (1) | (4,(2,2)):(1,(4,8))
coalesce | ((2,1),(3,4)):((1,9),(2,6)) | (1,(1,1)) | (2,(3,4)):(1,(2,6))
coalesce | ((2,2),3,(4,5)):((1,2),4,(12,48)) | (1,1,1) | (4,3,20):(1,4,12)
coalesce | ((2,2),(2,(2,2))):((1,2),(4,(8,16))) | (1,(1,1)) | (4,(2,4)):(1,(4,8))
coalesce | (4,8):(1,4) | 1 | 32:1
filter | (2,4):(0,1) | 4:1
filter | (4,8):(1,0) | 4:1
filter | (4,8):(0,0) | 1:0
filter | (2,3,4):(0,1,3) | 12:1
filter | (2,3,4):(1,0,2) | 8:1
filter | (2,1,3):(1,5,0) | 2:1
filter | (2,2,2):(1,0,2) | 4:1
filter | (32,128):(0,1) | 128:1
filter | (4,8):(8,1) | (4,8):(8,1)
filter | ((2,3),4):((0,1),3) | 12:1
filter_zeros | (2,4):(0,1) | (1,4):(0,1)
filter_zeros | (4,8):(1,0) | (4,1):(1,0)
filter_zeros | (4,8):(0,0) | (1,1):(0,0)
filter_zeros | ((2,3),4):((0,1),3) | ((1,3),4):((0,1),3)
filter_zeros | (2,1,3):(1,5,0) | (2,1,1):(1,5,0)
filter_zeros | 5:0 | 1:0
filter_zeros | 5:1 | 5:1
composition | (6,2):(8,2) | (4,3):(3,1) | ((2,2),3):((24,2),8)
composition | 20:2 | (5,4):(4,1) | (5,4):(8,2)
composition | (10,2):(16,4) | (5,4):(1,5) | (5,(2,2)):(16,(80,4))
composition | 20:2 | (4,5):(1,4) | (4,5):(2,8)
composition | 8:1 | 4:2 | 4:2
composition | 8:3 | 4:2 | 4:6
composition | (4,8):(1,4) | 8:4 | 8:4
composition | (4,8):(8,1) | 8:4 | 8:1
composition | (4,8):(8,1) | 4:1 | 4:8
composition | (4,8):(8,1) | 32:1 | (4,8):(8,1)
composition | (4,8):(8,1) | (8,4):(4,1) | (8,4):(1,8)
composition | (4,8):(8,1) | (2,2,8):(1,2,4) | (2,2,8):(8,16,1)
composition | (4,8):(8,1) | (2,8):(2,4) | (2,8):(16,1)
composition | (4,8):(8,1) | 8:2 | (2,4):(16,1)
composition | (4,8):(8,1) | 16:2 | (2,8):(16,1)
composition | (4,8):(8,1) | 4:8 | 4:2
composition | (4,8):(8,1) | 64:1 | (4,16):(8,1)
composition | (4,8):(8,1) | (4,16):(1,4) | (4,16):(8,1)
composition | (4,8):(8,1) | 3:0 | 3:0
composition | (4,8):(8,1) | (3,2):(0,1) | (3,2):(0,8)
composition | (4,8):(8,1) | (2,3):(1,0) | (2,3):(8,0)
composition | (4,8):(8,1) | 3:1 | 3:8
composition | (4,8):(8,1) | (3,8):(1,4) | (3,8):(8,1)
composition | (4,8):(8,1) | (3,5):(1,4) | (3,5):(8,1)
composition | (4,8):(8,1) | 1:0 | 1:0
composition | (4,8):(8,1) | (4):(1) | (4):(8)
composition | (2,3,4):(12,4,1) | 6:1 | (2,3):(12,4)
composition | (2,3,4):(12,4,1) | 12:2 | (3,4):(4,1)
composition | (2,3,4):(12,4,1) | (3,4):(2,6) | (3,4):(4,1)
composition | (2,3,4):(12,4,1) | (4,3,2):(6,2,1) | (4,3,2):(1,4,12)
composition | (2,3,4):(12,4,1) | 24:1 | (2,3,4):(12,4,1)
composition | (2,3,4):(12,4,1) | 2:6 | 2:1
composition | (2,3,4):(12,4,1) | 2:12 | 2:2
composition | (2,3,4):(12,4,1) | ((2,3),4):((1,2),6) | ((2,3),4):((12,4),1)
composition | (2,2,2,2):(8,4,2,1) | (4,4):(1,4) | ((2,2),(2,2)):((8,4),(2,1))
composition | (2,2,2,2):(8,4,2,1) | (4,4):(4,1) | ((2,2),(2,2)):((2,1),(8,4))
composition | (2,2,2,2):(8,4,2,1) | (2,2):(1,8) | (2,2):(8,1)
composition | (2,2,2,2):(8,4,2,1) | 8:2 | (2,2,2):(4,2,1)
composition | (2,2,2,2):(8,4,2,1) | 16:1 | (2,2,2,2):(8,4,2,1)
composition | (8,8):(8,1) | (4,4):(2,16) | (4,4):(16,2)
composition | (8,8):(8,1) | ((2,4),(2,4)):((1,8),(2,16)) | ((2,4),(2,4)):((8,1),(16,2))
composition | (8,8):(8,1) | 16:4 | (2,8):(32,1)
composition | (8,8):(8,1) | (8,4):(8,2) | (8,4):(1,16)
composition | (8,8):(9,1) | (4,8):(2,8) | (4,8):(18,1)
composition | (8,8):(9,1) | 32:2 | (4,8):(18,1)
composition | (4,2):(1,16) | 8:1 | (4,2):(1,16)
composition | (4,2):(1,16) | 4:2 | (2,2):(2,16)
composition | (4,2):(1,16) | 2:4 | 2:16
composition | (4,2):(1,16) | (2,2,2):(4,1,2) | (2,2,2):(16,1,2)
composition | (6,4):(4,1) | 12:2 | (3,4):(8,1)
composition | (6,4):(4,1) | 8:3 | (2,4):(12,1)
composition | (6,4):(4,1) | (3,4):(2,6) | (3,4):(8,1)
composition | (6,4):(4,1) | 4:6 | 4:1
composition | (6,4):(4,1) | (2,3):(3,1) | (2,3):(12,4)
composition | (32,128):(0,1) | 4:32 | 4:1
composition | (32,128):(0,1) | (8,16):(1,32) | (8,16):(0,1)
composition | (3,(2,4)):(8,(1,2)) | (3,8):(1,3) | (3,8):(8,1)
composition | (3,(2,4)):(8,(1,2)) | 8:3 | 8:1
composition | (3,(2,4)):(8,(1,2)) | 12:1 | (3,4):(8,1)
composition | 12:1 | (3,4):(4,1) | (3,4):(4,1)
composition | 12:-1 | (3,4):(4,1) | (3,4):(-4,-1)
composition | 12:5 | 4:-2 | 4:-10
composition | 7:3 | (2,2):(5,1) | (2,2):(15,3)
composition | (4,8):(1@0,1@1) | 8:4 | 8:1@1
composition | (4,8):(1@0,1@1) | (2,2):(2,4) | (2,2):(2@0,1@1)
composition | 10:1@0 | (4,3):(1,4) | (4,3):(1@0,4@0)
composition | ((2,2),(2,4)):((1,4),(2,8)) | (4,8):(8,1) | (4,(2,2,2)):(8,(1,4,2))
composition | ((2,2),(2,4)):((1,4),(2,8)) | (2,2):(2,8) | (2,2):(4,8)
composition | (4,(2,4)):(2,(1,8)) | (8,4):(4,1) | ((2,4),4):((1,8),2)
composition | (4,(2,4)):(2,(1,8)) | 2:16 | 2:16
composition | (16,4,4):(1,16,64) | (4,4):(4,64) | (4,4):(4,64)
composition | (16,4,4):(4,64,1) | (16,16):(16,1) | ((4,4),16):((64,1),4)
composition | (12,(4,8)):(59,(13,1)) | <3:4,8:2> | (3,(2,4)):(236,(26,1))
composition | (12,(4,8)):(59,(13,1)) | <3,8> | (3,(4,2)):(59,(13,1))
composition | (12,(4,8)):(59,(13,1)) | <3> | (3,(4,8)):(59,(13,1))
composition | (12,(4,8)):(59,(13,1)) | <-,8> | (12,(4,2)):(59,(13,1))
composition | (12,(4,8)):(59,(13,1)) | <-,-> | (12,(4,8)):(59,(13,1))
composition | (12,(4,8)):(59,(13,1)) | <4:3,(4,2):(1,4)> | (4,(4,2)):(177,(13,1))
composition | (12,(4,8)):(59,(13,1)) | <(2,2):(1,6),-> | ((2,2),(4,8)):((59,354),(13,1))
composition | (12,(4,8)):(59,(13,1)) | <(2,2):(6,1),16> | ((2,2),(4,4)):((354,59),(13,1))
composition | (12,(4,8)):(59,(13,1)) | <24,64> | (24,(4,16)):(59,(13,1))
composition | (4,8):(8,1) | <2,4> | (2,4):(8,1)
composition | (4,8):(8,1) | <2:2,4:2> | (2,4):(16,2)
composition | (4,8):(8,1) | <4:1,8:1> | (4,8):(8,1)
composition | (4,8):(8,1) | <(2,2):(2,1),-> | ((2,2),8):((16,8),1)
composition | (8,8,8):(64,8,1) | <4,-,2> | (4,8,2):(64,8,1)
composition | (8,8,8):(64,8,1) | <4:2,2:4> | (4,2,8):(128,32,1)
composition | ((4,8),16):((1,4),32) | <<2,4>,8> | ((2,4),8):((1,4),32)
composition | ((4,8),16):((1,4),32) | <<2:2,->,-> | ((2,8),16):((2,4),32)
composition | (4,8):(1,4) | 8 | 8:1
composition | (4,8):(8,1) | 8 | (4,2):(8,1)
composition | (4,8):(8,1) | - | (4,8):(8,1)
complement | 4:1 | 24 | 6:4
complement | 6:4 | 24 | 4:1
complement | 4:2 | 24 | (2,3):(1,8)
complement | (2,4):(1,6) | 24 | 3:2
complement | (2,2):(1,6) | 24 | (3,2):(2,12)
complement | (4,6):(1,4) | 24 | 1:0
complement | 1:0 | 24 | 24:1
complement | 1:7 | 24 | 24:1
complement | 24:1 | 24 | 1:0
complement | 4:1 | 4 | 1:0
complement | 4:1 | 2 | 1:0
complement | 4:1 | 25 | 7:4
complement | 4:1 | 1 | 1:0
complement | 4:2 | 8 | 2:1
complement | 4:2 | 9 | (2,2):(1,8)
complement | 4:2 | 1 | 2:1
complement | 2:4 | 16 | (4,2):(1,8)
complement | 2:4 | 4 | 4:1
complement | (2,2):(1,4) | 16 | (2,2):(2,8)
complement | (2,2):(4,1) | 16 | (2,2):(2,8)
complement | (2,2):(2,8) | 32 | (2,2,2):(1,4,16)
complement | (2,2):(8,2) | 32 | (2,2,2):(1,4,16)
complement | (2,2,2):(1,4,16) | 64 | (2,2,2):(2,8,32)
complement | (2,2,2):(16,1,4) | 64 | (2,2,2):(2,8,32)
complement | (4,8):(8,1) | 64 | 2:32
complement | (4,8):(1,4) | 128 | 4:32
complement | (4,8):(1,8) | 64 | 2:4
complement | (4,8):(16,1) | 64 | 2:8
complement | (4,8):(16,2) | 64 | 2:1
complement | (4,8):(0,1) | 32 | 4:8
complement | (4,8):(1,0) | 32 | 8:4
complement | (4,8):(0,0) | 32 | 32:1
complement | (4,1,8):(1,99,4) | 64 | 2:32
complement | ((2,2),3):((1,6),2) | 24 | 2:12
complement | 3:5 | 30 | (5,2):(1,15)
complement | (3,2):(1,9) | 36 | (3,2):(3,18)
complement | (3,2):(3,18) | 36 | (3,2):(1,9)
complement | 5:3 | 15 | 3:1
complement | 5:3 | 16 | (3,2):(1,15)
complement | (2,3):(12,2) | 24 | (2,2):(1,6)
complement | (2,3):(12,4) | 48 | (4,2):(1,24)
complement | 32:1 | 1024 | 32:32
complement | 4 | 24 | 6:4
complement | 8 | 60 | 8:8
complement | (2,2):(1,5) | 20 | (2,2):(2,10)
complement | (2,2):(1,3) | 12 | 2:6
complement | (2,2):(3,11) | 44 | (3,2):(1,22)
complement | (3,2):(2,7) | 28 | (2,2):(1,14)
complement | 4:1 | (4,6) | 6:4
complement | 4:2 | (2,(3,4)) | (2,3):(1,8)
right_inverse | 8:1 | 8:1
right_inverse | 1:0 | 1:0
right_inverse | (4,8):(1,4) | 32:1
right_inverse | (4,8):(8,1) | (8,4):(4,1)
right_inverse | (4,2):(1,16) | 4:1
right_inverse | (32,128):(0,1) | 128:32
right_inverse | (4,8):(0,0) | 1:0
right_inverse | 4:2 | 1:0
right_inverse | (4,8):(2,8) | 1:0
right_inverse | (4,8):(1,8) | 4:1
right_inverse | (4,8):(8,2) | 1:0
right_inverse | (2,3,4):(12,4,1) | (4,3,2):(6,2,1)
right_inverse | (2,3,4):(4,8,1) | (4,6):(6,1)
right_inverse | (2,3,4):(1,8,2) | (2,4,3):(1,6,2)
right_inverse | (2,3,4):(1,9,2) | (2,4):(1,6)
right_inverse | ((2,2),(2,4)):((1,4),(2,8)) | (2,2,2,4):(1,4,2,8)
right_inverse | (4,(2,4)):(2,(1,8)) | (2,4,4):(4,1,8)
right_inverse | (((2,2),2),4):(((1,4),2),8) | (2,2,2,4):(1,4,2,8)
right_inverse | (2,1,3):(1,7,2) | 6:1
right_inverse | (3,1,2):(2,1,1) | (2,3):(3,1)
right_inverse | (8,4,2):(1,0,8) | (8,2):(1,32)
right_inverse | (8,4,2):(4,0,1) | 2:32
right_inverse | (8,4,2):(4,1,32) | (4,8,2):(8,1,32)
right_inverse | (6,4):(-1,1) | 4:6
right_inverse | (4,8):(1,5) | 4:1
right_inverse | 12 | 12:1
right_inverse | (3,4):(4,1) | (4,3):(3,1)
right_inverse | ((3,2),(4,5)):((10,5),(30,1)) | (5,2,3,4):(24,3,1,6)
left_inverse | 8:1 | 8:1
left_inverse | 1:0 | 1:0
left_inverse | (4,8):(1,4) | 32:1
left_inverse | (4,8):(8,1) | (8,4):(4,1)
left_inverse | (4,2):(1,16) | (16,2):(1,4)
left_inverse | (4,2):(1,5) | (5,2):(1,4)
left_inverse | 4:2 | (2,4):(0,1)
left_inverse | 4:3 | (3,4):(0,1)
left_inverse | (4,8):(2,8) | (2,32):(0,1)
left_inverse | (4,8):(1,8) | (8,8):(1,4)
left_inverse | (4,8):(1,5) | (5,8):(1,4)
left_inverse | (4,8):(9,1) | (9,4):(4,1)
left_inverse | (2,3,4):(12,4,1) | (4,3,2):(6,2,1)
left_inverse | (2,3,4):(24,8,2) | (2,4,3,2):(0,6,2,1)
left_inverse | (2,3,4):(100,10,1) | (10,10,2):(6,2,1)
left_inverse | ((2,2),(2,4)):((1,4),(2,8)) | (2,2,2,4):(1,4,2,8)
left_inverse | (4,(2,4)):(2,(1,8)) | (2,4,4):(4,1,8)
left_inverse | (((2,2),2),4):(((1,4),2),8) | (2,2,2,4):(1,4,2,8)
left_inverse | (2,1,3):(1,7,2) | 6:1
left_inverse | (32,128):(0,1) | 128:32
left_inverse | (4,8):(1,0) | 4:1
left_inverse | (2,2):(3,9) | (3,3,2):(0,1,2)
left_inverse | (2,2):(3,6) | (3,4):(0,1)
left_inverse | (2,2):(9,3) | (3,3,2):(0,2,1)
left_inverse | 12 | 12:1
left_inverse | (8,8):(9,1) | (9,8):(8,1)
logical_divide | (4,2,3):(2,1,8) | 4:2 | ((2,2),(2,3)):((4,1),(2,8))
logical_divide | (9,(4,8)):(59,(13,1)) | <3:3,(2,4):(1,8)> | ((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))
logical_divide | 16:1 | 4 | (4,4):(1,4)
logical_divide | 16:1 | 4:4 | (4,4):(4,1)
logical_divide | 16:1 | 4:2 | (4,(2,2)):(2,(1,8))
logical_divide | 16:1 | (2,2):(1,4) | ((2,2),(2,2)):((1,4),(2,8))
logical_divide | 16:1 | (2,2):(4,1) | ((2,2),(2,2)):((4,1),(2,8))
logical_divide | 16:3 | 4:2 | (4,(2,2)):(6,(3,24))
logical_divide | 1000:1 | 128 | (128,8):(1,128)
logical_divide | 10:1 | 4 | (4,3):(1,4)
logical_divide | 10:1@0 | 4 | (4,3):(1@0,4@0)
logical_divide | 16:1 | 16 | (16,1):(1,0)
logical_divide | 16:1 | 32 | (32,1):(1,0)
logical_divide | 16:1 | 3 | (3,6):(1,3)
logical_divide | (9,32):(1,9) | <3,8> | ((3,3),(8,4)):((1,3),(9,72))
logical_divide | (9,32):(1,9) | <3:3,8:4> | ((3,3),(8,4)):((3,1),(36,9))
logical_divide | (9,32):(32,1) | <3,8> | ((3,3),(8,4)):((32,96),(1,8))
logical_divide | (9,32):(32,1) | <-,8> | (9,(8,4)):(32,(1,8))
logical_divide | (9,32):(32,1) | <3> | ((3,3),32):((32,96),1)
logical_divide | (4,8):(8,1) | 4 | (4,8):(8,1)
logical_divide | (4,8):(8,1) | 8 | ((4,2),4):((8,1),2)
logical_divide | (4,8):(8,1) | 8:4 | (8,4):(1,8)
logical_divide | (4,8):(8,1) | (2,4):(1,4) | ((2,4),(2,2)):((8,1),(16,4))
logical_divide | (4,8):(8,1) | <2,4> | ((2,2),(4,2)):((8,16),(1,4))
logical_divide | (4,8):(8,1) | <2:2,4:2> | ((2,2),(4,2)):((16,8),(2,1))
logical_divide | (4,8):(8,1) | - | (4,8):(8,1)
logical_divide | (8,8,8):(64,8,1) | <2,4,8> | ((2,4),(4,2),(8,1)):((64,128),(8,32),(1,0))
logical_divide | ((4,8),16):((1,4),32) | <<2,4>,8> | (((2,2),(4,2)),(8,2)):(((1,2),(4,16)),(32,256))
logical_divide | (12,(4,8)):(59,(13,1)) | <3:4,8:2> | ((3,4),((2,4),(2,2))):((236,59),((26,1),(13,4)))
zipped_divide | (9,(4,8)):(59,(13,1)) | <3:3,(2,4):(1,8)> | ((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))
zipped_divide | (9,32):(1,9) | <3,8> | ((3,8),(3,4)):((1,9),(3,72))
zipped_divide | (9,32):(32,1) | <3:3,8:4> | ((3,8),(3,4)):((96,4),(32,1))
zipped_divide | (4,8):(8,1) | <2,4> | ((2,4),(2,2)):((8,1),(16,4))
zipped_divide | (4,8):(8,1) | <-,4> | ((1,4),(4,2)):((0,1),(8,4))
zipped_divide | (4,8,5):(40,5,1) | <2,4> | ((2,4),(2,2,5)):((40,5),(80,20,1))
zipped_divide | 16:1 | 4 | (4,4):(1,4)
zipped_divide | (4,8):(8,1) | 4:8 | (4,(4,2)):(2,(8,1))
zipped_divide | (129,67):(67,1) | <128,16> | ((128,16),(2,5)):((67,1),(8576,16))
zipped_divide | ((4,8),16):((1,4),32) | <<2,4>,8> | (((2,4),8),((2,2),2)):(((1,4),32),((2,16),256))
zipped_divide | (10,7):(1@0,1@1) | <4,3> | ((4,3),(3,3)):((1@0,1@1),(4@0,3@1))
tiled_divide | (9,(4,8)):(59,(13,1)) | <3:3,(2,4):(1,8)> | ((3,(2,4)),3,(2,2)):((177,(13,2)),59,(26,1))
tiled_divide | (9,32):(1,9) | <3,8> | ((3,8),3,4):((1,9),3,72)
tiled_divide | (4,8,5):(40,5,1) | <2,4> | ((2,4),2,2,5):((40,5),80,20,1)
tiled_divide | 16:1 | 4 | (4,4):(1,4)
tiled_divide | (4,8):(8,1) | <2,4> | ((2,4),2,2):((8,1),16,4)
tiled_divide | (4,2,3):(2,1,8) | 4:2 | ((2,2),2,3):((4,1),2,8)
tiled_divide | (4,8):(8,1) | <-,4> | ((1,4),4,2):((0,1),8,4)
flat_divide | (9,(4,8)):(59,(13,1)) | <3:3,(2,4):(1,8)> | (3,(2,4),3,(2,2)):(177,(13,2),59,(26,1))
flat_divide | (9,32):(1,9) | <3,8> | (3,8,3,4):(1,9,3,72)
flat_divide | (4,8,5):(40,5,1) | <2,4> | (2,4,2,2,5):(40,5,80,20,1)
flat_divide | 16:1 | 4 | (4,4):(1,4)
flat_divide | (4,8):(8,1) | <2,4> | (2,4,2,2):(8,1,16,4)
flat_divide | (4,2,3):(2,1,8) | 4:2 | (2,2,2,3):(4,1,2,8)
flat_divide | (4,8):(8,1) | <-,4> | (1,4,4,2):(0,1,8,4)
logical_product | (2,2):(4,1) | 6:1 | ((2,2),(2,3)):((4,1),(2,8))
logical_product | (2,2):(4,1) | (4,2):(2,1) | ((2,2),(4,2)):((4,1),(8,2))
logical_product | 4:1 | 6 | (4,6):(1,4)
logical_product | 4:1 | 6:1 | (4,6):(1,4)
logical_product | 4:1 | (2,3):(1,2) | (4,(2,3)):(1,(4,8))
logical_product | 4:1 | (2,3):(3,1) | (4,(2,3)):(1,(12,4))
logical_product | 4:2 | 2 | (4,2):(2,1)
logical_product | 4:2 | 6 | (4,(2,3)):(2,(1,8))
logical_product | 4:2 | (2,3):(1,2) | (4,(2,3)):(2,(1,8))
logical_product | 4:2 | (3,2):(2,1) | (4,(3,2)):(2,(8,1))
logical_product | (4,8):(8,1) | 3 | ((4,8),3):((8,1),32)
logical_product | (4,8):(8,1) | (2,3):(3,1) | ((4,8),(2,3)):((8,1),(96,32))
logical_product | (4,8):(1,4) | (2,2):(1,2) | ((4,8),(2,2)):((1,4),(32,64))
logical_product | (2,5):(5,1) | (3,4):(1,3) | ((2,5),(3,4)):((5,1),(10,30))
logical_product | (2,5):(5,1) | <3,4> | ((2,3),(5,4)):((5,1),(1,5))
logical_product | (2,5):(1,2) | <-,4> | (2,(5,(2,2))):(1,(2,(1,10)))
logical_product | 4:0 | 3 | (4,3):(0,1)
logical_product | (4,2):(0,1) | 3 | ((4,2),3):((0,1),2)
logical_product | (2,2):(1,8) | 4 | ((2,2),4):((1,8),2)
logical_product | (2,2):(1,8) | 8 | ((2,2),(4,2)):((1,8),(2,16))
logical_product | 4:1 | 3:2 | (4,3):(1,8)
logical_product | 4:1 | (2,2):(4,1) | (4,(2,2)):(1,(16,4))
logical_product | 1:0 | 5 | (1,5):(0,1)
logical_product | 5:1 | 1 | (5,1):(1,0)
logical_product | (2,4):(1,6) | 3 | ((2,4),3):((1,6),2)
logical_product | (2,4):(1,6) | 6 | ((2,4),(3,2)):((1,6),(2,24))
logical_product | 4:1 | - | 4:1
zipped_product | (2,5):(5,1) | <3,4> | ((2,5),(3,4)):((5,1),(1,5))
zipped_product | 4:1 | (2,3):(1,2) | (4,(2,3)):(1,(4,8))
zipped_product | (2,2):(4,1) | 6:1 | ((2,2),(2,3)):((4,1),(2,8))
zipped_product | (2,5):(1,2) | <3> | ((2),(3,5)):((1),(2,2))
tiled_product | (2,5):(5,1) | <3,4> | ((2,5),3,4):((5,1),1,5)
tiled_product | 4:1 | (2,3):(1,2) | (4,2,3):(1,4,8)
tiled_product | (2,2):(4,1) | 6:1 | ((2,2),2,3):((4,1),2,8)
tiled_product | (2,2):(1,2) | (2,3):(1,2) | ((2,2),2,3):((1,2),4,8)
flat_product | (2,5):(5,1) | <3,4> | (2,5,3,4):(5,1,1,5)
flat_product | 4:1 | (2,3):(1,2) | (4,2,3):(1,4,8)
flat_product | (2,2):(4,1) | 6:1 | (2,2,2,3):(4,1,2,8)
flat_product | (2,2):(1,2) | (2,3):(1,2) | (2,2,2,3):(1,2,4,8)
blocked_product | (2,5):(5,1) | (3,4):(1,3) | ((2,3),(5,4)):((5,10),(1,30))
blocked_product | (2,5):(1,2) | (3,4):(1,3) | ((2,3),(5,4)):((1,10),(2,30))
blocked_product | (2,5):(5,1) | (3,4):(4,1) | ((2,3),(5,4)):((5,40),(1,10))
blocked_product | (2,5):(1,2) | 3 | ((2,3),(5,1)):((1,10),(2,0))
blocked_product | 4:1 | (2,3):(1,2) | ((4,2),(1,3)):((1,4),(0,8))
blocked_product | (8,8):(8,1) | (2,4):(1,2) | ((8,2),(8,4)):((8,64),(1,128))
blocked_product | (8,8):(8,1) | (2,4):(4,1) | ((8,2),(8,4)):((8,256),(1,64))
blocked_product | (2,2):(1,2) | (2,2,2):(1,2,4) | ((2,2),(2,2),(1,2)):((1,4),(2,8),(0,16))
blocked_product | 4:1 | 3 | ((4,3)):((1,4))
raked_product | (2,5):(5,1) | (3,4):(1,3) | ((3,2),(4,5)):((10,5),(30,1))
raked_product | (2,5):(1,2) | (3,4):(1,3) | ((3,2),(4,5)):((10,1),(30,2))
raked_product | (2,5):(5,1) | (3,4):(4,1) | ((3,2),(4,5)):((40,5),(10,1))
raked_product | (2,5):(1,2) | 3 | ((3,2),(1,5)):((10,1),(0,2))
raked_product | 4:1 | (2,3):(1,2) | ((2,4),(3,1)):((4,1),(8,0))
raked_product | (8,8):(8,1) | (2,4):(1,2) | ((2,8),(4,8)):((64,8),(128,1))
raked_product | (2,3):(3,1) | (2,2):(2,1) | ((2,2),(2,3)):((12,3),(6,1))
raked_product | (2,2):(1,2) | (2,2,2):(1,2,4) | ((2,2),(2,2),(2,1)):((4,1),(8,2),(16,0))
raked_product | 4:1 | 3 | ((3,4)):((4,1))
tile_to_shape | (8,64):(64,1) | (128,64) | ((8,16),(64,1)):((64,512),(1,0))
tile_to_shape | (8,64):(64,1) | (16,128) | ((8,2),(64,2)):((64,512),(1,1024))
tile_to_shape | (8,8):(8,1) | (16,24) | ((8,2),(8,3)):((8,64),(1,128))
tile_to_shape | (8,8):(1,8) | (16,24) | ((8,2),(8,3)):((1,64),(8,128))
tile_to_shape | (4,2):(1,4) | (8,6,5) | ((4,2),(2,3),(1,5)):((1,8),(4,16),(0,48))
tile_to_shape | 4:1 | (12) | ((4,3)):((1,4))
tile_to_shape | 4:1 | (4,3) | ((4,1),(1,3)):((1,0),(0,4))
tile_to_shape | (2,2):(2,1) | (2,2) | ((2,1),(2,1)):((2,0),(1,0))
tile_to_shape | (2,2):(2,1) | (4,6) | ((2,2),(2,3)):((2,4),(1,8))
tile_to_shape | (8,8):(8,1) | (16,24) | (1,0) | ((8,2),(8,3)):((8,192),(1,64))
tile_to_shape | (8,8):(8,1) | (16,24) | (0,1) | ((8,2),(8,3)):((8,64),(1,128))
tile_to_shape | (4,2):(1,4) | (8,6,5) | (2,1,0) | ((4,2),(2,3),(1,5)):((1,120),(4,40),(0,8))
tile_to_shape | (4,2):(1,4) | (8,6,5) | (1,2,0) | ((4,2),(2,3),(1,5)):((1,40),(4,80),(0,8))
tile_to_shape | (2,2):(2,1) | (4,6) | (1,0) | ((2,2),(2,3)):((2,12),(1,4))
make_ordered_layout | (2,3,4) | (0,1,2) | (2,3,4):(1,2,6)
make_ordered_layout | (2,3,4) | (2,1,0) | (2,3,4):(12,4,1)
make_ordered_layout | (2,3,4) | (2,0,1) | (2,3,4):(12,1,3)
make_ordered_layout | (2,3,4) | (1,2,0) | (2,3,4):(4,8,1)
make_ordered_layout | (2,(3,4)) | (2,(1,0)) | (2,(3,4)):(12,(4,1))
make_ordered_layout | (4,1,8) | (2,1,0) | (4,1,8):(8,0,1)
make_ordered_layout | (4,8) | (0,0) | (4,8):(1,4)
make_ordered_layout | 6 | 0 | 6:1
upcast | (4,8):(1,4) | 2 | (2,8):(1,2)
upcast | (4,8):(1,4) | 4 | (1,8):(1,1)
upcast | (4,8):(8,1) | 2 | (4,4):(4,1)
upcast | (4,8):(8,1) | 8 | (4,1):(1,1)
upcast | (4,8):(1,4) | 1 | (4,8):(1,4)
upcast | (8,4):(1,16) | 8 | (1,4):(1,2)
upcast | (2,2):(1,2) | 4 | (1,1):(1,1)
upcast | (2,2,2):(1,2,4) | 4 | (1,1,2):(1,1,1)
upcast | (2,2):(1,8) | 4 | (1,2):(1,2)
upcast | (4,8):(0,1) | 2 | (4,4):(0,1)
upcast | (4,8):(1,0) | 4 | (1,8):(1,0)
upcast | ((2,4),8):((8,1),16) | 4 | ((2,1),8):((2,1),4)
upcast | (4,3):(3,12) | 3 | (4,3):(1,4)
upcast | 16:1 | 16 | 1:1
downcast | (2,8):(1,2) | 2 | (4,8):(1,4)
downcast | (4,8):(1,4) | 2 | (8,8):(1,8)
downcast | (4,8):(8,1) | 4 | (4,32):(32,1)
downcast | (4,8):(0,1) | 2 | (4,16):(0,1)
downcast | (4,8):(2,8) | 2 | (4,8):(4,16)
downcast | ((2,4),8):((8,1),16) | 4 | ((2,16),8):((32,1),64)
downcast | (4,8):(1,4) | 1 | (4,8):(1,4)
downcast | 16:1 | 3 | 48:1
recast | (8,4):(1,8) | 16 | 32 | (4,4):(1,4)
recast | (8,4):(1,8) | 16 | 8 | (16,4):(1,16)
recast | (8,4):(1,8) | 8 | 64 | (1,4):(1,1)
recast | (8,4):(4,1) | 32 | 8 | (8,16):(16,1)
recast | (8,4):(4,1) | 8 | 32 | (8,1):(1,1)
recast | (8,4):(1,8) | 16 | 16 | (8,4):(1,8)
recast | (16,4):(1,16) | 4 | 8 | (8,4):(1,8)
recast | (16,4):(1,16) | 8 | 4 | (32,4):(1,32)
nullspace | (2,3,4):(0,1,0) | (2,4):(1,6)
nullspace | (4,8):(1,4) | 1:0
nullspace | (4,8):(0,0) | (4,8):(1,4)
nullspace | ((2,2),(3,4)):((0,1),(2,0)) | (2,4):(1,12)
nullspace | 5:0 | 5:1
nullspace | (1,6):(0,0) | 6:1
nullspace | (4,(2,3)):(1@0,(0,1@1)) | 2:4
make_layout_like | (2,3,4):(40,0,5) | (2,3,4):(4,0,1)
make_layout_like | (4,8):(8,1) | (4,8):(8,1)
make_layout_like | (4,8):(9,2) | (4,8):(8,1)
make_layout_like | (4,(2,3)):(1,(99,7)) | (4,(2,3)):(1,(12,4))
make_layout_like | (2,2):(3,3) | (2,2):(1,2)
reverse | (2,(3,4)):(1,(2,6)) | ((3,4),2):((2,6),1)
reverse | 4:2 | 4:2
reverse | (2,3,4):(12,4,1) | (4,3,2):(1,4,12)
reverse | (2,(3,4),5) | (5,(3,4),2)
take | (2,3,4):(12,4,1) | 1 | 3 | (3,4):(4,1)
take | (2,(3,4),5):(1,(2,6),24) | 0 | 2 | (2,(3,4)):(1,(2,6))
take | (2,(3,4),5) | 1 | 2 | ((3,4))
replace | (2,3,4):(12,4,1) | 1 | 5:7 | (2,5,4):(12,7,1)
replace | (2,(3,4)) | 1 | 9 | (2,9)
max_common_vector | (4,8):(1,4) | (4,8):(1,8) | 4
max_common_vector | (4,8):(1,4) | (4,8):(1,4) | 32
max_common_vector | (4,8):(1,4) | (4,8):(8,1) | 1
max_common_vector | (4,8):(8,1) | (4,8):(8,1) | 32
max_common_vector | (4,8):(8,1) | (4,8):(16,1) | 8
max_common_vector | (4,8):(2,8) | (4,8):(2,8) | 1
max_common_vector | (8,4):(1,8) | (8,4):(1,12) | 8
max_common_vector | (4,2,4):(1,4,8) | (4,2,4):(1,4,16) | 8
max_common_vector | (4,2,4):(1,4,8) | (4,2,4):(1,16,4) | 4
max_common_vector | (32,128):(0,1) | (32,128):(0,1) | 128
max_common_vector | 64:1 | (8,8):(1,8) | 64
max_common_vector | 64:1 | (8,8):(8,1) | 1
max_common_layout | (4,8):(1,4) | (4,8):(1,8) | 4:1
max_common_layout | (4,8):(8,1) | (4,8):(8,1) | (8,4):(4,1)
max_common_layout | (4,8):(8,1) | (4,8):(16,1) | 8:4
max_common_layout | (4,8):(1,4) | (4,8):(8,1) | 1:0
max_common_layout | (4,2,4):(1,4,8) | (4,2,4):(1,4,16) | 8:1
max_common_layout | (2,4,4):(4,1,8) | (2,4,4):(4,1,32) | (4,2):(2,1)
slice | (4,(2,4)):(2,(1,8)) | (-,3) | 9 + (4):(2)
slice | (4,(2,4)):(2,(1,8)) | (1,-) | 2 + ((2,4)):((1,8))
slice | (4,(2,4)):(2,(1,8)) | (1,(-,2)) | 18 + (2):(1)
slice | (4,(2,4)):(2,(1,8)) | (1,(1,-)) | 3 + (4):(8)
slice | (4,(2,4)):(2,(1,8)) | (-,(-,2)) | 16 + (4,2):(2,1)
slice | (4,(2,4)):(2,(1,8)) | (-,(1,-)) | 1 + (4,4):(2,8)
slice | (4,(2,4)):(2,(1,8)) | (-,-) | 0 + (4,(2,4)):(2,(1,8))
slice | ((2,2),2):((1,2),4) | ((1,-),-) | 1 + (2,2):(2,4)
slice | ((2,2),2):((1,2),4) | (3,-) | 3 + (2):(4)
slice | (2,3,4):(12,4,1) | (-,2,-) | 8 + (2,4):(12,1)
slice | (2,3,4):(12,4,1) | (1,-,3) | 15 + (3):(4)
slice | 8:3 | - | 0 + 8:3
local_tile | (16,4,4):(1,16,64) | <2,4,2> | (3,0,1) | 134 + (2,4,2):(1,16,64)
local_tile | (128,64):(1,128) | <32,16> | (2,3) | 6208 + (32,16):(1,128)
local_tile | (128,64):(64,1) | <32,16> | (2,3) | 4144 + (32,16):(64,1)
local_tile | (128,64):(64,1) | <32,16> | (2,-) | 4096 + (32,16,4):(64,1,16)
local_tile | (128,64):(64,1) | <32,16> | (-,3) | 48 + (32,16,4):(64,1,2048)
local_tile | (128,64):(64,1) | <32> | (2) | 4096 + (32,64):(64,1)
local_tile | 16:1 | 4 | 2 | 8 + (4):(1)
local_tile | (4,(2,4)):(2,(1,8)) | <2,4> | (1,1) | 20 + (2,(2,2)):(2,(1,8))
local_tile | (9,32):(1,9) | <3:3,8:4> | (2,1) | 11 + (3,8):(3,36)
local_tile | S<2,0,3> o 0 o (8,8):(8,1) | <4,4> | (1,1) | S<2,0,3> o 36 o (4,4):(8,1)
local_tile | 7 + (8,8):(8,1) | <4,4> | (1,0) | 39 + (4,4):(8,1)
local_partition | (8,8):(1,8) | (2,4):(1,2) | 5 | 17 + (4,2):(2,32)
local_partition | (8,8):(8,1) | (2,4):(1,2) | 5 | 10 + (4,2):(16,4)
local_partition | (8,8):(8,1) | (2,4):(4,1) | 5 | 9 + (4,2):(16,4)
local_partition | (4,256,8):(2048,8,1) | (4,64,1):(1,4,1) | 5 | 2056 + (1,4,8):(0,512,1)
local_partition | 32:1 | 8:1 | 3 | 3 + (4):(8)
local_partition | ((16,4),4):((1,16),64) | (8,2):(1,8) | 9 | 65 + (8,2):(8,128)
local_partition | S<2,0,3> o 0 o (8,8):(8,1) | (2,4):(1,2) | 3 | S<2,0,3> o 9 o (4,2):(16,4)
block_partition | (8,8):(1,8) | (2,4):(1,2) | 5 | 36 + (4,2):(1,8)
block_partition | (8,8):(8,1) | (2,4):(1,2) | 5 | 36 + (4,2):(8,1)
block_partition | (8,8):(8,1) | (2,4):(4,1) | 5 | 34 + (4,2):(8,1)
block_partition | (4,256,8):(2048,8,1) | (4,64,1):(1,4,1) | 5 | 2080 + (1,4,8):(2048,8,1)
block_partition | 32:1 | 8:1 | 3 | 12 + (4):(1)
block_partition | ((16,4),4):((1,16),64) | (8,2):(1,8) | 9 | 136 + (8,2):(1,64)
shape_div | 12 | 3 | 4
shape_div | 3 | 12 | 1
shape_div | (3,4) | 6 | (1,2)
shape_div | (3,4) | 3 | (1,4)
shape_div | (3,4) | 12 | (1,1)
shape_div | (3,4) | 24 | (1,1)
shape_div | (6,(3,4)) | 36 | (1,(1,2))
shape_div | (6,(3,4)) | 2 | (3,(3,4))
shape_div | (6,(3,4)) | 6 | (1,(3,4))
shape_div | (6,(3,4)) | 18 | (1,(1,4))
shape_div | (6,4) | (3,2) | (2,2)
shape_div | ((2,4),8) | (4,2) | ((1,2),4)
shape_div | 24 | (2,3) | 4
idx2crd | 21 | (4,(2,4)) | (1,(1,2))
idx2crd | 0 | (4,(2,4)) | (0,(0,0))
idx2crd | 31 | (4,(2,4)) | (3,(1,3))
idx2crd | 5 | (2,3) | (1,2)
idx2crd | 5 | (3,2) | (2,1)
idx2crd | 11 | ((2,2),3) | ((1,1),2)
idx2crd | 7 | 8 | 7
idx2crd | 23 | (2,3,4) | (1,2,3)
call | (4,8):(1,4) | (1,1) | 5
call | (4,(2,4)):(2,(1,8)) | (1,3) | 11
call | (4,(2,4)):(2,(1,8)) | (1,(1,1)) | 11
call | (4,(2,4)):(2,(1,8)) | 13 | 11
call | ((2,2),2):((1,2),4) | (2,1) | 6
call | ((2,2),2):((1,2),4) | ((0,1),1) | 6
call | ((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1))) | (0,3) | 26
call | ((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1))) | (0,7) | 60
call | ((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1))) | (0,(1,2)) | 60
call | (4,8):(1,5) | 40 | 50
call | 8:3 | 11 | 33
call | (2,2):(4,1) | 5 | 6
swizzle | S<2,0,3> | 9 | 8
swizzle | S<2,0,3> | 8 | 9
swizzle | S<2,0,3> | 18 | 16
swizzle | S<2,0,3> | 31 | 28
swizzle | S<3,3,3> | 64 | 72
swizzle | S<3,4,3> | 128 | 144
swizzle | S<3,4,3> | 1023 | 911
swizzle | S<1,0,1> | 2 | 3
swizzle | S<1,0,1> | 3 | 2
swizzle | S<1,0,-1> | 1 | 3
swizzle | S<1,0,-1> | 3 | 1
swizzle | S<2,1,-2> | 6 | 30
swizzle | S<0,4,3> | 77 | 77
swizzle | S<3,3,3> | 3735928559 | 3735928567
swizzle | S<3,3,4> | 305419896 | 305419864
swizzle | S<2,0,-3> | 610800463 | 610800471
swizzle | S<4,4,-11> | 610800471 | 610964311
"""

REFUSED_COMPOSITIONS = """
(6,2):(8,2) | (4,3):(4,1)
(4,3):(3,1) | 6:1
(4,4):(1,10) | (4,2):(1,2)
(4,4):(1,10) | 3:3
(4,8):(8,1) | 6:1
(4,8):(8,1) | 5:1
(4,8):(8,1) | 3:2
(4,8):(8,1) | 8:3
(4,8):(8,1) | 4:6
(4,8):(8,1) | (4,2):(1,1)
(4,8):(8,1) | (3,2):(1,2)
(4,8):(8,1) | (2,2,2):(1,2,2)
(6,4):(4,1) | 3:4
(6,4):(4,1) | 9:1
(6,4):(4,1) | 5:2
(2,3,4):(12,4,1) | 8:1
(2,3,4):(12,4,1) | 4:2
(2,3,4):(12,4,1) | 5:4
(2,3,4):(12,4,1) | (3,2):(2,2)
(4,8):(8,1) | 4:-1
(10,2):(16,4) | 4:4
(10,2):(16,4) | 15:1
"""

OFFSET_TABLES = """
(4,8):(1,4)
    0 4 8 12 16 20 24 28
    1 5 9 13 17 21 25 29
    2 6 10 14 18 22 26 30
    3 7 11 15 19 23 27 31
(4,8):(8,1)
    0 1 2 3 4 5 6 7
    8 9 10 11 12 13 14 15
    16 17 18 19 20 21 22 23
    24 25 26 27 28 29 30 31
(4,(2,4)):(2,(1,8))
    0 1 8 9 16 17 24 25
    2 3 10 11 18 19 26 27
    4 5 12 13 20 21 28 29
    6 7 14 15 22 23 30 31
((2,2),(2,4)):((1,4),(2,8))
    0 2 8 10 16 18 24 26
    1 3 9 11 17 19 25 27
    4 6 12 14 20 22 28 30
    5 7 13 15 21 23 29 31
(((2,2),2),4):(((1,4),2),8)
    0 8 16 24
    1 9 17 25
    4 12 20 28
    5 13 21 29
    2 10 18 26
    3 11 19 27
    6 14 22 30
    7 15 23 31
(3,4):(0,1)
    0 1 2 3
    0 1 2 3
    0 1 2 3
(3,4):(-1,3)
    0 3 6 9
    -1 2 5 8
    -2 1 4 7
(2,5):(5,1)
    0 1 2 3 4
    5 6 7 8 9
"""


# -- reading the table --------------------------------------------------------------------------------------


def split(text):
    """The parts between commas that are outside all brackets."""
    parts, nesting = [""], 0
    for character in text:
        nesting += (character in "(<") - (character in ")>")
        if character == "," and nesting == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def read(text):
    if text == "-":
        return None
    if text.startswith("<"):
        return tuple(read(part) for part in split(text[1:-1]))
    if text.startswith("S<") and " o " not in text:
        return Swizzle(*(int(n) for n in text[2:-1].split(",")))
    if ":" in text:
        return parse_layout(text)
    if text.startswith("("):
        return tuple(read(part) for part in split(text[1:-1]))
    return int(text)


def rows(table):
    return [[field.strip() for field in line.split("|")] for line in table.strip().splitlines()]


def printed(result):
    if isinstance(result, tuple) and isinstance(result[0], Layout):
        return f"{result[1]} + {result[0]}"
    return shape_text(result) if isinstance(result, tuple) else str(result)


OPERATIONS = {
    "block_partition": lambda layout, threads, index: local_partition(layout, threads, index, mode="block"),
    "blocked_product": blocked_product,
    "call": lambda layout, crd: layout(crd),
    "coalesce": coalesce,
    "complement": complement,
    "composition": composition,
    "cosize": cosize,
    "depth": depth,
    "downcast": downcast,
    "filter": filter,
    "filter_zeros": filter_zeros,
    "flat_divide": flat_divide,
    "flat_product": flat_product,
    "flatten": flatten,
    "idx2crd": idx2crd,
    "left_inverse": left_inverse,
    "local_partition": local_partition,
    "local_tile": local_tile,
    "logical_divide": logical_divide,
    "logical_product": logical_product,
    "make_layout_like": make_layout_like,
    "make_ordered_layout": make_ordered_layout,
    "max_common_layout": max_common_layout,
    "max_common_vector": max_common_vector,
    "nullspace": nullspace,
    "raked_product": raked_product,
    "rank": rank,
    "recast": recast,
    "replace": replace,
    "reverse": reverse,
    "right_inverse": right_inverse,
    "shape_div": shape_div,
    "size": size,
    "slice": lambda layout, crd: slice_and_offset(crd, layout),
    "swizzle": lambda swizzle, offset: swizzle(offset),
    "take": take,
    "tile_to_shape": tile_to_shape,
    "tiled_divide": tiled_divide,
    "tiled_product": tiled_product,
    "upcast": upcast,
    "zipped_divide": zipped_divide,
    "zipped_product": zipped_product,
}


@pytest.mark.parametrize("row", rows(FACTS), ids=lambda row: " | ".join(row[:-1]))
def test_each_operation_prints_the_known_answer(row):
    operation, *args, expected = row
    assert printed(OPERATIONS[operation](*map(read, args))) == expected


# -- what the rows must mean --------------------------------------------------------------------------------


def offsets(layout):
    """All values by index; coordinates stay tuples."""
    if layout.has_coordinates:
        return [layout(i) for i in range(size(layout))]
    return values(layout)


def as_layout(tiler):
    return tiler if isinstance(tiler, Layout) else Layout(tiler)


def means_same_function(result, layout, profile=None):
    assert size(result) == size(layout)
    if not layout.has_coordinates or result.has_coordinates:
        assert offsets(result) == offsets(layout)


def means_same_values(result, layout):
    assert set(values(result)) == set(values(layout))


def means_composition(result, a, tiler):
    if tiler is None:
        assert result == a
    elif isinstance(tiler, tuple):
        modes = list(a)
        for part, mode, t in zip(result, modes, (*tiler, *[None] * (len(modes) - len(tiler))), strict=True):
            means_composition(part, mode, t)
    else:
        b = as_layout(tiler)
        assert compatible(b, result)
        for crd, inner in zip(natural_coordinates(b.shape), values(b), strict=True):
            assert result(crd) == (a(inner) if a.has_coordinates else extended_value(a, inner))


def means_complement(result, layout, n):
    layout = as_layout(layout)
    found, together = values(result), values(make_layout(filter_zeros(layout), result))
    assert found == sorted(set(found))
    assert len(together) == len(set(together))
    if strides_chain(layout):
        assert sorted(together) == list(range(len(together)))
        assert len(together) >= count(n)


def means_right_inverse(result, layout):
    found = values(as_layout(layout))
    assert [found[index] for index in values(result)] == list(range(size(result)))
    if min(found) == 0:
        assert size(result) not in found


def means_left_inverse(result, layout):
    layout = as_layout(layout)
    found = values(layout)
    indices = [result(v) for v in found]
    assert [found[index] for index in indices] == found
    if is_injective(layout):
        assert indices == list(range(size(layout)))


def means_logical_divide(result, layout, tiler):
    if tiler is None:
        assert result == layout
    elif isinstance(tiler, tuple):
        modes = list(layout)
        for part, mode, t in zip(result, modes, (*tiler, *[None] * (len(modes) - len(tiler))), strict=True):
            means_logical_divide(part, mode, t)
    else:
        means_composition(result[0], layout, tiler)
        assert set(offsets(layout)) <= set(offsets(result))
        assert size(result) - size(layout) < size(as_layout(tiler))


def means_zipped_divide(result, layout, tiler):
    assert set(offsets(layout)) <= set(offsets(result))
    if isinstance(tiler, tuple) and None not in tiler:
        for tile, mode, t in zip(result[0], layout, tiler, strict=False):
            means_composition(tile, mode, t)


def means_any_divide(result, layout, tiler):
    assert set(offsets(layout)) == set(offsets(result))


def means_logical_product(result, block, tiler):
    if tiler is None:
        assert result == block
    elif isinstance(tiler, tuple):
        for part, mode, t in zip(result, block, tiler, strict=True):
            means_logical_product(part, mode, t)
    else:
        assert result[0] == block
        assert compatible(as_layout(tiler), result[1])
        copies = [{place + v for v in values(block)} for place in values(result[1])]
        assert sum(map(len, copies)) == len(set().union(*copies))


def means_blocked_product(result, block, tiler):
    assert sorted(values(result)) == list(range(size(block) * size(as_layout(tiler))))
    assert [mode[0] for mode in result][: rank(block)] == list(block)


def means_raked_product(result, block, tiler):
    assert sorted(values(result)) == list(range(size(block) * size(as_layout(tiler))))
    assert [mode[1] for mode in result][: rank(block)] == list(block)


def means_tile_to_shape(result, block, extents, order=None):
    assert [size(mode) for mode in result] == [count(extent) for extent in extents]
    assert sorted(values(result)) == list(range(count(extents)))


def means_upcast(result, layout, n):
    assert set(values(result)) == {v // n for v in values(layout)}


def means_downcast(result, layout, n):
    if 1 in flat_leaves(layout.stride):
        assert set(values(result)) == {n * v + j for v in values(layout) for j in range(n)}


def means_recast(result, layout, old, new):
    assert size(result) * new == size(layout) * old
    bits = {old * v + j for v in values(layout) for j in range(old)}
    assert bits == {new * v + j for v in values(result) for j in range(new)}


def means_nullspace(result, layout):
    found, still = values(result), offsets(layout)
    assert len(set(found)) == len(found)
    assert {still[index] for index in found} == {still[0]}
    assert len(found) * size(filter_zeros(layout)) == size(layout)


def means_make_layout_like(result, layout):
    assert result.shape == layout.shape
    moving = values(filter_zeros(result))
    assert sorted(moving) == list(range(len(moving)))


def means_max_common_layout(result, a, b):
    in_a, in_b = values(a), values(b)
    for k, index in enumerate(values(result)):
        assert in_a[index] == in_b[index] == k


def means_slice(result, layout, crd):
    kept, start = result.layout, result.offset

    def keeps(c, natural, extents):
        if c is None:
            return True
        if isinstance(c, tuple):
            return all(map(keeps, c, natural, extents))
        return c == index_of(natural, extents)

    everywhere = natural_coordinates(layout.shape)
    found = [dot(natural, layout.stride) for natural in everywhere if keeps(crd, natural, layout.shape)]
    assert [start + v for v in values(kept)] == found


MEANINGS = {
    "blocked_product": means_blocked_product,
    "coalesce": means_same_function,
    "complement": means_complement,
    "composition": means_composition,
    "downcast": means_downcast,
    "filter": means_same_values,
    "filter_zeros": means_same_values,
    "flat_divide": means_any_divide,
    "flatten": means_same_function,
    "left_inverse": means_left_inverse,
    "logical_divide": means_logical_divide,
    "logical_product": means_logical_product,
    "make_layout_like": means_make_layout_like,
    "max_common_layout": means_max_common_layout,
    "nullspace": means_nullspace,
    "raked_product": means_raked_product,
    "recast": means_recast,
    "right_inverse": means_right_inverse,
    "slice": means_slice,
    "tile_to_shape": means_tile_to_shape,
    "tiled_divide": means_any_divide,
    "upcast": means_upcast,
    "zipped_divide": means_zipped_divide,
}


@pytest.mark.parametrize(
    "row", [row for row in rows(FACTS) if row[0] in MEANINGS], ids=lambda row: " | ".join(row[:-1])
)
def test_each_known_answer_follows_from_the_definition(row):
    operation, *args, expected = row
    MEANINGS[operation](parse_layout(expected), *map(read, args))


@pytest.mark.parametrize(("a", "b"), rows(REFUSED_COMPOSITIONS), ids=lambda text: text)
def test_a_composition_that_does_not_divide_is_refused_and_names_both_layouts(a, b):
    with pytest.raises(LayoutError) as caught:
        composition(parse_layout(a), parse_layout(b))
    assert f"A = {a}" in str(caught.value)
    assert f"B = {b}" in str(caught.value)


# -- tables of offsets --------------------------------------------------------------------------------------


def tables(text):
    """The indented rows of numbers under each layout."""
    found = []
    for line in text.strip().splitlines():
        if line.startswith(" "):
            found[-1][1].append([int(n) for n in line.split()])
        else:
            found.append((line, []))
    return found


@pytest.mark.parametrize(("text", "table"), tables(OFFSET_TABLES), ids=lambda x: x if isinstance(x, str) else "")
def test_a_matrix_layout_has_the_known_table_of_offsets(text, table):
    layout = parse_layout(text)
    assert table == [[layout(i, j) for j in range(size(layout, 1))] for i in range(size(layout, 0))]


def test_nested_rows_can_be_visited_in_either_order():
    layout = parse_layout("((2,2),(2,4)):((1,4),(2,8))")
    rows_in_order = [[layout((d, h), w) for w in range(8)] for d in range(2) for h in range(2)]
    flat = [[layout(i, w) for w in range(8)] for i in range(4)]
    assert rows_in_order == [flat[0], flat[2], flat[1], flat[3]]


def test_a_nested_layout_has_the_known_list_of_offsets():
    layout = parse_layout("(((2,2),2),4):(((1,4),2),8)")
    first = [0, 1, 4, 5, 2, 3, 6, 7]
    assert [layout(i) for i in range(32)] == [8 * j + v for j in range(4) for v in first]


def test_two_rows_of_a_tensor_hold_every_fourth_element():
    # a tensor filled in the order of its own index, rows 1 and 2 taken from it
    layout = parse_layout("(4,(2,4)):(2,(1,8))")
    memory = {layout(i): i for i in range(32)}
    taken = [[memory[layout(i, j)] for j in range(8)] for i in (1, 2)]
    assert taken == [[1, 5, 9, 13, 17, 21, 25, 29], [2, 6, 10, 14, 18, 22, 26, 30]]


def test_a_slice_of_a_nested_mode_has_no_nesting_left():
    kept, offset = slice_and_offset(((1, None), None), parse_layout("((2,2),2):((1,2),4)"))
    assert str(kept) == "(2,2):(2,4)"
    assert depth(kept) == 1
    assert [offset + v for v in values(kept)] == [1, 3, 5, 7]


# -- im2col without padding is one layout -------------------------------------------------------------------


def im2col(groups, batch, channels, image, kernel, steps, dilations):
    """The layouts of the gathered matrix over the image and over itself, and the extents (width, height, depth)."""
    (wi, hi, di), (x, y, z), (sw, sh, sd), (dw, dh, dd) = image, kernel, steps, dilations
    wo, ho, do = ((i - d * (k - 1) - 1) // s + 1 for i, k, s, d in zip(image, kernel, steps, dilations, strict=True))
    gc, taps = groups * channels, z * y * x * channels
    extents = ((groups, (wo, ho, do, batch)), (channels, x, y, z))
    over_image = Layout(
        extents,
        (
            (channels, (sw * gc, sh * wi * gc, sd * hi * wi * gc, di * hi * wi * gc)),
            (1, dw * gc, dh * wi * gc, dd * hi * wi * gc),
        ),
    )
    over_matrix = Layout(
        extents,
        (
            (taps, (groups * taps, wo * groups * taps, ho * wo * groups * taps, do * ho * wo * groups * taps)),
            (1, channels, x * channels, y * x * channels),
        ),
    )
    return over_image, over_matrix, (wo, ho, do)


@pytest.mark.parametrize(
    ("image", "kernel", "steps", "dilations"),
    [
        ((5, 4, 3), (3, 2, 2), (1, 1, 1), (1, 1, 1)),
        ((7, 5, 3), (3, 3, 1), (2, 1, 1), (1, 2, 1)),
        ((6, 6, 1), (3, 3, 1), (1, 1, 1), (2, 1, 1)),
    ],
)
def test_im2col_without_padding_is_one_strided_layout(image, kernel, steps, dilations):
    groups, batch, channels = 2, 2, 3
    source, target, (wo, ho, do) = im2col(groups, batch, channels, image, kernel, steps, dilations)
    (wi, hi, di), (x, y, z) = image, kernel
    assert size(source, 0) == groups * wo * ho * do * batch
    assert size(source, 1) == channels * x * y * z
    for n, d, h, w, g in natural_coordinates((batch, do, ho, wo, groups)):
        row = g + groups * (w + wo * (h + ho * (d + do * n)))
        for c, i, j, k in natural_coordinates((channels, x, y, z)):
            column = c + channels * (i + x * (j + y * k))
            at = [o * s + t * e for o, s, t, e in zip((w, h, d), steps, (i, j, k), dilations, strict=True)]
            element = c + channels * (g + groups * (at[0] + wi * (at[1] + hi * (at[2] + di * n))))
            assert source(row, column) == element
            assert target(row, column) == row * channels * x * y * z + column
    assert max(values(source)) < groups * channels * wi * hi * di * batch
    assert not is_injective(source)
    assert cosize(target) == size(target)


def test_the_full_size_im2col_has_the_known_extents():
    source, target, out = im2col(4, 32, 64, (7, 9, 9), (3, 3, 3), (1, 1, 1), (1, 1, 1))
    assert out == (5, 7, 7)
    assert (size(source, 0), size(source, 1)) == (31360, 1728)
    assert cosize(source) == 4 * 32 * 64 * 9 * 9 * 7
    assert size(target) == cosize(target) == 31360 * 1728
    assert (31360 // 32, 1728 // 64) == (980, 27)
    assert str(composition(source, (20, 64))) == "(20,64):(64,1)"
    with pytest.raises(LayoutError, match="takes 32 in rounds of 20"):  # 32 rows are no strided tile of the image
        zipped_divide(source, (32, 64))


# -- threads and values -------------------------------------------------------------------------------------


def test_threads_and_values_from_a_raked_product():
    threads, held = parse_layout("(2,3):(3,1)"), parse_layout("(2,2):(2,1)")
    tile = raked_product(threads, held)
    assert [size(mode) for mode in tile] == [4, 6]
    both = composition(right_inverse(tile), Layout((size(threads), size(held))))
    assert str(both) == "((3,2),(2,2)):((8,2),(4,1))"
    owned = [both(thread, value) for thread in range(6) for value in range(4)]
    assert sorted(owned) == list(range(24))


def test_a_swizzled_matrix_has_the_known_rows():
    layout = ComposedLayout(Swizzle(2, 0, 3), 0, parse_layout("(4,8):(8,1)"))
    assert [layout(0, j) for j in range(8)] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [layout(1, j) for j in range(8)] == [9, 8, 11, 10, 13, 12, 15, 14]
    assert [layout(2, j) for j in range(8)] == [18, 19, 16, 17, 22, 23, 20, 21]
    assert [layout(3, j) for j in range(8)] == [27, 26, 25, 24, 31, 30, 29, 28]


@pytest.mark.parametrize(
    ("numbers", "offset", "wanted"),
    [
        ((3, 3, 3), 0xDEADBEEF, 0xDEADBEF7),
        ((3, 3, 4), 0x12345678, 0x12345658),
        ((2, 0, -3), 0x2468134F, 0x24681357),
        ((4, 4, -11), 0x24681357, 0x246A9357),
    ],
)
def test_a_swizzle_has_the_known_values_on_large_offsets(numbers, offset, wanted):
    assert hex(Swizzle(*numbers)(offset)) == hex(wanted)


def test_columns_of_a_swizzled_tile_lie_in_different_banks():
    plain = parse_layout("(8,8):(8,1)")
    swizzled = ComposedLayout(Swizzle(3, 0, 3), 0, plain)
    assert {plain(i, 5) % 8 for i in range(8)} == {5}
    for column in range(8):
        assert {swizzled(i, column) % 8 for i in range(8)} == set(range(8))


def test_the_first_tile_of_a_zipped_divide_is_the_composition():
    layout, tiler = parse_layout("(9,(4,8)):(59,(13,1))"), (Layout(3, 3), parse_layout("(2,4):(1,8)"))
    divided = zipped_divide(layout, tiler)
    assert divided[0] == composition(layout, tiler)
    assert (divided(0, 3), divided(0, 7), divided(0, (1, 2))) == (26, 60, 60)


# -- faults of others that are not to come back ---------------------------------------------------------------


def test_left_inverse_of_padded_strides_keeps_the_slow_mode():
    assert str(left_inverse(parse_layout("(4,2):(1,5)"))) == "(5,2):(1,4)"


def test_right_inverse_does_not_stop_at_a_mode_that_stands_still():
    assert str(right_inverse(parse_layout("(32,128):(0,1)"))) == "128:32"


def test_logical_product_with_an_int_multiplies_and_does_not_divide():
    assert str(logical_product(Layout(4), 6)) == "(4,6):(1,4)"
    assert size(logical_product(Layout(12), 3)) == 36


def test_a_composition_that_does_not_divide_never_shrinks():
    with pytest.raises(LayoutError, match=r"composition of A = \(4,3\):\(3,1\) with B = 6:1 is not a layout"):
        composition(parse_layout("(4,3):(3,1)"), Layout(6))


def test_layouts_can_be_kept_in_sets():
    assert len({Layout((4, 8)), Layout((4, 8), (1, 4)), Layout((4, 8), (8, 1))}) == 2


def test_slicing_leaves_the_parent_where_it_was():
    parent = ComposedLayout(None, 10, Layout((16, 4)))
    tile = local_tile(parent, (4, 2), (1, 1))
    assert parent(0, 0) == 10
    assert tile(0, 0) == parent(4, 2)


def test_a_partition_of_a_nested_tensor_uses_the_strides_of_whole_modes():
    # 16 by 4 rows as one mode: the second mode moves by 64, not by 16
    share = local_partition(parse_layout("((16,4),4):((1,16),64)"), Layout((8, 2)), 8, mode="block")
    assert share(0, 0) == 128
    assert share(0, 1) == 192


def test_offsets_past_an_edge_are_plain_strides():
    # right padding rounds the divide up: the first element past a row is the next row's first
    divided = zipped_divide(parse_layout("(129,67):(67,1)"), (128, 16))
    assert [size(divided, 0), size(divided, 1)] == [128 * 16, 2 * 5]
    assert divided((0, 3), (0, 4)) == 67
