"""Every error that flowvec raises on purpose.

Each derives from `FlowvecError` and from the builtin that a caller would expect (`ValueError`,
`TypeError`, ...), so `except ValueError` works as well as `except FlowvecError`. Errors of other
libraries are translated where they are called.
"""

from __future__ import annotations

__all__ = [
    "BulkError",
    "BundleError",
    "ClosedError",
    "CollectionError",
    "CorruptCollectionError",
    "DeadlineError",
    "DivergedError",
    "EngineError",
    "EngineNotProvedError",
    "ExportError",
    "FingerprintMismatchError",
    "FlowvecError",
    "InputTypeError",
    "InputValueError",
    "MissingDependencyError",
    "NonFiniteError",
    "OverloadedError",
    "ProviderUnavailableError",
    "first_line",
]


def first_line(error: BaseException) -> str:
    """The first line of another library's message, or its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class FlowvecError(Exception):
    """The root of flowvec's errors."""


class InputTypeError(FlowvecError, TypeError):
    """An argument, or one item of it, is of the wrong type; the message names the index."""


class InputValueError(FlowvecError, ValueError):
    """An argument has a value that cannot be served; the message says which and why."""


class NonFiniteError(FlowvecError, ArithmeticError):
    """The model gave NaN or infinity for a text; the message names the rows."""


class BundleError(FlowvecError, ValueError):
    """A bundle is missing, damaged, of an unknown format, or not what its manifest says."""


class MissingDependencyError(FlowvecError, ImportError):
    """A package of an extra is not installed; the message is the pip line that installs it."""


class ProviderUnavailableError(FlowvecError, RuntimeError):
    """The execution provider or compute type that was asked for cannot run here."""


class EngineNotProvedError(ProviderUnavailableError):
    """The engine's vectors are not the bundle's reference vectors on this machine.

    Attributes:
        provider: full name of the engine's provider.
        compute: the engine's compute type.
    """

    def __init__(self, message: str, provider: str, compute: str) -> None:
        """Say what was found, and of which engine."""
        super().__init__(message, provider, compute)
        self.provider = provider
        self.compute = compute

    def __str__(self) -> str:
        return str(self.args[0])


class EngineError(FlowvecError, RuntimeError):
    """The engine failed while it ran a batch, for want of memory say."""


class OverloadedError(FlowvecError, RuntimeError):
    """More texts wait already than the queue may hold; nothing of this call was taken."""


class DeadlineError(FlowvecError, TimeoutError):
    """A call was not done within its timeout; what of it had not begun was dropped."""


class ClosedError(FlowvecError, RuntimeError):
    """The Encoder or Collection was used after `close()`."""


class CollectionError(FlowvecError, RuntimeError):
    """A collection cannot be opened, created or written."""


class CorruptCollectionError(CollectionError):
    """Rows of a collection do not match their checksums, or its database is damaged."""


class BulkError(FlowvecError, RuntimeError):
    """A bulk job cannot begin or go on; the message says what differs or stands in the way."""


class FingerprintMismatchError(CollectionError, ValueError):
    """A collection's vectors were made by another model than the one given."""


class DivergedError(FlowvecError, ArithmeticError):
    """A fit became NaN or infinite."""


class ExportError(FlowvecError, RuntimeError):
    """A checkpoint cannot be exported, or the exported graph missed parity."""
