"""x"""
from tilewright.torch import attention, convolutions, products, rows, functional
from tilewright.torch.operators import operator
