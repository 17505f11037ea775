"""What a copy should do, element by element in plain Python; and layouts with two entries exchanged."""

from __future__ import annotations

import itertools

import numpy as np

from tilewright.algebra import Access
from tilewright.machine import CopyRefusal

MARK = 77


def where(place, extents, coordinates):
    """The offset of an element in memory, or None outside of it."""
    at = [c + s for c, s in zip(coordinates, place.start or (0,) * len(coordinates), strict=True)]
    if any(not 0 <= c < e for c, e in zip(at, extents, strict=True)):
        return None
    if isinstance(place.layout, Access):
        names = [axis.name for axis in place.layout.axes]
        offset, domain, bounds = place.layout.at(dict(zip(names, at, strict=True)))
        return int(offset) if domain and bounds else None
    return int(place.layout(*at))


def naive(request, source, target):
    """The copy, one element after another."""
    reversed_box = [range(e) for e in reversed(request.box)]
    source_extents, target_extents = request.source.extents(), request.target.extents()
    held = {}
    for place in (request.source, request.target):
        if place.in_registers:
            for lane_and_value, number in np.ndenumerate(place.numbers()):
                held.setdefault(int(number), []).append(lane_and_value)
    for number, back in enumerate(itertools.product(*reversed_box)):
        coordinates = tuple(reversed(back))
        if request.source.in_registers:
            value = source[held[number][0]]
        else:
            found = where(request.source, source_extents, coordinates)
            value = 0 if found is None else source[found]
        if request.target.in_registers:
            for lane_and_value in held.get(number, ()):
                target[lane_and_value] = value
        else:
            found = where(request.target, target_extents, coordinates)
            if found is not None:
                target[found] = value


def array_for(request, place, seed):
    """Memory just as large as the copy needs, or registers, with values that differ."""
    rng = np.random.default_rng(seed)
    if place.in_registers:
        shape = place.numbers().shape
    else:
        offsets, inside = place.offsets(request.box)
        shape = (int(offsets[inside].max(initial=0)) + 1,)
    low, high = {1: (-100, 100), 2: (-2000, 2000)}.get(request.size, (-100000, 100000))
    if request.dtype.name == "u8":
        low, high = 0, 100
    if request.dtype.name == "bf16":
        low, high = -256, 256
    if request.dtype.kind == "bool":
        low, high = 0, 2
    drawn = rng.integers(low, high, shape).astype(request.dtype.numpy)
    if not place.in_registers or place is not request.source:
        return drawn
    # registers that hold one element agree
    flat = rng.integers(low, high, int(np.prod(request.box))).astype(request.dtype.numpy)
    return flat[place.numbers()]


def done(request, instructions, seed=0):
    """(what the instructions leave in the target, what the copy should leave there)."""
    source = array_for(request, request.source, seed)
    before = array_for(request, request.target, seed + 1)
    before[...] = np.asarray(MARK % 2 if request.dtype.kind == "bool" else MARK).astype(before.dtype)
    found, wanted, direct = before.copy(), before.copy(), before.copy()
    for instruction in instructions:
        instruction.run(source, found)
    naive(request, source, wanted)
    request.run(source, direct)
    assert (direct == wanted).all(), request
    return found, wanted


def check(atom, request, seed=0):
    """Whether the atom answered; if so, its instructions must do the copy exactly."""
    answer = atom.answer(request)
    if isinstance(answer, CopyRefusal):
        assert answer.reason
        assert "\n" not in answer.reason
        return False
    found, wanted = done(request, answer, seed)
    assert (found == wanted).all(), (atom.name, request, found, wanted)
    return True


class Exchanged:
    """A layout as an explicit table, with the values at two places exchanged (or one replaced, if all are equal)."""

    def __init__(self, layout, first, second):
        sizes = tuple(_size(mode) for mode in layout.shape)
        self.shape = sizes
        self.table = np.array(layout(*np.indices(sizes)))
        a, b = self.table[first].copy(), self.table[second].copy()
        self.table[first], self.table[second] = b, a
        if a == b:
            self.table[first] = a + 1

    def __call__(self, *index):
        return self.table[tuple(index)]

    def __getitem__(self, mode):
        return _Mode(self.shape[mode])

    def cosize(self):
        return int(self.table.max()) + 1


class _Mode:
    def __init__(self, extent):
        self.extent = extent

    def size(self):
        return self.extent


def _size(mode):
    return int(np.prod([_size(m) for m in mode])) if isinstance(mode, tuple) else mode
