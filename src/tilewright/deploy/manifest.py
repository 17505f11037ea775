"""The manifest of an exported kernel: a JSON file about its arguments, its machine and its code.

| key | holds |
|---|---|
| `format`, `version` | the version of this format, of the package that wrote it |
| `name`, `kind` | the kernel's name; "object", "shared", "ptx" or "cubin" |
| `file`, `bytes`, `sha256` | the code's file, its size and its hash |
| `machine` | name, `architectures`, `features` that the code needs; LLVM's `triple` |
| `arguments` | in order: `name`, `type`, `shape`, `role`, `alignment`; when it is read: `bound` (once), `called` |
| `sizes` | in order, the sizes that calls determine: `name`, `symbol`, `least`, `most`, `step` |
| `alignment`, `kept_bytes`, `workspace_bytes`, `workers` | of memory that a caller lends; null if it depends on sizes |
| `errors` | the message of each error code that the functions return |
| `signature`, `outputs`, `optional`, `lenient` | for the checks of calls from Python |
| `tvm_ffi` | CPUs only: the symbol that TVM-FFI looks for, or null |
| `plan` | the text of the plan |
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.codegen.entry.abi import FORMAT
from tilewright.errors import ManifestError
from tilewright.limits import written

COMMON: dict[str, Any] = {
    "version": str,
    "name": str,
    "kind": str,
    "file": str,
    "bytes": int,
    "sha256": str,
    "machine": {"name": str, "features": [str]},
    "arguments": [{"name": str, "type": str, "shape": [(int, str)], "role": str, "alignment": int}],
    "sizes": [{"name": str, "symbol": str, "least": int, "most": int, "step": int}],
    "errors": {},
    "signature": str,
    "outputs": [str],
    "optional": [str],
    "lenient": bool,
    "plan": str,
}
"""The keys of every manifest with their types: [T] is a list of T, a dictionary gives the required keys."""
OF_CPUS: dict[str, Any] = {
    "machine": {"architectures": [str], "triple": str},
    "arguments": [{"bound": bool, "called": bool}],
    "alignment": int,
    "kept_bytes": (int, type(None)),
    "workspace_bytes": (int, type(None)),
    "workers": int,
}
"""The further keys of a manifest of code for a CPU."""


DEEPEST = 100
"""The deepest nesting of brackets that is parsed as a manifest."""
OF_GPUS: dict[str, Any] = {
    "machine": {"maker": str, "cores": int},
    "host": str,
    "programs": [
        {
            "name": str,
            "file": str,
            "bytes": int,
            "sha256": str,
            "head": str,
            "launch": {"entry": str},
            "conditions": [[str]],
        }
    ],
}
"""The further keys of a manifest of code for a GPU."""
KINDS = {"object": OF_CPUS, "shared": OF_CPUS, "ptx": OF_GPUS, "cubin": OF_GPUS}


def misfit(value: Any, form: Any, where: str) -> str | None:
    """Return a text with path and value of the first entry of a manifest that has the wrong type; None if all types are
    right.

    `value` is the manifest or an entry in it, `where` is the path of that entry. `form` is its type: a class or tuple
    of classes, [T] for a list of T, or {required key: type of its value} for a dictionary.

    >>> misfit({"a": [1, "x"]}, {"a": [int]}, "m")
    "m.a[1] = 'x'"
    """
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return f"{where} = {written(value, 60)}"
        children = [(value.get(key), inner, f"{where}.{key}".removeprefix(".")) for key, inner in form.items()]
    elif isinstance(form, list):
        if not isinstance(value, list):
            return f"{where} = {written(value, 60)}"
        children = [(item, form[0], f"{where}[{index}]") for index, item in enumerate(value)]
    else:
        fits = isinstance(value, form) and (not isinstance(value, bool) or form is bool)
        return None if fits else f"{where} = {written(value, 60)}"
    return next(filter(None, (misfit(*child) for child in children)), None)


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Return `manifest` as JSON text."""
    return json.dumps(manifest, indent=1) + "\n"


def digest(data: bytes) -> str:
    """Return the SHA-256 hash of `data`, a file's content, as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def manifest_path(path: Path) -> Path:
    """Return the path of the manifest of an exported kernel: "gemm.o" -> "gemm.json". `path` is that of any of the
    kernel's files."""
    return path if path.suffix == ".json" else path.with_suffix(".json")


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of an exported kernel, read from its file and checked. `path` is that of any of the kernel's
    files.

    Raise ManifestError if the file cannot be read, is no manifest, or was written for another version of the format.
    """
    file = manifest_path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as fault:
        raise ManifestError(
            f"{file}: {fault.strerror}; an exported kernel has its manifest beside it: copy both files"
        ) from None
    except UnicodeDecodeError:
        raise ManifestError(f"{file} is no text, so it is no manifest; export the kernel again") from None
    try:
        manifest = json.loads(text if _depth(text) < DEEPEST else "")
    except json.JSONDecodeError as fault:
        raise ManifestError(f"{file} is no JSON, or cut off ({fault}); export the kernel again") from None
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise ManifestError(f"{file} is no manifest of an exported kernel")
    if manifest["format"] != FORMAT:
        raise ManifestError(
            f"{file} has the format {written(manifest['format'], 40)}, written by version "
            f"{written(manifest.get('version'), 40)}; this version reads format {FORMAT}: export the kernel again"
        )
    invalid = misfit(manifest, COMMON, "")
    if invalid is None and manifest["kind"] not in KINDS:
        invalid = f"kind = {written(manifest['kind'], 40)}"
    if invalid is None:
        invalid = misfit(manifest, KINDS[manifest["kind"]], "")
    for row in [manifest, *manifest.get("programs", ())] if invalid is None else ():
        if Path(row["file"]).name != row["file"]:
            invalid = f"file = {row['file']!r}"
    if invalid is not None:
        raise ManifestError(f"{file}: {invalid} is not what a manifest holds there; export the kernel again")
    return manifest


def _depth(text: str) -> int:
    """Return the greatest nesting depth of the brackets [] and {} in `text`. Brackets inside quotes count too."""
    deepest = depth = 0
    for mark in re.findall(r"[\[\]{}]", text):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def read_code(path: Path, manifest: Mapping[str, Any]) -> bytes:
    """Return the content of the code file that `manifest` names.

    `manifest` is a kernel's manifest, or its entry for one program of a GPU kernel. The file is in the folder of
    `path`, any of the kernel's files. Raise ManifestError if it is missing, or if its size or hash is not the
    manifest's.
    """
    file = manifest_path(path).parent / manifest["file"]
    try:
        data: bytes = file.read_bytes()
    except OSError as fault:
        raise ManifestError(f"{file}: {fault.strerror}; the manifest names it: copy both files") from None
    if len(data) != manifest["bytes"]:
        raise ManifestError(
            f"{file} has {len(data)} bytes, and its manifest says {manifest['bytes']}: it is cut off, or another "
            "file; export the kernel again"
        )
    if digest(data) != manifest["sha256"]:
        raise ManifestError(f"{file} was changed after it was written: its hash is not the manifest's; export it again")
    return data
