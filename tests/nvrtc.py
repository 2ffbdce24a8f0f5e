"""NVIDIA's compiler without a GPU: CUDA C in, PTX out."""

import ctypes
import importlib.util
from pathlib import Path

import pytest


def library():
    """NVRTC, of the wheel nvidia-cuda-nvrtc-cu12."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else list(found.submodule_search_locations)
    paths = [p for folder in folders for p in Path(folder).glob("cuda_nvrtc/lib/libnvrtc.so.12")]
    if not paths:
        pytest.skip("needs NVRTC: pip install refopt[nvrtc]")
    return ctypes.CDLL(str(paths[0]))


def ptx(source, options):
    """The PTX of a source; RuntimeError with the compiler's words where there is none."""
    nvrtc, program, size = library(), ctypes.c_void_p(), ctypes.c_size_t()
    none = ctypes.c_int(0), None, None
    assert not nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"refopt.cu", *none)
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
        kind = "ProgramLog" if failed else "PTX"
        assert not getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        assert not getattr(nvrtc, f"nvrtcGet{kind}")(program, text)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(text.value.decode())
    return text.value.decode()
