"""Kernels made to measure: a function for a family of problems gives a kernel and the symbols it needs."""

from tilewright.wave.templates.conv import get_igemm_conv2d

__all__ = ["get_igemm_conv2d"]
