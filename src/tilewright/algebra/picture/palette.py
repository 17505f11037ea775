"""Colours for cells: everybody can distinguish them, and each has a text colour that can be read on it.

Offsets get a ramp whose lightness rises evenly from blue over green to yellow. Threads and banks get eight
hues (near those of Okabe and Ito, which colour-blind people can distinguish), in several shades each.
"""

from __future__ import annotations

from functools import lru_cache

_RAMP = ("#677ac8", "#5191d4", "#36a8d6", "#24bcd0", "#3ecec4", "#6cddb3", "#9de7a2", "#ceee95", "#fcf391")

_HUES = (  # each from its plain colour to its last shade
    ("#56b4e9", "#8fcdf1"),
    ("#e69f00", "#f0b93f"),
    ("#009e73", "#2fae8a"),
    ("#f0e442", "#f6ed85"),
    ("#0072b2", "#005a8f"),
    ("#d55e00", "#de7026"),
    ("#cc79a7", "#dca0c2"),
    ("#2a2a2a", "#505050"),
)
_THREAD_SHADES = 4


@lru_cache(maxsize=4096)  # a picture has many cells of few colours
def ramp(position: float) -> str:
    """Return the colour, as #rrggbb, at a position from 0 (blue) to 1 (light yellow) on the colour ramp for offsets.

    Positions below 0 count as 0, positions above 1 as 1.

    >>> ramp(0), ramp(1)
    ('#677ac8', '#fcf391')
    """
    scaled = min(max(position, 0.0), 1.0) * (len(_RAMP) - 1)
    left = min(int(scaled), len(_RAMP) - 2)
    return _mix(_RAMP[left], _RAMP[left + 1], scaled - left)


def thread_colour(thread: int) -> str:
    """Return the colour, as #rrggbb, of thread number `thread`; neighbours differ in hue, and 32 threads of a warp all
    differ.

    >>> thread_colour(0), thread_colour(1), len({thread_colour(t) for t in range(32)})
    ('#56b4e9', '#e69f00', 32)
    """
    shade = thread // len(_HUES) % _THREAD_SHADES
    return _mix(*_HUES[thread % len(_HUES)], shade / (_THREAD_SHADES - 1))


def bank_colour(bank: int, banks: int) -> str:
    """Return the colour, as #rrggbb, of memory bank number `bank` of `banks`. There are eight hues: each run of
    ceil(banks / 8) neighbours shares one, in different shades.

    >>> len({bank_colour(b, 32) for b in range(32)}), bank_colour(31, 32)
    (32, '#505050')
    """
    sharing = -(-banks // len(_HUES))
    shade = bank % sharing / (sharing - 1) if sharing > 1 else 0.0
    return _mix(*_HUES[bank // sharing], shade)


@lru_cache(maxsize=4096)
def text_colour(fill: str) -> str:
    """Return black or white, as #rrggbb, whichever is easier to read on the colour `fill`; the contrast is at least
    4.5.

    >>> text_colour("#2a2a2a"), text_colour("#fcf391")
    ('#ffffff', '#000000')
    """
    return max("#ffffff", "#000000", key=lambda text: contrast(text, fill))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours (#rrggbb) as WCAG 2 defines it, from 1 to 21.

    >>> contrast("#ffffff", "#000000")
    21.0
    """
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour (#rrggbb) as WCAG 2 defines it, from 0 to 1."""
    red, green, blue = (_linear_light(part / 255) for part in _rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear_light(value: float) -> float:
    """Return the linear-light value of an sRGB colour component `value`; both are from 0 to 1."""
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def _rgb(colour: str) -> tuple[int, int, int]:
    """Return (red, green, blue), from 0 to 255, of a colour written #rrggbb."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _mix(one: str, other: str, share: float) -> str:
    """Return a mixture of the colours `one` and `other` as #rrggbb; `share`, from 0 to 1, is the weight of `other`."""
    mixed = (round(a + (b - a) * share) for a, b in zip(_rgb(one), _rgb(other), strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
