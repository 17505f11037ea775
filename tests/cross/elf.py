"""A small linker: one object file and memory contents become a static program that an emulator runs.

The program calls a function for each worker in turn, writes the memory it is asked for to its standard output, and
ends. Nothing of a system is needed besides two system calls.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

PAGE = 0x10000
CODE, DATA = 0x400000, 0x40000000
X86, AARCH64 = 62, 183

# entry: call start, which does not return; then syscall(number, a, b, c)
_STUBS = {
    X86: (bytes.fromhex("E8000000000F0B"), bytes.fromhex("4889F84889F74889D64889CA0F05C3")),
    AARCH64: (
        struct.pack("<2I", 0x94000000, 0xD4200000),
        struct.pack("<6I", 0xAA0003E8, 0xAA0103E0, 0xAA0203E1, 0xAA0303E2, 0xD4000001, 0xD65F03C0),
    ),
}


@dataclass
class Image:
    """Memory as it is when the program starts: (address, bytes) in pieces."""

    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    top: int = DATA

    def place(self, data: bytes, at_end: bool = True) -> int:
        """Puts bytes between pages that do not exist: against the one behind them, or the one before."""
        room = max(PAGE, -(-len(data) // PAGE) * PAGE)
        start = self.top + PAGE
        address = start + room - len(data) if at_end else start
        padded = bytes(address - start) + data
        self.pieces.append((start, padded + bytes(room - len(padded))))
        self.top = start + room
        return address


class Object:
    """An object file: its sections at their addresses, and its symbols."""

    def __init__(self, code: bytes, at: int):
        self.code = code
        self.machine = struct.unpack_from("<H", code, 18)[0]
        offset, (_, count) = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<2H", code, 58)
        self.heads = [struct.unpack_from("<IIQQQQIIQQ", code, offset + 64 * i) for i in range(count)]
        self.sections: dict[int, tuple[int, bytearray]] = {}
        for number, (_, kind, flags, _, where, size, _, _, align, _) in enumerate(self.heads):
            if flags & 2 and size:  # loaded
                at = -(-at // max(1, align)) * max(1, align)
                self.sections[number] = (at, bytearray(size) if kind == 8 else bytearray(code[where : where + size]))
                at += size
        self.end = at
        self.entries = self._entries()

    def _entries(self) -> list[tuple[str, int, int]]:
        """(name, place in its section, section) of every symbol."""
        table = next(h for h in self.heads if h[1] == 2)
        strings, found = self.heads[table[6]][4], []
        for place in range(table[4], table[4] + table[5], 24):
            name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", self.code, place)
            end = self.code.index(b"\0", strings + name)
            found.append((self.code[strings + name : end].decode(), value, section))
        return found

    def symbols(self) -> dict[str, int]:
        """The addresses of what it defines."""
        return {n: self.sections[s][0] + place for n, place, s in self.entries if n and s in self.sections}

    def settle(self, symbols: dict[str, int]) -> None:
        """Puts addresses where they are missing."""
        for _, kind, _, _, where, size, _, target, _, _ in self.heads:
            if kind == 4 and target in self.sections:  # relocations with addends
                for place in range(where, where + size, 24):
                    at, info, addend = struct.unpack_from("<QQq", self.code, place)
                    value = self._value(info >> 32, symbols) + addend
                    _relocate(self.machine, self.sections[target], at, info & 0xFFFFFFFF, value)

    def _value(self, number: int, symbols: dict[str, int]) -> int:
        name, place, section = self.entries[number]
        if section in self.sections:
            return self.sections[section][0] + place
        if name not in symbols:
            raise LookupError(f"the object calls {name}, which none has")
        return symbols[name]


def linked(codes: list[bytes], image: Image, start: str = "start") -> bytes:
    """The program: the objects' sections, the memory, and the entry that calls `start`."""
    objects: list[Object] = []
    at = CODE + 0x100
    for code in codes:
        objects.append(Object(code, at))
        at = objects[-1].end
    machine = objects[0].machine
    entry, syscall = _STUBS[machine]
    symbols = {"syscall": CODE + 0x40}
    for each in objects:
        symbols |= each.symbols()
    text = bytearray(at - CODE)
    for each in objects:
        each.settle(symbols)
        for address, data in each.sections.values():
            text[address - CODE : address - CODE + len(data)] = data
    text[: len(entry)] = entry
    if machine == X86:
        struct.pack_into("<i", text, 1, symbols[start] - (CODE + 5))
    else:
        struct.pack_into("<I", text, 0, 0x94000000 | ((symbols[start] - CODE) >> 2) & 0x3FFFFFF)
    text[0x40 : 0x40 + len(syscall)] = syscall
    return _executable(machine, CODE, [(CODE, bytes(text), 7), *((a, d, 6) for a, d in image.pieces)])


def _relocate(machine: int, section: tuple[int, bytearray], at: int, kind: int, value: int) -> None:
    place, data = section[0] + at, section[1]
    if kind in {X86: (2, 4), AARCH64: (261,)}[machine]:  # 32 bits, from here
        struct.pack_into("<i", data, at, value - place)
        return
    if machine == X86:
        raise LookupError(f"relocation {kind} of x86 is not known here")
    word = struct.unpack_from("<I", data, at)[0]
    if kind in (282, 283):  # a branch
        word |= ((value - place) >> 2) & 0x3FFFFFF
    elif kind == 275:  # the page
        pages = (value >> 12) - (place >> 12)
        word |= (pages & 3) << 29 | ((pages >> 2) & 0x7FFFF) << 5
    elif kind in _WITHIN_PAGE:
        word |= ((value & 0xFFF) >> _WITHIN_PAGE[kind]) << 10
    else:
        raise LookupError(f"relocation {kind} of AArch64 is not known here")
    struct.pack_into("<I", data, at, word)


_WITHIN_PAGE = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}


def _executable(machine: int, entry: int, segments: list[tuple[int, bytes, int]]) -> bytes:
    """The file: segments at their addresses, each with its permissions."""
    body, rows = bytearray(), []
    start = -(-(64 + 56 * len(segments)) // PAGE) * PAGE
    for address, data, flags in segments:
        offset = start + len(body)
        rows.append(struct.pack("<IIQQQQQQ", 1, flags, offset, address, address, len(data), len(data), PAGE))
        body += data + bytes(-len(data) % PAGE)
    head = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    head += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, entry, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    return bytes(head + b"".join(rows)).ljust(start, b"\0") + bytes(body)
