"""Functions and layers for most users: convolution over one, two or three axes and matrix product, on arrays.

Arrays are numpy's, torch's, or anything with DLPack, on the host or on a GPU. A call runs where its arrays lie, or on
the `target` that it names. The result is a torch tensor where the first array (the image, the left factor) is one, on
the same device, and a numpy array otherwise.

>>> import numpy as np, tilewright
>>> x, w = np.ones((1, 4, 5, 3), np.float32), np.ones((2, 3, 3, 3), np.float32)
>>> tilewright.conv2d(x, w, padding=1)[0, :, :, 0]
array([[12., 18., 18., 18., 12.],
       [18., 27., 27., 27., 18.],
       [18., 27., 27., 27., 18.],
       [12., 18., 18., 18., 12.]], dtype=float32)

| file         | subject                                                               |
|--------------|-----------------------------------------------------------------------|
| arrays       | arguments and results: what they are, and where they lie              |
| sources      | the arrays that a layer was made of, and whether torch wrote to them  |
| layers       | weights that are moved once to a layer's device, and packed there     |
| convolutions | convolution over one, two and three axes                              |
| products     | matrix product                                                        |
"""

from tilewright.ops.convolutions import Conv, Conv1d, Conv2d, Conv3d, conv1d, conv2d, conv3d
from tilewright.ops.products import Linear, matmul

__all__ = ["Conv", "Conv1d", "Conv2d", "Conv3d", "Linear", "conv1d", "conv2d", "conv3d", "matmul"]
