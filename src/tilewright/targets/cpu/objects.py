"""ELF object files: read, and linked to a shared library that needs no other.

Objects of exported kernels are position independent and need nothing outside themselves, so a link is: sections
laid out one after another, relative addresses written, the functions named in a symbol table. No linker is needed.
An object may use functions that a process has or has not (weak symbols): words of its data hold their addresses, which
the system's loader writes, 0 for those that are not there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.errors import CodeGenerationError
from tilewright.targets.cpu.families import family, family_names
from tilewright.targets.cpu.relocation import CodePlace, ObjectForm

_ALLOC, _WRITE = 2, 1
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_WEAK = 2
_PAGE = 1 << 16
"""The largest page of a system that loads the library; segments lie in pages of their own."""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SEGMENT = struct.Struct("<IIQQQQQQ")


@dataclass(frozen=True)
class Section:
    """A section of an object; `data` is empty for one that only takes room."""

    name: str
    kind: int
    flags: int
    size: int
    alignment: int
    link: int
    info: int
    data: bytes

    @property
    def loaded(self) -> bool:
        """Whether it is part of the program; tables for unwinding and notes are not needed."""
        return bool(self.flags & _ALLOC) and self.size > 0 and not self.name.startswith((".eh_frame", ".note"))


@dataclass(frozen=True)
class ObjectSymbol:
    """A name of an object: the section it lies in (0: it is defined elsewhere), its offset there and its size.

    One that is weak and defined elsewhere need not be there at all.
    """

    name: str
    section: int
    offset: int
    size: int
    is_global: bool
    is_weak: bool


@dataclass(frozen=True)
class ObjectFile:
    """An object file: its machine, sections, symbols, and (section, offset, kind, symbol, addend) of relocations."""

    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[ObjectSymbol, ...]
    relocations: tuple[tuple[int, int, int, int, int], ...]

    @property
    def undefined(self) -> tuple[str, ...]:
        """The names that it needs of others."""
        return tuple(s.name for s in self.symbols if s.section == 0 and s.name and not s.is_weak)


def read_object(data: bytes) -> ObjectFile:
    """An object file, read; raises where it is none, or cut off."""
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError) as fault:
        raise CodeGenerationError(f"the object file is damaged: {fault}") from None


def _read(data: bytes) -> ObjectFile:
    if data[:6] != b"\x7fELF\x02\x01":
        raise CodeGenerationError("the object file is no ELF file of 64 bits, little-endian")
    header = _HEADER.unpack_from(data)
    machine, start, count, names_at = header[2], header[6], header[12], header[13]
    rows = [_SECTION.unpack_from(data, start + _SECTION.size * n) for n in range(count)]
    names = _content(data, rows[names_at])
    sections = tuple(
        Section(_text(names, r[0]), r[1], r[2], r[5], max(r[8], 1), r[6], r[7], _content(data, r)) for r in rows
    )
    symbols: list[ObjectSymbol] = []
    relocations: list[tuple[int, int, int, int, int]] = []
    for section in sections:
        if section.kind == _SYMTAB:
            texts = sections[section.link].data
            for name, info, _, where, value, size in _SYMBOL.iter_unpack(section.data):
                binding = info >> 4
                symbols.append(ObjectSymbol(_text(texts, name), where, value, size, binding != 0, binding == _WEAK))
        elif section.kind == _RELA:
            for offset, info, addend in _RELOCATION.iter_unpack(section.data):
                relocations.append((section.info, offset, info & 0xFFFFFFFF, info >> 32, addend))
    return ObjectFile(machine, sections, tuple(symbols), tuple(relocations))


def _content(data: bytes, row: tuple[int, ...]) -> bytes:
    if row[1] == _NOBITS:
        return b""
    found = data[row[4] : row[4] + row[5]]
    if len(found) != row[5]:
        raise CodeGenerationError("the object file is cut off")
    return found


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def object_form(machine: int) -> ObjectForm:
    """How objects of a machine, by the number in their header, are linked."""
    for name in family_names():
        form = family(name).objects
        if form is not None and form.machine == machine:
            return form
    raise CodeGenerationError(f"objects of the machine {machine} are not linked here")


# -- the shared library -----------------------------------------------------------------------------------


def shared_library(data: bytes, soname: str) -> bytes:
    """The shared library of an object: its global functions can be found by their names."""
    return _Library(read_object(data), soname).data()


class _Library:
    """A link: what lies where."""

    def __init__(self, given: ObjectFile, soname: str):
        if given.undefined:
            raise CodeGenerationError(f"the object needs {', '.join(given.undefined)}, which it does not hold")
        self.given, self.form = given, object_form(given.machine)
        self.offered = [s for s in given.symbols if s.is_global and s.section]
        self.optional = [s for s in given.symbols if s.is_weak and not s.section]
        self.strings = bytearray(b"\0")
        self.names = [self._string(s.name) for s in (*self.offered, *self.optional)]
        self.soname = self._string(soname)

    def _string(self, text: str) -> int:
        place = len(self.strings)
        self.strings += text.encode() + b"\0"
        return place

    def data(self) -> bytes:
        """The file: headers, tables, code and constants; then what is written, a page further on; then sections."""
        sections = self.given.sections
        fixed = [n for n, s in enumerate(sections) if s.loaded and not s.flags & _WRITE]
        written = [n for n, s in enumerate(sections) if s.loaded and s.flags & _WRITE]
        hash_at = _aligned(_HEADER.size + 4 * _SEGMENT.size, 8)
        table = self._hash()
        symbols_at = _aligned(hash_at + len(table), 8)
        strings_at = symbols_at + _SYMBOL.size * (len(self.names) + 1)
        left = [r for r in self.given.relocations if self._is_left(r)]
        left_at = _aligned(strings_at + len(self.strings), 8)
        left_bytes = _RELOCATION.size * len(left)
        code_at = end = _aligned(left_at + left_bytes, 64)
        where: dict[int, int] = {}
        for n in fixed:
            where[n] = end = _aligned(end, sections[n].alignment)
            end += sections[n].size
        fixed_end = end
        dynamic_at = _aligned(end, 64)
        dynamic = self._dynamic(hash_at, strings_at, symbols_at, (left_at, left_bytes))
        end = dynamic_at + len(dynamic)
        for n in sorted(written, key=lambda n: sections[n].kind == _NOBITS):
            where[n] = end = _aligned(end, sections[n].alignment)
            end += sections[n].size
        stored = [n for n in written if sections[n].kind != _NOBITS]
        file_end = max([dynamic_at + len(dynamic), *(where[n] + sections[n].size for n in stored)])
        offsets = dict(where)
        where |= {n: where[n] + _PAGE for n in written}
        image = bytearray(file_end)
        for n in [*fixed, *stored]:
            image[offsets[n] : offsets[n] + sections[n].size] = sections[n].data
        self._relocate(image, where, offsets)
        image[hash_at : hash_at + len(table)] = table
        image[symbols_at:strings_at] = self._symbols(where)
        image[strings_at : strings_at + len(self.strings)] = self.strings
        image[left_at : left_at + left_bytes] = self._left(left, where)
        image[dynamic_at : dynamic_at + len(dynamic)] = dynamic
        segments = [
            (1, 5, 0, 0, fixed_end, fixed_end, _PAGE),
            (1, 6, dynamic_at, dynamic_at + _PAGE, file_end - dynamic_at, end - dynamic_at, _PAGE),
            (2, 6, dynamic_at, dynamic_at + _PAGE, len(dynamic), len(dynamic), 8),
            (0x6474E551, 6, 0, 0, 0, 0, 16),  # the stack holds no code
        ]
        rows = b"".join(
            _SEGMENT.pack(kind, flags, at, va, va, size, room, al) for kind, flags, at, va, size, room, al in segments
        )
        image[_HEADER.size : _HEADER.size + len(rows)] = rows
        listed = [
            (".hash", 5, 2, hash_at, hash_at, len(table), 2, 0, 8, 4),
            (".dynsym", 11, 2, symbols_at, symbols_at, strings_at - symbols_at, 3, 1, 8, _SYMBOL.size),
            (".dynstr", 3, 2, strings_at, strings_at, len(self.strings), 0, 0, 1, 0),
            (".text", 1, 6, code_at, code_at, fixed_end - code_at, 0, 0, 64, 0),
            (".dynamic", 6, 3, dynamic_at + _PAGE, dynamic_at, len(dynamic), 3, 0, 8, 16),
            *([(".rela.dyn", 4, 2, left_at, left_at, left_bytes, 2, 0, 8, _RELOCATION.size)] if left else []),
        ]
        return self._with_sections(image, listed)

    def _with_sections(
        self, image: bytearray, listed: list[tuple[str, int, int, int, int, int, int, int, int, int]]
    ) -> bytes:
        """The file with its section headers, which linkers look at."""
        names = bytearray(b"\0")
        rows = [bytes(_SECTION.size)]
        for name, *values in (*listed, (".shstrtab", 3, 0, 0, len(image), 0, 0, 0, 1, 0)):
            kind, flags, address, offset, size, link, info, alignment, entry = values
            at = len(names)
            names += name.encode() + b"\0"
            rows.append(
                _SECTION.pack(at, kind, flags, address, offset, size or len(names), link, info, alignment, entry)
            )
        image += names
        image += bytes(-len(image) % 8)
        start = len(image)
        image += b"".join(rows)
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        image[: _HEADER.size] = _HEADER.pack(
            ident, 3, self.given.machine, 1, 0, _HEADER.size, start, 0, _HEADER.size, _SEGMENT.size, 4, _SECTION.size,
            len(rows), len(rows) - 1,
        )  # fmt: skip
        return bytes(image)

    def _relocate(self, image: bytearray, where: dict[int, int], offsets: dict[int, int]) -> None:
        for relocation in self.given.relocations:
            section, offset, kind, symbol, addend = relocation
            if section not in where or self._is_left(relocation):
                continue
            target = self.given.symbols[symbol]
            write = self.form.relocations.get(kind)
            if write is None or target.section not in where:
                raise CodeGenerationError(
                    f"the object refers to {target.name} by a relocation {kind} that is not linked"
                )
            place = CodePlace(image, offsets[section] + offset, where[section] + offset)
            if not write(place, where[target.section] + target.offset + addend):
                raise CodeGenerationError(f"the object is too large: {target.name} lies too far from where it is used")

    def _is_left(self, relocation: tuple[int, int, int, int, int]) -> bool:
        """True if the system's loader does a relocation: that of a word of data that holds an optional function."""
        section, _, kind, symbol, _ = relocation
        in_data = self.given.sections[section].loaded and self.given.sections[section].flags & _WRITE
        return bool(in_data) and kind == self.form.absolute and self.given.symbols[symbol] in self.optional

    def _left(self, relocations: list[tuple[int, int, int, int, int]], where: dict[int, int]) -> bytes:
        """Return the table of relocations that the system's loader does."""
        numbers = {s: number for number, s in enumerate(self.optional, len(self.offered) + 1)}
        rows = []
        for section, offset, kind, symbol, addend in relocations:
            number = numbers[self.given.symbols[symbol]]
            rows.append(_RELOCATION.pack(where[section] + offset, number << 32 | kind, addend))
        return b"".join(rows)

    def _symbols(self, where: dict[int, int]) -> bytes:
        rows = [bytes(_SYMBOL.size)]
        for name, s in zip(self.names, self.offered, strict=False):
            rows.append(_SYMBOL.pack(name, 0x12, 0, 4, where[s.section] + s.offset, s.size))
        rows += [_SYMBOL.pack(name, _WEAK << 4, 0, 0, 0, 0) for name in self.names[len(self.offered) :]]
        return b"".join(rows)

    def _hash(self) -> bytes:
        """The table by which a loader finds names: buckets of symbols whose hashes have one remainder, in chains."""
        count = len(self.names) + 1
        buckets, chains = [0] * count, [0] * count
        for number, s in enumerate(self.offered, 1):
            bucket = elf_hash(s.name) % count
            chains[number], buckets[bucket] = buckets[bucket], number
        return struct.pack(f"<{2 + 2 * count}I", count, count, *buckets, *chains)

    def _dynamic(self, hash_at: int, strings_at: int, symbols_at: int, left: tuple[int, int]) -> bytes:
        """Return the table that the system's loader reads; `left` is where its relocations lie, and their bytes."""
        entries = [
            (14, self.soname),
            (4, hash_at),
            (5, strings_at),
            (6, symbols_at),
            (10, len(self.strings)),
            (11, _SYMBOL.size),
            *([(7, left[0]), (8, left[1]), (9, _RELOCATION.size)] if left[1] else []),
            (0, 0),
        ]
        return b"".join(struct.pack("<QQ", *entry) for entry in entries)


def elf_hash(name: str) -> int:
    """The hash of a name, as ELF defines it.

    >>> hex(elf_hash("printf"))
    '0x77905a6'
    """
    found = 0
    for byte in name.encode():
        found = (found << 4) + byte
        found ^= found >> 24 & 0xF0
        found &= 0x0FFFFFFF
    return found


def _aligned(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment
