"""`tilewright export`: write a problem or a program as files that run without the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.printing import fail, is_file, read_text, show
from tilewright.errors import ArgumentError, TilewrightError
from tilewright.limits import integer

if TYPE_CHECKING:
    from tilewright.deploy.source import Exported


def export(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PROBLEM|FILE", help="Such as mb1ic64ih56oc64oh56kh3ph1, 128x64:64x96, or a program's text."
        ),
    ],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The code; header and manifest lie beside it.")],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="object|shared|ptx|cubin",
            help="An object, a shared library, or PTX; PATH's suffix says it too.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="What C calls the kernel.")] = None,
    dt: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Element type of a problem, f32 unless it is given.")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            "--target", metavar="TARGET", help="cpu, or a machine of `tilewright targets`: cpu:x86.avx512, gpu:hopper."
        ),
    ] = "cpu",
    plan: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Use this plan instead of the best; @FILE reads it.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="A size of a program's text; may be repeated.")
    ] = None,
    opened: Annotated[
        list[str] | None, typer.Option("--open", metavar="NAME", help="A size that every call tells; may be repeated.")
    ] = None,
    tvm_ffi: Annotated[
        bool, typer.Option("--tvm-ffi", help="Add the function __tvm_ffi_NAME, which TVM-FFI calls; CPUs only.")
    ] = False,
    require_fast: Annotated[
        bool, typer.Option("--require-fast", help="Fail if the plan is predicted far above its roofline.")
    ] = False,
) -> None:
    """Write machine code, a C header and a manifest, which run without the compiler.

    The second operand of a problem (b, or the weights w) is constant: it is packed once, when the operands are bound.
    docs/deploying.md describes the files and the C interface; `tilewright.load` loads the files in Python.

    \b
    Examples:
      tilewright export 128x64:64x96 product.o
      tilewright export mb1ic64ih56oc64oh56kh3ph1 layer.so --dt bf16 --target cpu:x86.amx --open N
      tilewright export kernel.txt kernel.o --size M=64
    """
    try:
        options = {"format": form, "name": name, "target": target, "tvm_ffi": tvm_ffi, "require_fast": require_fast}
        files = _write_export(what, path, options, dt, plan, size or [], opened or [])
    except TilewrightError as fault:
        fail(str(fault))
    show("\n".join(f"wrote {file}" for file in (files.code, files.header, files.manifest_file) if file is not None))


def _write_export(
    what: str,
    path: Path,
    options: dict[str, Any],
    dt: str | None,
    plan: str | None,
    sizes: list[str],
    opened: list[str],
) -> Exported:
    """Export `what`, a problem's text or the path of a program's text, as machine code at `path`, and return the paths
    of the written files.

    `options` are keyword arguments of `deploy.export`. `dt` (None: f32) is for problems; `plan` is a plan's text, or
    @FILE; `sizes` are texts NAME=NUMBER for programs; `opened` are the names of sizes that stay open (known only at a
    call). Raise `ArgumentError` if an option does not fit `what`.
    """
    from tilewright.cli.workload import plan_text, read_problem, read_workload
    from tilewright.deploy.exporting import export as write

    if is_file(what):
        if dt is not None:
            raise ArgumentError(f"--dt {dt}: a program's text has its own types; leave it out")
        text = read_text(Path(what), "the program")
        size_of = dict(_parse_size(size_text) for size_text in sizes)
        if text.lstrip().startswith("tile"):
            options = {**options, "plan": plan_text(plan), "dynamic": opened}
        elif plan is not None or opened:
            raise ArgumentError("--plan and --open are for problems and tile programs; leave them out")
        return write(text, path, size_of or None, **options)
    if sizes:
        raise ArgumentError(f"--size {sizes[0]}: a problem has its sizes; leave it out")
    work = read_workload(read_problem(what), dt or "f32")
    kernel, size_values = work.kernel
    _, second, _ = work.shapes
    return write(kernel, path, size_values, plan=plan_text(plan), dynamic=opened, constant=[second], **options)


def _parse_size(text: str) -> tuple[str, int]:
    """Return (name, number) from `text`, the text of a size: "M=64" -> ("M", 64). Raise `ArgumentError` for other
    texts, and `LimitExceeded` for a number of more than 512 bits.
    """
    name, equals, number = text.partition("=")
    if not equals or not name.strip().isidentifier() or not number.strip().isdecimal():
        raise ArgumentError(f"--size {text}: a name and a number, as in M=64")
    return name.strip(), integer(number.strip())
