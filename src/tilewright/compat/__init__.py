"""Other systems' ways of calling: `compat.wave` offers Wave's compile call and utility names."""

from tilewright.compat import wave

__all__ = ["wave"]
