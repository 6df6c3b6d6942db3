"""Settings: a config that must be understood completely.

A family takes the values it knows, one by one, with their types checked. What is left over must be listed as harmless
or be off, otherwise the model is refused by key and value: an option that nobody read may change what is computed.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from forerun.errors import ModelFileError, UnsupportedModel

MAX_SIZE = 1 << 24  # no dimension of a real model comes near it
MAX_SHOWN = 60  # characters of a value in an error


class Settings:
    """Values under `prefix` of a mapping; `where` names the file in errors. A null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = {key[len(prefix) :]: value for key, value in values.items() if key.startswith(prefix)}
        self._prefix = prefix
        self.where = where
        self._taken: set[str] = set()

    def _take(self, key: str) -> Any:
        self._taken.add(key)
        return self._values.get(key)

    def _name(self, key: str) -> str:
        return f"{self.where}: {self._prefix}{key}"

    def has(self, key: str) -> bool:
        """True when the key is there and not null."""
        return self._values.get(key) is not None

    def integer(self, key: str, default: int | None = None, maximum: int = MAX_SIZE) -> int:
        """A whole number from 1 to `maximum`; a list (one entry a layer) must hold one value throughout."""
        value = self._take(key)
        if isinstance(value, list) and value:
            if any(entry != value[0] for entry in value):
                raise UnsupportedModel(
                    f"{self._name(key)} differs between layers; forerun needs one value for all layers"
                )
            value = value[0]
        if value is None:
            if default is None:
                raise ModelFileError(f"{self._name(key)} is missing; fetch the model again")
            return default
        if type(value) is not int or not 1 <= value <= maximum:
            raise ModelFileError(f"{self._name(key)} must be a whole number from 1 to {maximum}, got {_show(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._take(key)
        if value is None:
            if default is None:
                raise ModelFileError(f"{self._name(key)} is missing; fetch the model again")
            return default
        if type(value) not in (int, float) or not 0.0 < value < math.inf:
            raise ModelFileError(f"{self._name(key)} must be a finite number above 0, got {_show(value)}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self._take(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise ModelFileError(f"{self._name(key)} must be true or false, got {_show(value)}")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ModelFileError(f"{self._name(key)} must be a string, got {_show(value)}")
        return value

    def whole_numbers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers of at least 0, or None."""
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(entry) is int and entry >= 0 for entry in value) or not value:
            raise ModelFileError(f"{self._name(key)} must be a list of whole numbers, got {_show(value)}")
        return tuple(value)

    def choice(self, key: str, default: str, *allowed: str) -> str:
        """A string out of `allowed`."""
        value = self.text(key, default)
        if value not in allowed:
            wanted = ", ".join(allowed)
            raise UnsupportedModel(f"{self._name(key)} is {_show(value)}; forerun runs only models with {wanted}")
        return value

    def section(self, key: str) -> "Settings | None":
        """A nested object as Settings of its own, or None."""
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ModelFileError(f"{self._name(key)} must be an object, got {_show(value)}")
        return Settings(value, f"{self._name(key)}")

    def require(self, key: str, default: Any, *allowed: Any) -> None:
        """Refuse any value but the allowed ones; `default` stands in for an absent key."""
        value = self._take(key)
        value = default if value is None else value
        if not any(type(value) is type(other) and value == other for other in allowed):
            wanted = " or ".join(_show(other) for other in allowed)
            raise UnsupportedModel(f"{self._name(key)} is {_show(value)}; forerun runs only models with {wanted}")

    def refuse_rest(self, harmless: Iterable[str] = ()) -> None:
        """Refuse the first key that was neither taken nor is harmless nor off (null, false or an empty container)."""
        known = self._taken.union(harmless)
        for key, value in self._values.items():
            if key not in known and not (value is None or value is False or value in ("", [], {})):
                option = _show(self._prefix + key)  # quoted: a damaged file may have line breaks in it
                raise UnsupportedModel(
                    f"{self.where}: the option {option} is {_show(value)}, unknown to forerun; use another model"
                )


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
