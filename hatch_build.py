"""Builds the native libraries into the wheel, or beside their Python modules.

They are native/hnsw.cpp and, where the compiler is gcc or clang, native/encoder.

`python hatch_build.py` builds them in a source tree that is used without an install.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "native" / "hnsw.cpp"
NAME = {"win32": "_hnsw.dll", "darwin": "_hnsw.dylib"}.get(sys.platform, "_hnsw.so")
LIBRARY = ROOT / "runtime" / "flowvec" / "hnsw" / NAME
ENCODER_NAME = NAME.replace("hnsw", "encoder")
ENCODER = ROOT / "runtime" / "flowvec" / "native" / ENCODER_NAME

# For gcc and clang.
FLAGS = ["-std=c++17", "-O3", "-DNDEBUG", "-fvisibility=hidden"]
# gcc warns of its own intrinsics.
QUIET = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]


# Flags of the files of native/encoder that are of one kind of processors alone, and of newer ones.
ARM_FLAGS = {"set_neon.cpp": ["-march=armv8.2-a+dotprod"]}
ENCODER_FLAGS = {
    "set_avx2.cpp": ["-mavx2", "-mfma"],
    "set_avx512_vnni.cpp": [
        "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma",
        "-mprefer-vector-width=512",
    ],
}  # fmt: skip


def build() -> list[Path]:
    """Compile the libraries with the C++ compiler that setuptools finds, and return their paths.

    HNSW_FLAGS are flags for the compiler and the linker, which come last.
    """
    builds = [_build_hnsw]
    if sys.platform != "win32":  # the encoder's sources are for gcc and clang
        builds.append(_build_encoder)
    try:
        with ThreadPoolExecutor() as pool:  # compilers are processes, and each takes long
            return [built.result() for built in [pool.submit(build) for build in builds]]
    except Exception as error:
        sys.exit(
            f"flowvec's native libraries could not be compiled: {error}\n"
            "Install a C++17 compiler, such as g++ or clang++ (CXX names another), or a wheel of "
            "flowvec that was built on another machine."
        )


def _build_hnsw() -> Path:
    if sys.platform == "win32":
        return _built({SOURCE: []}, ["/std:c++17", "/O2", "/EHsc", "/DNDEBUG"], LIBRARY)
    # hnswlib.h has functions that nobody calls.
    return _built({SOURCE: []}, [*FLAGS, *QUIET, "-Wno-unused-function"], LIBRARY)


def _build_encoder() -> Path:
    """Compile each file of native/encoder with its own flags."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    own = (ENCODER_FLAGS if is_x86 else {}) | (ARM_FLAGS if is_arm else {})
    sources = {
        source: own.get(source.name, [])
        for source in sorted((ROOT / "native" / "encoder").glob("*.cpp"))
        if source.name in own or source.name not in {*ENCODER_FLAGS, *ARM_FLAGS}
    }
    # No contraction: products and sums are fused where the source says so, everywhere.
    return _built(sources, [*FLAGS, *QUIET, "-ffp-contract=off"], ENCODER)


def _built(sources: dict[Path, list[str]], flags: list[str], library: Path) -> Path:
    """Compile sources, each with flags of its own, side by side, and put the library in its place.

    It is a plain library: it does not use Python, so its name and symbols do not either.
    """
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    others = os.environ.get("HNSW_FLAGS", "").split()
    linking: list[str] = []
    if sys.platform != "win32":
        # -g0 and the prefix map keep the build's folder out of the library.
        flags = [*flags, "-pthread", "-g0", f"-ffile-prefix-map={ROOT}=."]
        linking = ["-pthread", "-Wl,-s"] if sys.platform == "linux" and not others else ["-pthread"]

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / library.name

        class Build(build_ext):
            def build_extensions(self) -> None:
                def compiled(source: Path) -> list[str]:
                    named: list[str] = self.compiler.compile(
                        [str(source)],
                        output_dir=folder,
                        extra_postargs=[*flags, *sources[source], *others],
                    )
                    return named

                with ThreadPoolExecutor() as pool:
                    objects = [name for names in pool.map(compiled, sources) for name in names]
                self.compiler.link_shared_object(
                    objects, str(made), extra_postargs=[*linking, *others], target_lang="c++"
                )

        command = Build(Distribution({"name": "flowvec", "ext_modules": [Extension("none", [])]}))
        command.build_temp = command.build_lib = folder
        command.ensure_finalized()
        command.run()
        library.unlink(missing_ok=True)  # it may be in use
        library.write_bytes(made.read_bytes())
        library.chmod(0o755)
    return library


def is_stale() -> bool:
    """Whether a library is missing or older than its sources."""
    sources = [Path(__file__), *(ROOT / "native").rglob("*.h"), *(ROOT / "native").rglob("*.cpp")]
    newest = max(source.stat().st_mtime for source in sources)
    libraries = [LIBRARY] if sys.platform == "win32" else [LIBRARY, ENCODER]
    return any(not path.is_file() or path.stat().st_mtime < newest for path in libraries)


if __name__ == "__main__":
    print(*build(), sep="\n")
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    except ImportError:  # the tests use `build` alone
        pass
    else:

        class NativeLibrary(BuildHookInterface):
            """Hatch's hook: one wheel for each platform and all versions of Python."""

            def initialize(self, _: str, build_data: dict[str, Any]) -> None:
                """Build the libraries, and name the wheel after the platform."""
                libraries = build()
                platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{platform}"
                build_data["artifacts"] += [path.relative_to(ROOT).as_posix() for path in libraries]
