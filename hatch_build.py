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


def build() -> list[Path]:
    """Compile the libraries with the C++ compiler that setuptools finds, and return their paths.

    HNSW_FLAGS are flags for the compiler and the linker, which come last.
    """
    try:
        built = [_build_hnsw()]
        if sys.platform != "win32":  # the encoder's sources are for gcc and clang
            built.append(_build_encoder())
    except Exception as error:
        sys.exit(
            f"flowvec's native libraries could not be compiled: {error}\n"
            "Install a C++17 compiler, such as g++ or clang++ (CXX names another), or a wheel of "
            "flowvec that was built on another machine."
        )
    return built


def _installed(made: Path, library: Path) -> Path:
    """Put a library beside its Python modules."""
    library.unlink(missing_ok=True)  # it may be in use
    library.write_bytes(made.read_bytes())
    library.chmod(0o755)
    return library


def _build_hnsw() -> Path:
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    class Build(build_ext):
        """A plain library: it does not use Python, so its name and symbols do not either."""

        def get_export_symbols(self, _: Extension) -> list[str]:
            """The sources mark them."""
            return []

        def get_ext_filename(self, _: str) -> str:
            """A name without a version of Python."""
            return NAME

    flags = os.environ.get("HNSW_FLAGS", "").split()
    if sys.platform == "win32":
        compiling, linking = ["/std:c++17", "/O2", "/EHsc", "/DNDEBUG"], []
    else:
        # -g0 and the prefix map keep the build's folder out of the library.
        compiling = [*FLAGS, "-pthread", "-g0"]
        compiling += [*QUIET, "-Wno-unused-function"]  # hnswlib.h has some
        compiling.append(f"-ffile-prefix-map={ROOT}=.")
        linking = ["-pthread", "-Wl,-s"] if sys.platform == "linux" and not flags else ["-pthread"]
    extension = Extension(
        "_hnsw",
        [SOURCE.relative_to(ROOT).as_posix()],
        language="c++",
        extra_compile_args=compiling + flags,
        extra_link_args=linking + flags,
    )
    command = Build(Distribution({"name": "flowvec", "ext_modules": [extension]}))
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            command.build_temp = temporary
            command.build_lib = str(Path(temporary) / "lib")
            command.ensure_finalized()
            command.run()
            return _installed(Path(command.build_lib) / NAME, LIBRARY)
    finally:
        os.chdir(before)


# Flags of the files of native/encoder that are of one kind of processors alone, and of newer ones.
ARM_FLAGS = {"set_neon.cpp": ["-march=armv8.2-a+dotprod"]}
ENCODER_FLAGS = {
    "set_avx2.cpp": ["-mavx2", "-mfma"],
    "set_avx512_vnni.cpp": [
        "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma",
        "-mprefer-vector-width=512",
    ],
}  # fmt: skip


def _build_encoder() -> Path:
    """Compile each file of native/encoder with its own flags."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / ENCODER_NAME

        class Build(build_ext):
            def build_extensions(self) -> None:
                # No contraction: products and sums are fused where the source says so, everywhere.
                flags = [*FLAGS, "-pthread", "-ffp-contract=off", "-g0"]
                flags.append(f"-ffile-prefix-map={ROOT}=.")
                flags += QUIET
                others = os.environ.get("HNSW_FLAGS", "").split()
                linking = ["-pthread"]
                if sys.platform == "linux" and not others:
                    linking.append("-Wl,-s")
                is_x86 = platform.machine().lower() in ("x86_64", "amd64")
                is_arm = platform.machine().lower() in ("aarch64", "arm64")
                own = (ENCODER_FLAGS if is_x86 else {}) | (ARM_FLAGS if is_arm else {})
                objects: list[str] = []
                for source in sorted((ROOT / "native" / "encoder").glob("*.cpp")):
                    if source.name in {*ENCODER_FLAGS, *ARM_FLAGS} - own.keys():
                        continue
                    objects += self.compiler.compile(
                        [str(source)],
                        output_dir=folder,
                        extra_postargs=[*flags, *own.get(source.name, []), *others],
                    )
                self.compiler.link_shared_object(
                    objects, str(made), extra_postargs=[*linking, *others], target_lang="c++"
                )

        extensions = [Extension("encoder", [])]
        command = Build(Distribution({"name": "encoder", "ext_modules": extensions}))
        command.build_temp = command.build_lib = folder
        command.ensure_finalized()
        command.run()
        return _installed(made, ENCODER)


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
