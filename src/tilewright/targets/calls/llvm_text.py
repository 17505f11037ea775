"""LLVM text shared by the native functions of calls and launches: words of records, rows of tables, loops."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def fields(
    names: Sequence[str], words: Sequence[str], at: str, pointers: Collection[str] = (), prefix: str = ""
) -> str:
    """Return LLVM instructions that load some words of a record, which is a row of 64-bit words.

    `names` are the words to load, and `words` are the names of all words of the record, in order. `at` is the LLVM name
    of the record's pointer. A loaded value is named `prefix` + the word's name. It is a ptr if the word is in
    `pointers`, else an i64.

    >>> print(fields(["many"], ("first", "many"), "record"))
      %word.many = getelementptr i64, ptr %record, i64 1
      %many = load i64, ptr %word.many
    """
    lines = []
    for name in names:
        kind = "ptr" if name in pointers else "i64"
        lines += [
            f"  %word.{prefix}{name} = getelementptr i64, ptr %{at}, i64 {words.index(name)}",
            f"  %{prefix}{name} = load {kind}, ptr %word.{prefix}{name}",
        ]
    return "\n".join(lines)


def row(
    table: str, index: str, words: Sequence[str], names: Sequence[str], pointers: Collection[str] = (), prefix: str = ""
) -> str:
    """Return LLVM instructions that load some words of one row of a table. `table` and `index` are the LLVM names of
    the table's pointer and of the row number. `words` are the names of all words of a row, and `names` are the words to
    load.

    A loaded value is named `prefix` + the word's name. It is a ptr if the word is in `pointers`, else an i64. The
    address of the row is named `prefix` + "row".

    >>> print(row("pairs", "i", ("a", "b"), ["b"], prefix="i_"))
      %i_row = getelementptr [2 x i64], ptr %pairs, i64 %i
      %word.i_b = getelementptr i64, ptr %i_row, i64 1
      %i_b = load i64, ptr %word.i_b
    """
    here = f"  %{prefix}row = getelementptr [{len(words)} x i64], ptr %{table}, i64 %{index}\n"
    return here + fields(names, words, f"{prefix}row", pointers, prefix)


def loop(head: str, index: str, count: str, *, after: str, body: str, end: str, last: str | None = None) -> str:
    """Return the head block of an LLVM loop. The block is named `head`, and %`index` counts from 0 to %`count` - 1.

    `after` names the blocks before the loop, separated by spaces. The head branches to the block `body`, or to the
    block `end` after the last iteration. The block `last` branches back to the head (None: `body` does).

    >>> print(loop("each", "i", "many", after="entry", body="one", end="done"))
    each:
      %i = phi i64 [0, %entry], [%i_next, %one]
      %i_next = add i64 %i, 1
      %i_more = icmp ult i64 %i, %many
      br i1 %i_more, label %one, label %done
    """
    entering = "".join(f"[0, %{block}], " for block in after.split())
    return "\n".join(
        (
            f"{head}:",
            f"  %{index} = phi i64 {entering}[%{index}_next, %{last or body}]",
            f"  %{index}_next = add i64 %{index}, 1",
            f"  %{index}_more = icmp ult i64 %{index}, %{count}",
            f"  br i1 %{index}_more, label %{body}, label %{end}",
        )
    )
