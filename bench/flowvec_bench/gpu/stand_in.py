"""The CPU provider under the name of CUDA's, so that the steps can be tested without a GPU."""

from __future__ import annotations

from typing import Any

from flowvec.engine import bound_session, gpus, onnxruntime_session
from flowvec.engine.providers import CPU, CUDA

__all__ = ["SAID", "use_stand_in"]

SAID = (
    "STAND-IN: nothing here ran on a GPU. The CPU provider ran under the name of CUDA's, on a tiny "
    "model; figures only show that the steps work."
)


def use_stand_in() -> None:
    """Let this process run CUDA's engines on the CPU provider."""
    import onnxruntime

    class NamedCuda:
        """A session on the CPU provider, which gives the requested provider's name."""

        def __init__(self, *args: Any, providers: list[Any], **options: Any) -> None:
            first = providers[0]
            self._name = first if isinstance(first, str) else first[0]
            self._session = onnxruntime.InferenceSession(*args, providers=[CPU], **options)

        def get_providers(self) -> list[str]:
            return [self._name, CPU]

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

    class Named:
        """The module onnxruntime, with such sessions."""

        InferenceSession = NamedCuda

        def get_available_providers(self) -> list[str]:
            return [CUDA, CPU]

        def preload_dlls(self) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            return getattr(onnxruntime, name)

    named = Named()
    onnxruntime_session._onnxruntime = lambda: named
    bound_session._device_of = lambda engine: "cpu"
    gpus._installed_gpus = lambda: 1
