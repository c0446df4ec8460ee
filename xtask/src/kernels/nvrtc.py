"""Compiles CUDA C++ to PTX with the NVRTC library in a folder. `cargo xtask kernels` runs this; it needs no GPU.

Standard input: {"library": folder, "options": [text], "headers": {name: text}, "sources": {name: text}}
Standard output: {"version": "12.4", "ptx": {name: text}}. What the compiler complains about goes to standard error, with
exit status 1.
"""

import ctypes
import glob
import json
import os
import sys


def load(folder):
    # libnvrtc looks for its builtins by name at the first compilation, and finds what is loaded already.
    for pattern in ["libnvrtc-builtins.so.*", "libnvrtc.so.*"]:
        [path] = [path for path in glob.glob(os.path.join(folder, pattern)) if ".alt." not in path]
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def checked(library, code, what):
    if code != 0:
        raise SystemExit(f"{what}: {library.nvrtcGetErrorString(code).decode()}")


def strings(texts):
    return (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts])


def text_of(library, program, kind):
    size = ctypes.c_size_t()
    checked(library, getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)), f"size of the {kind}")
    text = ctypes.create_string_buffer(size.value)
    checked(library, getattr(library, f"nvrtcGet{kind}")(program, text), kind)
    return text.value.decode()


def compiled(library, name, source, headers, options):
    program = ctypes.c_void_p()
    code = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), name.encode(), len(headers),
        strings(list(headers.values())), strings(list(headers)),
    )
    checked(library, code, name)
    code = library.nvrtcCompileProgram(program, len(options), strings(options))
    log = text_of(library, program, "ProgramLog").strip()
    if log:
        print(log, file=sys.stderr)
    checked(library, code, name)
    ptx = text_of(library, program, "PTX")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx


def main():
    task = json.load(sys.stdin)
    library = load(task["library"])
    major, minor = ctypes.c_int(), ctypes.c_int()
    checked(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "version")
    ptx = {
        name: compiled(library, name, source, task["headers"], task["options"])
        for name, source in task["sources"].items()
    }
    json.dump({"version": f"{major.value}.{minor.value}", "ptx": ptx}, sys.stdout)


main()
