"""CUDA C++ compiled when it is first needed, by the NVRTC library that torch brings along.

Enters: a source file and its macros. Leaves: a kernel that takes tensors and numbers. Knows no
mathematics. Where the library is missing, `available()` says so and the caller does without.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

MAX_DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Kernel:
    """One function of a loaded module, on the device it was compiled for."""

    def __init__(self, function: ctypes.c_void_p, device: torch.device) -> None:
        self.function, self.device = function, device

    def allow_shared_memory(self, num_bytes: int) -> None:
        """More than 48 KB a program must be asked for."""
        _check(
            _driver().cuFuncSetAttribute(self.function, MAX_DYNAMIC_SHARED_MEMORY, num_bytes),
            "cuFuncSetAttribute",
        )

    def __call__(
        self,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[Tensor | int | float],
        shared_memory: int = 0,
    ) -> None:
        """On the current stream. Tensors go as pointers, int as int32, float as float32."""
        values = [_argument(x) for x in arguments]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        with torch.cuda.device(self.device):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            _check(
                _driver().cuLaunchKernel(
                    self.function, *grid, threads, 1, 1, shared_memory, stream, addresses, None
                ),
                "cuLaunchKernel",
            )


def available() -> bool:
    return torch.cuda.is_available() and _nvrtc() is not None


def compile_kernel(
    source: Path, macros: Sequence[tuple[str, int | str]], name: str, device: torch.device
) -> Kernel:
    """A function declared `extern "C"`, for the device that will run it."""
    major, minor = torch.cuda.get_device_capability(device)
    # "a": with the instructions of this very architecture, such as a warpgroup's products.
    options = [f"--gpu-architecture=sm_{major}{minor}a", "--std=c++17", f"-I{source.parent}"]
    options += [f"-D{macro}={value}" for macro, value in macros]
    binary = _compile(source.read_bytes(), source.name, options)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.device(device):
        _check(_driver().cuModuleLoadData(ctypes.byref(module), binary), "cuModuleLoadData")
        _check(
            _driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()),
            "cuModuleGetFunction",
        )
    return Kernel(function, device)


def _compile(source: bytes, name: str, options: list[str]) -> bytes:
    nvrtc = _nvrtc()
    assert nvrtc is not None
    program = ctypes.c_void_p()
    _check(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None),
        "nvrtcCreateProgram",
    )
    words = (ctypes.c_char_p * len(options))(*(word.encode() for word in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), words)
    size = ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{name} does not compile: {log.value.decode()}")
    _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
    binary = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetCUBIN(program, binary), "nvrtcGetCUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw


def _argument(x: Tensor | int | float) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float:
    if isinstance(x, Tensor):
        return ctypes.c_void_p(x.data_ptr())
    return ctypes.c_int(x) if isinstance(x, int) else ctypes.c_float(x)


def _check(status: int, call: str) -> None:
    if status:
        raise RuntimeError(f"{call} failed with {status}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _nvrtc() -> ctypes.CDLL | None:
    """torch's own copy, in its folder or in a wheel beside it, else the system's."""
    name = f"libnvrtc.so.{(torch.version.cuda or '').partition('.')[0]}"
    packages = Path(torch.__file__).parents[1]
    for path in (*packages.glob(f"nvidia/*/lib/{name}"), *packages.glob(f"torch/lib/{name}*")):
        for part in path.parent.glob("libnvrtc-builtins.so*"):  # which it looks for by name alone
            _library(str(part))
        if library := _library(str(path)):
            return library
    return _library(name)


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
