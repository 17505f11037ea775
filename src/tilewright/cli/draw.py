"""`tilewright draw`: draw a layout or a block kernel's tensor in the terminal or as an SVG file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.errors import LayoutError, TilewrightError
from tilewright.limits import integer

if TYPE_CHECKING:
    from tilewright.algebra.layout import Layout
    from tilewright.algebra.swizzle import ComposedLayout


def draw(
    layout: Annotated[
        str,
        typer.Argument(
            metavar="LAYOUT|KERNEL", help="Such as '(4,8):(8,1)', quoted for the shell; or FILE.py or FILE.py:NAME."
        ),
    ],
    tensor: Annotated[
        str | None, typer.Argument(metavar="TENSOR", help="A tensor of the block kernel, or an operand ATOM.a, .b, .c.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.svg", help="Write an SVG picture to this file.")
    ] = None,
    element_bytes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Size of an element: colour by memory bank and count the passes."),
    ] = None,
    bank_bytes: Annotated[int, typer.Option(min=1, metavar="N", help="Size of a memory bank's word.")] = 4,
    banks: Annotated[int, typer.Option(min=1, metavar="N", help="Number of memory banks.")] = 32,
    partition: Annotated[
        str | None,
        typer.Option(metavar="MxN", help="LAYOUT sends (thread, value) to an index in a tile of M rows, N columns."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="LAYOUT", help="With --partition: where the tile lies in memory; otherwise packed."),
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of the block kernel.")
    ] = None,
) -> None:
    """Draw a layout or a block kernel's tensor in the terminal, or as an SVG picture with -o.

    Rows are mode 0, columns mode 1; further modes have a panel each. For a kernel's registers, the picture shows which
    thread holds which element; for its memory, the offset and, in shared memory, the bank.

    \b
    Examples:
      tilewright draw '((2,2),(2,4)):((1,4),(2,8))'
      tilewright draw 'S<3,3,3> o 0 o (8,64):(64,1)' --element-bytes 2 -o tile.svg
      tilewright draw '((3,2),(2,2)):((8,2),(4,1))' --partition 4x6
      tilewright draw examples/ck/optimized_gemm.py sa -p BM=64 -o sa.svg
    """
    try:
        if tensor is not None or ".py" in layout:
            _draw_tensor(layout, tensor or "", output, param or [])
            return
        options = {"element_bytes": element_bytes, "bank_bytes": bank_bytes, "banks": banks}
        _draw_layout(layout, output, partition, memory, options)
    except TilewrightError as fault:
        _fail(str(fault))
    except OSError as fault:
        _fail(f"cannot write {output}: {fault.strerror}")


def _draw_tensor(kernel: str, tensor: str, output: Path | None, params: list[str]) -> None:
    """Draw the tensor named `tensor` of a block kernel: as an SVG file at `output`, or in the terminal if `output` is
    None.

    `kernel` is FILE.py or FILE.py:NAME. `params` are values of the kernel's parameters as texts NAME=VALUE. Raise
    `LayoutError` for a text without "=", or an `output` that does not end in .svg, and `LimitExceeded` for a number of
    more than 512 bits.
    """
    from tilewright.cli.kernels import kernel_in

    _require_svg(output)
    parameters: dict[str, int | str] = {}
    for text in params:
        name, equals, value = text.partition("=")
        if not equals:
            raise LayoutError(f"--param {text}: say a parameter and its value, such as BM=64")
        parameters[name] = integer(value) if value.isdecimal() else value
    picture = kernel_in(kernel).draw(tensor, parameters)
    if output is None:
        _print_on_terminal(picture.table)
    else:
        write_whole(output, picture.svg)
        typer.echo(f"wrote {output}: {picture.title}")


def _require_svg(output: Path | None) -> None:
    """Raise `LayoutError` if `output` is a path that does not end in .svg."""
    if output is not None and output.suffix.lower() != ".svg":
        raise LayoutError(f"-o {output}: pictures are written as SVG, to a file whose name ends in .svg")


def _draw_layout(
    text: str, output: Path | None, partition: str | None, memory: str | None, options: dict[str, Any]
) -> None:
    """Draw the layout written in `text`: as an SVG file at `output`, or in the terminal if `output` is None.

    With `partition`, a text such as "8x16", the layout is drawn as a thread-value partition of a tile with these rows
    and columns; `memory` is the text of the tile's memory layout (None: packed). `options` are {"element_bytes",
    "bank_bytes", "banks"}. Raise `LayoutError` or `ParseError` for texts that cannot be read, and `LayoutError` for
    `memory` without `partition`.
    """
    from tilewright.algebra.layout_text import parse_layout
    from tilewright.algebra.picture import layout_svg, layout_table, partition_svg, partition_table

    _require_svg(output)
    if memory is not None and partition is None:
        raise LayoutError(f"--memory {memory} needs --partition, which says what is accessed at once")
    layout = parse_layout(text)
    subject: tuple[Any, ...] = (layout,)
    if partition is not None:
        subject = (layout, _tile_shape(partition))
        options = {**options, "memory": None if memory is None else parse_layout(memory)}
    if output is None:
        table = layout_table if partition is None else partition_table
        _print_on_terminal(table(*subject, **options))
    else:
        svg = layout_svg if partition is None else partition_svg
        write_whole(output, svg(*subject, **options))
        typer.echo(f"wrote {output}: {_title_of(layout, partition)}")


def _title_of(layout: Layout | ComposedLayout, partition: str | None) -> str:
    """Return the title of a picture of `layout`: "the layout L" if `partition` is None; "the partition L of a tile
    8x16" if `partition` is "8x16".
    """
    return f"the layout {layout}" if partition is None else f"the partition {layout} of a tile {partition}"


def _tile_shape(text: str) -> tuple[int, int]:
    """Return (rows, columns) of a tile from `text`, such as "8x16"; raise `LayoutError` for other texts.

    >>> _tile_shape("8x16")
    (8, 16)
    """
    match = re.fullmatch(r"([1-9]\d*)[xX]([1-9]\d*)", text.strip())
    if match is None:
        raise LayoutError(f"--partition {text}: say the tile's rows and columns as MxN, such as 8x16")
    return integer(match[1]), integer(match[2])


def write_whole(path: Path, text: str) -> None:
    """Write `text` to the file `path` atomically: write a temporary file in the same folder, then rename it to `path`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "a.svg", "<svg/>")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('a.svg', '<svg/>')]
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _print_on_terminal(renderable: object) -> None:
    """Print `renderable`, an object that rich can print such as a table, on the standard output."""
    from rich.console import Console

    Console().print(renderable)


def _fail(message: str) -> None:
    """Print `message` as an error and exit with code 2."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
