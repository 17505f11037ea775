"""Text of the C header of an exported kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.codegen.entry.abi import ALIGNMENT, KIND_BITS, ErrorKind

_KINDS = ",\n".join(f"  TW_{kind.name} = {int(kind)}" for kind in ErrorKind)
_SHARED = f"""\
#ifndef TW_ABI
#define TW_ABI 1

/* Threads that a kernel may use. `run` calls task(argument, worker) once for each worker from 0 to workers - 1, on any
   threads, at the same time or one after another, and returns when all of them have returned. */
typedef struct tw_pool {{
  void *context;
  void (*run)(void *context, void (*task)(void *argument, int32_t worker), void *argument, int32_t workers);
  int32_t workers; /* how many may run at the same time; at least 1 */
}} tw_pool;

/* What the functions return: 0, or a kind and which buffer, size or check it is about. */
#define TW_ERROR_KIND(code) ((code) & {(1 << KIND_BITS) - 1})
#define TW_ERROR_PLACE(code) ((code) >> {KIND_BITS})
enum {{
  TW_OK = 0,
{_KINDS}
}};

#endif
"""


def header_text(manifest: Mapping[str, Any]) -> str:
    """Return the text of the C header of an exported kernel for a CPU. `manifest` is the kernel's manifest."""
    name = manifest["name"]
    guard = f"TILEWRIGHT_{name.upper()}_H"
    lines = [
        f"/* {name}, exported by Tilewright {manifest['version']} for {manifest['machine']['name']}. */",
        *(f"/* {says}. */" for says in [manifest["machine"].get("before_use")] if says),
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        _SHARED,
        "/* Buffers, in order: packed, the last dimension contiguous. */",
        f"#define {name}_BUFFERS {len(manifest['arguments'])}",
    ]
    for place, argument in enumerate(manifest["arguments"]):
        lines.append(f"#define {name}_BUFFER_{argument['name']} {place} /* {_buffer(argument)} */")
    if manifest["sizes"]:
        lines += ["", "/* Sizes, in order. */", f"#define {name}_SIZES {len(manifest['sizes'])}"]
    for place, size in enumerate(manifest["sizes"]):
        steps = f" in steps of {size['step']}" if size["step"] != 1 else ""
        lines.append(f"#define {name}_SIZE_{size['name']} {place} /* {size['least']} to {size['most']}{steps} */")
    lines += ["", f"#define {name}_ALIGNMENT {ALIGNMENT} /* bytes, of kept and workspace */"]
    if manifest["kept_bytes"] is not None:
        lines.append(f"#define {name}_KEPT_BYTES {manifest['kept_bytes']}")
    if manifest["workspace_bytes"] is not None:
        lines.append(f"#define {name}_WORKSPACE_BYTES {manifest['workspace_bytes']} /* for any pool */")
    lines += ["", *_functions(manifest), "", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */"]
    return "\n".join(lines) + "\n"


def _buffer(argument: Mapping[str, Any]) -> str:
    """Return the header's comment about `argument`, an entry of the manifest: role, type, shape and alignment.

    If only the bind function reads the argument, or no function, the comment says so: "in: f32 (M, K), at a multiple of
    4 bytes, read by bind only".
    """
    shape = ", ".join(map(str, argument["shape"]))
    when = "" if argument["called"] else ", read by bind only" if argument["bound"] else ", not read"
    return f"{argument['role']}: {argument['type']} ({shape}), at a multiple of {argument['alignment']} bytes{when}"


def _functions(manifest: Mapping[str, Any]) -> list[str]:
    """Return the lines of the header that declare the kernel's C functions, with comments. `manifest` is the kernel's
    manifest."""
    name = manifest["name"]
    sizes = "the sizes" if manifest["sizes"] else "sizes may be NULL"
    bound = ", ".join(a["name"] for a in manifest["arguments"] if a["bound"])
    once = f"reads {bound} and fills `kept`; other buffers may be NULL" if bound else "does nothing"
    inputs = "void *const *buffers, const int64_t *sizes"
    return [
        f"/* The bytes of `kept` and of `workspace` with a pool of so many workers; {sizes}. */",
        f"int64_t {name}_kept_bytes(const int64_t *sizes);",
        f"int64_t {name}_workspace_bytes(const int64_t *sizes, int32_t workers);",
        "",
        f"/* What is done once for constant arguments: {once}. */",
        f"int32_t {name}_bind({inputs}, void *kept, void *workspace, const tw_pool *pool);",
        "",
        "/* A call. Threads may call at the same time, each with a workspace of its own; they may share `kept`.",
        "   Without a pool (NULL) all is done on the calling thread. */",
        f"int32_t {name}({inputs}, const void *kept, void *workspace, const tw_pool *pool);",
        "",
        "/* The sentence of a code. */",
        f"const char *{name}_message(int32_t code);",
    ]
