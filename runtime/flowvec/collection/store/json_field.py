"""A field of rows' metadata, as SQL: for filters, and for indexes that serve them."""

from __future__ import annotations

from dataclasses import dataclass

from flowvec.errors import InputValueError

__all__ = ["NO_NUL", "JsonField", "field_names", "key_of_path", "path_of"]

# What means something else in a filter, unless a backslash comes first.
_WORDS = ("and", "or", "not", "$and", "$or", "$not", "$id", "$text")

# SQLite cuts a text from JSON at a NUL, which is always escaped in JSON. In rows with a NUL, Python
# reads the text.
_NUL = "instr(metadata, '\\u0000')"
NO_NUL = f"{_NUL} = 0"


@dataclass(frozen=True, slots=True)
class JsonField:
    """Expressions over the column `metadata`.

    They hold the path as a text rather than a parameter: SQLite uses an index over an expression
    only where the same expression stands.

    Attributes:
        path: SQLite's JSON path, of `path_of`.
    """

    path: str

    @property
    def literal(self) -> str:
        """The path, as SQL writes a text."""
        return "'" + self.path.replace("'", "''") + "'"

    @property
    def value(self) -> str:
        """The field's value; NULL if it is missing or null."""
        return f"json_extract(metadata, {self.literal})"

    @property
    def type(self) -> str:
        """The type of its value; NULL if it is missing."""
        return f"json_type(metadata, {self.literal})"

    def has_type(self, test: str) -> str:
        """A test of its type that is never NULL, so that its negation is correct."""
        return f"coalesce({self.type}, '') {test}"

    @property
    def indexed(self) -> str:
        """What an index over the field holds: all that filters need, so that they read no row."""
        return f"{self.value}, {self.type}, {_NUL}"


def field_names(key: str) -> list[str]:
    """The names that lead to a field: dots lead inwards, a backslash makes a character literal."""
    names = [""]
    characters = iter(key)
    for character in characters:
        if character == ".":
            names.append("")
        elif character == "\\":
            names[-1] += next(characters, "")
        else:
            names[-1] += character
    return names


def path_of(key: str) -> str:
    """A filter's field as SQLite's JSON path, every name in quotes.

    Names with quotes, backslashes or control characters are stored escaped, and SQLite's paths
    reach them in some versions only: they are refused.

    Raises:
        InputValueError: it has such a name.
    """
    names = field_names(key)
    for name in names:
        plain = all(ord(c) >= 32 and c not in '"\\' and not 0xD800 <= ord(c) < 0xE000 for c in name)
        if not name or not plain:
            raise InputValueError(
                f"the field {key!r} cannot be filtered by: names must not be empty, nor hold "
                "quotes, backslashes or control characters"
            )
    return "$" + "".join(f'."{name}"' for name in names)


def key_of_path(path: str) -> str:
    """The field that `path_of` takes for a path."""
    names = path.removeprefix('$."').removesuffix('"').split('"."')
    key = ".".join(name.replace(".", "\\.") for name in names)
    return f"\\{key}" if key in _WORDS else key
