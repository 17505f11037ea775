"""`tilewright cache`: show where compiled programs are cached and their size, or remove them."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli.printing import fail, show, table
from tilewright.errors import TilewrightError


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove every compiled program.")] = False,
) -> None:
    """Show the folder of compiled programs, the number of programs and their total size; with --clear, remove the
    programs.

    \b
    TILEWRIGHT_CACHE_DIR is the folder; `off` disables the cache. TILEWRIGHT_CACHE_MB is the largest total size.
    Only files that Tilewright wrote are removed. A folder with other files is refused, unless Tilewright marked it.
    """
    try:
        _show_or_clear(clear)
    except TilewrightError as fault:
        fail(str(fault))


def _show_or_clear(clear: bool) -> None:
    """Remove all cached programs if `clear`, and print the number of removed files; otherwise print the cache's folder,
    number of programs and total size. If the cache is off, print only that.

    Raise `CacheError` if the folder may not be used as a cache. Exit with code 2 if a file cannot be removed.
    """
    from tilewright.runtime import cache as disk
    from tilewright.runtime import cache_folder, environment

    folder = environment.cache_folder()
    if folder is None:
        show("compiled programs are not kept: TILEWRIGHT_CACHE_DIR is off")
        return
    cache_folder.require(folder)
    if clear:
        removed = disk.clear()
        remaining = len(disk.entries(folder))
        show(f"removed {removed - remaining} files from {folder}")
        if remaining:
            fail(f"{remaining} files could not be removed from {folder}")
        return
    entries = disk.entries(folder)
    program_sizes = [size for _, size, path in entries if not cache_folder.is_unfinished(path)]
    rows = [
        ("folder", str(folder)),
        ("programs", str(len(program_sizes))),
        ("size", f"{sum(program_sizes) / 2**20:.1f} MB of {environment.cache_bytes() >> 20} MB"),
    ]
    if len(entries) > len(program_sizes):
        rows.append(
            ("unfinished", f"{len(entries) - len(program_sizes)}, being written or left by processes that were killed")
        )
    if (why := disk.why_not_used(folder)) is not None:
        rows.append(("not used", why))
    show(table(("compiled programs", ""), rows))
