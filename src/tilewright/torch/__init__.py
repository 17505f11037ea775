"""x"""
from tilewright.torch import convolutions, products
