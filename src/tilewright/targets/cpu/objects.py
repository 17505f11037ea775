"""ELF object files: read, and linked to a shared library that needs no other library.

Objects of exported kernels are position independent and need nothing outside themselves. To link one is to lay out its
sections one after another, write relative addresses, and list the functions in a symbol table; no linker is needed. An
object may use functions that a process may or may not have (weak symbols): words of its data hold their addresses,
written by the system's loader, 0 for missing functions.
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
"""The largest page size of a system that may load the library; segments do not share pages."""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SEGMENT = struct.Struct("<IIQQQQQQ")


@dataclass(frozen=True)
class Section:
    """A section of an object; `data` is empty for one that only reserves memory (.bss)."""

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
        """True if the section is part of the running program. Sections of size 0, unwinding tables and
        notes are not.
        """
        return bool(self.flags & _ALLOC) and self.size > 0 and not self.name.startswith((".eh_frame", ".note"))


@dataclass(frozen=True)
class ObjectSymbol:
    """A symbol of an object: the number of its section (0: it is defined elsewhere), its offset there and its size.

    A weak symbol that is defined elsewhere may be missing.
    """

    name: str
    section: int
    offset: int
    size: int
    is_global: bool
    is_weak: bool


@dataclass(frozen=True)
class ObjectFile:
    """An object file: its machine, sections, symbols, and relocations as (section, offset, kind, symbol, addend)."""

    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[ObjectSymbol, ...]
    relocations: tuple[tuple[int, int, int, int, int], ...]

    @property
    def undefined(self) -> tuple[str, ...]:
        """The names of symbols that other objects must define. Weak symbols are left out."""
        return tuple(s.name for s in self.symbols if s.section == 0 and s.name and not s.is_weak)


def read_object(data: bytes) -> ObjectFile:
    """Return the content of the ELF object file `data`. Raise CodeGenerationError if the bytes are not a 64-bit
    little-endian ELF file, or if a part of the file is missing.
    """
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError) as fault:
        raise CodeGenerationError(f"the object file is damaged: {fault}") from None


def _read(data: bytes) -> ObjectFile:
    """Return the content of the ELF object file `data`. Raise CodeGenerationError if the bytes are not a 64-bit
    little-endian ELF file, or if the content of a section is missing. For other damage, struct.error, IndexError or
    UnicodeDecodeError is raised.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise CodeGenerationError("the object file is no ELF file of 64 bits, little-endian")
    header = _HEADER.unpack_from(data)
    machine, start, count, names_at = header[2], header[6], header[12], header[13]
    section_rows = [_SECTION.unpack_from(data, start + _SECTION.size * n) for n in range(count)]
    names = _content(data, section_rows[names_at])
    sections = tuple(
        Section(_text(names, r[0]), r[1], r[2], r[5], max(r[8], 1), r[6], r[7], _content(data, r)) for r in section_rows
    )
    symbols: list[ObjectSymbol] = []
    relocations: list[tuple[int, int, int, int, int]] = []
    for section in sections:
        if section.kind == _SYMTAB:
            texts = sections[section.link].data
            for name, info, _, home, value, size in _SYMBOL.iter_unpack(section.data):
                binding = info >> 4
                symbols.append(ObjectSymbol(_text(texts, name), home, value, size, binding != 0, binding == _WEAK))
        elif section.kind == _RELA:
            for offset, info, addend in _RELOCATION.iter_unpack(section.data):
                relocations.append((section.info, offset, info & 0xFFFFFFFF, info >> 32, addend))
    return ObjectFile(machine, sections, tuple(symbols), tuple(relocations))


def _content(data: bytes, row: tuple[int, ...]) -> bytes:
    """Return the bytes of one section of the object file `data`. `row` is the section's unpacked header. The result is
    empty for a section that only reserves memory (.bss). Raise CodeGenerationError if the file ends before the section
    does.
    """
    if row[1] == _NOBITS:
        return b""
    content = data[row[4] : row[4] + row[5]]
    if len(content) != row[5]:
        raise CodeGenerationError("the object file is cut off")
    return content


def _text(table: bytes, offset: int) -> str:
    """Return the zero-terminated text at byte `offset` of the string table `table`."""
    return table[offset : table.index(b"\0", offset)].decode()


def object_form(machine: int) -> ObjectForm:
    """Return the object format of the CPU family with the ELF machine number `machine` (62 is x86-64). Raise
    CodeGenerationError if no family has this number.
    """
    for name in family_names():
        form = family(name).objects
        if form is not None and form.machine == machine:
            return form
    raise CodeGenerationError(f"objects of the machine {machine} are not linked here")


# -- the shared library -----------------------------------------------------------------------------------


def shared_library(data: bytes, soname: str) -> bytes:
    """Link the object file `data`, and return the bytes of an ELF shared library that exports its global functions.
    `soname` is the name of the library. Raise CodeGenerationError if the object needs symbols of other objects, has a
    relocation that is not supported, or is too large.
    """
    return _Library(read_object(data), soname).data()


