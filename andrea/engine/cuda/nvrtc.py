"""Kernel files to machine code: joined with their includes, compiled by NVRTC, kept in a cache.

Needs no GPU, so that every kernel is compiled for every card in tests. Machine code (cubin) and never PTX: a driver
older than the compiler refuses PTX. The cache key is the joined text, the options and the compiler's version. No line
table (with its paths) is asked for, so the same key gives the same operations everywhere; NVRTC 13.0 was seen to place those
of the largest float32 attention kernels in another order from one compilation to the next.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from andrea.errors import EngineError
from andrea.files import write_atomic

KERNELS = Path(__file__).resolve().parents[3] / "kernels"
ARCHITECTURES = (80, 86, 89, 90, 100, 120)
ACT = {"fp32": 0, "tf32": 0, "bf16": 1, "fp16": 2, "fp8": 1}  # the value of -DACT, see prelude.cuh
OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v")
INSTALL = (
    ".venv/bin/python -m pip install --require-hashes -r locks/cuda13.txt in the project's folder "
    "(locks/cuda12.txt for drivers older than 580)"
)

_INCLUDE = re.compile(r'^#include "([\w.]+)"[^\n]*\n', re.MULTILINE)
_RESOURCES = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True)
class Resources:
    """What ptxas says of one kernel: registers a thread, bytes of stack and of spilled registers."""

    registers: int
    stack: int
    spills: int


@dataclass(frozen=True)
class Cubin:
    """Compiled code of one file, the resources of each kernel in it and what the compiler said."""

    data: bytes
    resources: Mapping[str, Resources]
    log: str


def architecture(capability: tuple[int, int]) -> int:
    """The newest target of ours that runs on a card of this compute capability; EngineError below 8.0."""
    number = capability[0] * 10 + capability[1]
    fitting = [arch for arch in ARCHITECTURES if arch <= number and arch // 10 == number // 10]
    if not fitting:
        raise EngineError(
            "the card's compute capability must be 8.0 to 12.x (Ampere or newer)",
            got=f"{capability[0]}.{capability[1]}",
            fix='choose another card, or "engine": "cpu"',
        )
    return fitting[-1]


def target(arch: int) -> str:
    """The compiler's name of a target. Hopper's own instructions need the a; such code runs on 9.0 alone, which is all of 9."""
    return "sm_90a" if arch == 90 else f"sm_{arch}"


def source_text(name: str, root: Path = KERNELS) -> str:
    """The file with its `#include "..."` lines replaced by our files' text, each once; #line keeps messages true."""
    seen: set[str] = set()

    def join(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        text = (root / file).read_text(encoding="utf-8").replace("#pragma once\n", "\n")
        parts, position = [f'#line 1 "kernels/{file}"\n'], 0
        for match in _INCLUDE.finditer(text):
            line = text.count("\n", 0, match.end()) + 1
            parts += [text[position : match.start()], join(match[1]), f'#line {line} "kernels/{file}"\n']
            position = match.end()
        return "".join([*parts, text[position:]])

    return join(name)


def compile_file(name: str, arch: int, defines: Mapping[str, int | str]) -> Cubin:
    """Compile kernels/`name` for sm_`arch`. EngineError with the compiler's message when it does not compile."""
    options = [f"--gpu-architecture={target(arch)}", *OPTIONS, *(f"-D{key}={defines[key]}" for key in sorted(defines))]
    options += [f"-I{folder}" for folder in headers()]
    return _compile(source_text(name), f"kernels/{name}", tuple(options))


def cached_cubin(name: str, arch: int, defines: Mapping[str, int | str]) -> Path:
    """The path of the compiled file in the cache; compiled first when it is not there."""
    stated = [target(arch), *OPTIONS, *(f"{key}={defines[key]}" for key in sorted(defines)), str(version())]
    key = hashlib.sha256("\0".join([source_text(name), *stated]).encode()).hexdigest()
    path = cache_folder() / f"{Path(name).stem}-sm{arch}-{key[:32]}.cubin"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, compile_file(name, arch, defines).data)
    return path


@cache
def version() -> tuple[int, int]:
    """The compiler's version."""
    nvrtc = _nvrtc()
    code, major, minor = nvrtc.nvrtcVersion()
    assert int(code) == 0, f"nvrtcVersion: {code}"
    return int(major), int(minor)


def cache_folder() -> Path:
    named = os.environ.get("ANDREA_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "andrea"


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as cause:
        raise EngineError("the kernel compiler (NVRTC) must be installed", got=cause, fix=INSTALL) from cause
    return nvrtc


@cache
def headers() -> tuple[str, ...]:
    """Folders with cuda_fp16.h and its kin: the wheels', else a toolkit's."""
    import importlib.util

    spec = importlib.util.find_spec("nvidia")
    roots = [
        Path(p) / kit / "include"
        for p in (spec.submodule_search_locations or () if spec else ())
        for kit in ("cu13", "cuda_runtime")
    ]
    roots += [Path(os.environ.get("CUDA_PATH", "/usr/local/cuda")) / "include"]
    found = [folder for folder in roots if (folder / "cuda_bf16.h").is_file()]
    if not found:
        raise EngineError("CUDA's headers must be installed", got=f"none in {[str(r) for r in roots]}", fix=INSTALL)
    return (str(found[0]),)


def _compile(text: str, name: str, options: tuple[str, ...]) -> Cubin:
    nvrtc = _nvrtc()
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], [])
    try:
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace")
        if int(code) != 0:
            raise EngineError(f"{name} must compile with {' '.join(options[:1])}", got=log.strip("\0 \n"), fix=INSTALL)
        data = _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Cubin(data, _resources(log), log)


def _fetch(size: Any, get: Any, program: Any) -> bytes:
    _, length = size(program)
    data = bytes(length)
    get(program, data)  # writes into it, which only this binding may
    return data


def _resources(log: str) -> dict[str, Resources]:
    return {
        kernel: Resources(int(registers), int(stack), int(stores) + int(loads))
        for kernel, stack, stores, loads, registers in _RESOURCES.findall(log)
    }
