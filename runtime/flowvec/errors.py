"""Every error that flowvec raises on purpose.

Each derives from `FlowvecError` and from the builtin that a caller would expect (`ValueError`,
`TypeError`, ...), so `except ValueError` works as well as `except FlowvecError`. Errors of other
libraries are translated where they are called.
"""

from __future__ import annotations

__all__ = [
    "BulkError",
    "BundleError",
    "CacheError",
    "ClosedError",
    "CollectionBusyError",
    "CollectionError",
    "ConvertError",
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
    "OutOfMemoryError",
    "OverloadedError",
    "ProviderUnavailableError",
    "first_line",
]


def first_line(error: BaseException) -> str:
    """The first line of another library's message, or its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class FlowvecError(Exception):
    """The base class of flowvec's errors.

    >>> try:
    ...     Encoder.load("mini").encode(7)
    ... except FlowvecError as error:
    ...     print(type(error).__name__)
    InputTypeError
    """

    def __str__(self) -> str:
        # A message may be given in parts: see `spelled`.
        return "".join(map(str, self.args))


class InputTypeError(FlowvecError, TypeError):
    """An argument, or an item of it, has the wrong type. The message names the index.

    >>> Encoder.load("mini").encode(["a text", None])
    Traceback (most recent call last):
    flowvec.errors.InputTypeError: item 1 is NoneType, not str: nothing was encoded
    """


class InputValueError(FlowvecError, ValueError):
    """An argument has a value that is not valid. The message says which one and why.

    >>> Encoder.load("mini").encode(["a text"], truncate_dim=1000)
    Traceback (most recent call last):
    flowvec.errors.InputValueError: truncate_dim must be from 1 to 384, but is 1000
    """


class NonFiniteError(FlowvecError, ArithmeticError):
    """The model gave NaN or infinity for a text. The message names the texts.

    >>> Encoder.load("./damaged-bundle").encode(["fine", "nan"])
    Traceback (most recent call last):
    flowvec.errors.NonFiniteError: the model gave NaN or infinity for item 1
    """


class BundleError(FlowvecError, ValueError):
    """A bundle is missing or damaged, has an unknown format, or does not match its manifest.

    >>> Encoder.load("./no-such-bundle")
    Traceback (most recent call last):
    flowvec.errors.BundleError: ...
    """


class CacheError(FlowvecError, RuntimeError):
    """The folder that keeps exported bundles cannot be written. The message says what to do.

    >>> raise CacheError("cannot write to /cache: set FLOWVEC_CACHE to a folder with free space")
    Traceback (most recent call last):
    flowvec.errors.CacheError: cannot write to /cache: ...
    """


class MissingDependencyError(FlowvecError, ImportError):
    """A package of an extra is not installed. The message says how to install it.

    >>> raise MissingDependencyError('needs pyarrow: python -m pip install ".[files]"')
    Traceback (most recent call last):
    flowvec.errors.MissingDependencyError: needs pyarrow: python -m pip install ".[files]"
    """


class ProviderUnavailableError(FlowvecError, RuntimeError):
    """The requested provider or compute type cannot run on this machine.

    >>> Encoder.load("mini", provider="cpu", compute="int8")  # mini has no int8 variant
    Traceback (most recent call last):
    flowvec.errors.ProviderUnavailableError: ...
    """


class EngineNotProvedError(ProviderUnavailableError):
    """The engine's vectors are not the bundle's reference vectors on this machine.

    It is raised for an engine that was requested by name; `auto` skips such an engine.

        >>> try:
        ...     encoder = Encoder.load("mini", provider="cpu", proof="always")
        ... except EngineNotProvedError as error:
        ...     print(error.provider, "computes wrong vectors here:", error)

    Attributes:
        found: what the proof found; the message has advice after it.
        provider: full name of the engine's provider.
        compute: the engine's compute type.
    """

    def __init__(self, found: str, provider: str, compute: str, advice: str = "") -> None:
        """An error about one engine."""
        super().__init__(found, provider, compute, advice)
        self.found = found
        self.provider = provider
        self.compute = compute

    def __str__(self) -> str:
        return ". ".join(filter(None, (self.found, self.args[3])))


class EngineError(FlowvecError, RuntimeError):
    """The engine failed while it ran a batch. Out of memory is an `OutOfMemoryError`.

    >>> try:
    ...     vectors = Encoder.load("mini").encode(["a text"])
    ... except EngineError as error:
    ...     print("nothing was encoded:", error)
    """


class OutOfMemoryError(EngineError, MemoryError):
    """The engine's device has too little memory for a batch, or for the model.

    The message has the batch's shape. The next call works: only this batch was given up.

    >>> try:
    ...     vectors = Encoder.load("mini", max_batch_tokens=1 << 20).encode(["a text"])
    ... except OutOfMemoryError as error:
    ...     print("try a smaller max_batch_tokens:", error)
    """


class OverloadedError(FlowvecError, RuntimeError):
    """The queue is full; no text of this call was accepted.

    >>> with SharedEncoder(Encoder.load("mini"), max_waiting=1) as shared:
    ...     shared.encode(["one", "two"])
    Traceback (most recent call last):
    flowvec.errors.OverloadedError: ...
    """


class DeadlineError(FlowvecError, TimeoutError):
    """A call did not finish within its timeout. Its texts that had not started were dropped.

    >>> async def main() -> None:
    ...     async with AsyncEncoder(Encoder.load("mini")) as model:
    ...         await model.encode("a text", timeout=0.0)
    >>> asyncio.run(main())
    Traceback (most recent call last):
    flowvec.errors.DeadlineError: ...
    """


class ClosedError(FlowvecError, RuntimeError):
    """A model or a Collection was used after `close()`. The message names its class.

    >>> collection = Collection.create("closed", dim=2)
    >>> collection.close()
    >>> len(collection)
    Traceback (most recent call last):
    flowvec.errors.ClosedError: this Collection is closed
    """


class CollectionError(FlowvecError, RuntimeError):
    """A collection cannot be opened, created or written.

    >>> Collection.open("nothing-here")
    Traceback (most recent call last):
    flowvec.errors.CollectionError: ...nothing-here is not a collection: ...
    """


class CollectionBusyError(CollectionError, TimeoutError):
    """A change waited for its turn longer than `write_timeout`; nothing was changed.

    >>> with Collection.open_or_create("busy", dim=2) as first, first._access.writing():
    ...     Collection.open("busy", write_timeout=0).delete([1])
    Traceback (most recent call last):
    flowvec.errors.CollectionBusyError: ...busy is being written by ...
    """


class CorruptCollectionError(CollectionError):
    """Rows of a collection do not match their checksums, or its database is damaged.

    >>> Path("damaged").mkdir()
    >>> size = Path("damaged/collection.sqlite").write_text("these bytes are not a database")
    >>> Collection.open("damaged")
    Traceback (most recent call last):
    flowvec.errors.CorruptCollectionError: ...collection.sqlite is damaged: ...
    """


class BulkError(FlowvecError, RuntimeError):
    """A bulk job cannot start or continue. The message says what differs or is in the way.

    >>> from flowvec.bulk import encode_files
    >>> encode_files("mini", "no-such-file.txt", "vectors")
    Traceback (most recent call last):
    flowvec.errors.InputValueError: ...
    """


class ConvertError(FlowvecError, RuntimeError):
    """Vectors cannot be converted. The message says what is wrong with the source or the target.

    >>> from flowvec.convert import convert
    >>> convert("no-such-folder", "vectors.parquet", "parquet")
    Traceback (most recent call last):
    flowvec.errors.ConvertError: no-such-folder is neither the folder of a bulk job nor ...
    """


class FingerprintMismatchError(CollectionError, ValueError):
    """A collection's vectors were made by another model than the given one.

    >>> Collection.create("vectors-of-two", dim=2).close()
    >>> Collection.open("vectors-of-two", encoder=Encoder.load("mini"))
    Traceback (most recent call last):
    flowvec.errors.FingerprintMismatchError: ...their vectors cannot be compared
    """


class DivergedError(FlowvecError, ArithmeticError):
    """A fit became NaN or infinite.

    >>> try:
    ...     raise DivergedError("the loss is nan in epoch 3")  # as `flowvec_export.fit` does
    ... except ArithmeticError as error:
    ...     print("take a smaller learning rate:", error)
    take a smaller learning rate: the loss is nan in epoch 3
    """


class ExportError(FlowvecError, RuntimeError):
    """A checkpoint cannot be exported, or the exported graph differs from torch.

    >>> import flowvec_export
    >>> flowvec_export.export("./no-such-checkpoint", "bundle")
    Traceback (most recent call last):
    flowvec.errors.ExportError: ...
    """