class _Library:
    """The layout of one shared library."""

    def __init__(self, source: ObjectFile, soname: str):
        if source.undefined:
            raise CodeGenerationError(f"the object needs {', '.join(source.undefined)}, which it does not hold")
        self.source, self.form = source, object_form(source.machine)
        self.offered = [s for s in source.symbols if s.is_global and s.section]
        self.optional = [s for s in source.symbols if s.is_weak and not s.section]
        self.strings = bytearray(b"\0")
        self.names = [self._string(s.name) for s in (*self.offered, *self.optional)]
        self.soname = self._string(soname)

    def _string(self, text: str) -> int:
        """Append `text` to the library's string table, and return its offset in the table."""
        offset = len(self.strings)
        self.strings += text.encode() + b"\0"
        return offset

    def data(self) -> bytes:
        """Return the bytes of the shared library. In order: headers, tables, code and constants, the dynamic section
        and writable data, section headers. Writable data is loaded one page (64 KB) higher than its position in the
        file.
        """
        sections = self.source.sections
        read_only = [n for n, s in enumerate(sections) if s.loaded and not s.flags & _WRITE]
        writable = [n for n, s in enumerate(sections) if s.loaded and s.flags & _WRITE]
        hash_at = _round_up(_HEADER.size + 4 * _SEGMENT.size, 8)
        table = self._hash()
        symbols_at = _round_up(hash_at + len(table), 8)
        strings_at = symbols_at + _SYMBOL.size * (len(self.names) + 1)
        for_loader = [r for r in self.source.relocations if self._is_for_loader(r)]
        loader_at = _round_up(strings_at + len(self.strings), 8)
        loader_bytes = _RELOCATION.size * len(for_loader)
        code_at = end = _round_up(loader_at + loader_bytes, 64)
        address_of: dict[int, int] = {}
        for n in read_only:
            address_of[n] = end = _round_up(end, sections[n].alignment)
            end += sections[n].size
        read_only_end = end
        dynamic_at = _round_up(end, 64)
        dynamic = self._dynamic(hash_at, strings_at, symbols_at, (loader_at, loader_bytes))
        end = dynamic_at + len(dynamic)
        for n in sorted(writable, key=lambda n: sections[n].kind == _NOBITS):
            address_of[n] = end = _round_up(end, sections[n].alignment)
            end += sections[n].size
        stored = [n for n in writable if sections[n].kind != _NOBITS]
        file_end = max([dynamic_at + len(dynamic), *(address_of[n] + sections[n].size for n in stored)])
        offsets = dict(address_of)
        address_of |= {n: address_of[n] + _PAGE for n in writable}
        image = bytearray(file_end)
        for n in [*read_only, *stored]:
            image[offsets[n] : offsets[n] + sections[n].size] = sections[n].data
        self._relocate(image, address_of, offsets)
        image[hash_at : hash_at + len(table)] = table
        image[symbols_at:strings_at] = self._symbols(address_of)
        image[strings_at : strings_at + len(self.strings)] = self.strings
        image[loader_at : loader_at + loader_bytes] = self._loader_relocations(for_loader, address_of)
        image[dynamic_at : dynamic_at + len(dynamic)] = dynamic
        segments = [
            (1, 5, 0, 0, read_only_end, read_only_end, _PAGE),
            (1, 6, dynamic_at, dynamic_at + _PAGE, file_end - dynamic_at, end - dynamic_at, _PAGE),
            (2, 6, dynamic_at, dynamic_at + _PAGE, len(dynamic), len(dynamic), 8),
            (0x6474E551, 6, 0, 0, 0, 0, 16),  # the stack holds no code
        ]
        rows = b"".join(
            _SEGMENT.pack(kind, flags, at, va, va, size, room, al) for kind, flags, at, va, size, room, al in segments
        )
        image[_HEADER.size : _HEADER.size + len(rows)] = rows
        section_list = [
            (".hash", 5, 2, hash_at, hash_at, len(table), 2, 0, 8, 4),
            (".dynsym", 11, 2, symbols_at, symbols_at, strings_at - symbols_at, 3, 1, 8, _SYMBOL.size),
            (".dynstr", 3, 2, strings_at, strings_at, len(self.strings), 0, 0, 1, 0),
            (".text", 1, 6, code_at, code_at, read_only_end - code_at, 0, 0, 64, 0),
            (".dynamic", 6, 3, dynamic_at + _PAGE, dynamic_at, len(dynamic), 3, 0, 8, 16),
            *(
                [(".rela.dyn", 4, 2, loader_at, loader_at, loader_bytes, 2, 0, 8, _RELOCATION.size)]
                if for_loader
                else []
            ),
        ]
        return self._with_sections(image, section_list)

    def _with_sections(
        self, image: bytearray, listed: list[tuple[str, int, int, int, int, int, int, int, int, int]]
    ) -> bytes:
        """Append section names and section headers to the file image `image`, fill in its ELF header, and return the
        bytes. `listed` are the sections as tuples (name, kind, flags, address, offset, size, link, info, alignment,
        entry size).
        """
        names = bytearray(b"\0")
        rows = [bytes(_SECTION.size)]
        for name, *values in (*listed, (".shstrtab", 3, 0, 0, len(image), 0, 0, 0, 1, 0)):
            kind, flags, address, offset, size, link, info, alignment, entry = values
            name_offset = len(names)
            names += name.encode() + b"\0"
            rows.append(
                _SECTION.pack(
                    name_offset, kind, flags, address, offset, size or len(names), link, info, alignment, entry
                )
            )
        image += names
        image += bytes(-len(image) % 8)
        start = len(image)
        image += b"".join(rows)
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        image[: _HEADER.size] = _HEADER.pack(
            ident, 3, self.source.machine, 1, 0, _HEADER.size, start, 0, _HEADER.size, _SEGMENT.size, 4, _SECTION.size,
            len(rows), len(rows) - 1,
        )  # fmt: skip
        return bytes(image)

    def _relocate(self, image: bytearray, address_of: dict[int, int], offsets: dict[int, int]) -> None:
        """Apply the object's relocations to `image`, except those that the system's loader applies. `address_of` is
        {section number: address when loaded}, and `offsets` is {section number: position in the file}. Raise
        CodeGenerationError for a relocation that is not supported, or for an address that is too far away.
        """
        for relocation in self.source.relocations:
            section, offset, kind, symbol, addend = relocation
            if section not in address_of or self._is_for_loader(relocation):
                continue
            target = self.source.symbols[symbol]
            write = self.form.relocations.get(kind)
            if write is None or target.section not in address_of:
                raise CodeGenerationError(
                    f"the object refers to {target.name} by a relocation {kind} that is not linked"
                )
            place = CodePlace(image, offsets[section] + offset, address_of[section] + offset)
            if not write(place, address_of[target.section] + target.offset + addend):
                raise CodeGenerationError(f"the object is too large: {target.name} lies too far from where it is used")

    def _is_for_loader(self, relocation: tuple[int, int, int, int, int]) -> bool:
        """True if the system's loader must apply `relocation`, a tuple (section, offset, kind, symbol, addend). The
        loader applies relocations that store the address of a weak, undefined function to a word of writable data.
        """
        section, _, kind, symbol, _ = relocation
        in_data = self.source.sections[section].loaded and self.source.sections[section].flags & _WRITE
        return bool(in_data) and kind == self.form.absolute and self.source.symbols[symbol] in self.optional

    def _loader_relocations(
        self, relocations: list[tuple[int, int, int, int, int]], address_of: dict[int, int]
    ) -> bytes:
        """Return the bytes of the table of relocations that the system's loader applies. `relocations` are tuples
        (section, offset, kind, symbol, addend), and `address_of` is {section number: address when loaded}.
        """
        numbers = {s: number for number, s in enumerate(self.optional, len(self.offered) + 1)}
        rows = []
        for section, offset, kind, symbol, addend in relocations:
            number = numbers[self.source.symbols[symbol]]
            rows.append(_RELOCATION.pack(address_of[section] + offset, number << 32 | kind, addend))
        return b"".join(rows)

    def _symbols(self, address_of: dict[int, int]) -> bytes:
        """Return the bytes of the dynamic symbol table: a null symbol, the exported functions, then the weak undefined
        functions. `address_of` is {section number: address when loaded}.
        """
        rows = [bytes(_SYMBOL.size)]
        for name, s in zip(self.names, self.offered, strict=False):
            rows.append(_SYMBOL.pack(name, 0x12, 0, 4, address_of[s.section] + s.offset, s.size))
        rows += [_SYMBOL.pack(name, _WEAK << 4, 0, 0, 0, 0) for name in self.names[len(self.offered) :]]
        return b"".join(rows)

    def _hash(self) -> bytes:
        """Return the bytes of the ELF hash table. A loader uses it to find the exported functions by name."""
        count = len(self.names) + 1
        buckets, chains = [0] * count, [0] * count
        for number, s in enumerate(self.offered, 1):
            bucket = elf_hash(s.name) % count
            chains[number], buckets[bucket] = buckets[bucket], number
        return struct.pack(f"<{2 + 2 * count}I", count, count, *buckets, *chains)

    def _dynamic(self, hash_at: int, strings_at: int, symbols_at: int, left: tuple[int, int]) -> bytes:
        """Return the bytes of the dynamic section, in which a loader finds the library's tables. `hash_at`,
        `strings_at` and `symbols_at` are the addresses of tables. `left` is (address, bytes) of the relocations that
        the loader applies.
        """
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
    """Return the hash of the symbol name `name`, as the ELF standard defines it.

    >>> hex(elf_hash("printf"))
    '0x77905a6'
    """
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value ^= value >> 24 & 0xF0
        value &= 0x0FFFFFFF
    return value


def _round_up(number: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment` that is at least `number`."""
    return -(-number // alignment) * alignment
