"""Interfaces of other systems: `compat.wave` has Wave's compile call and utility names."""

from tilewright.compat import wave

__all__ = ["wave"]
