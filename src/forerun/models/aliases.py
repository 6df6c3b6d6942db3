"""Short names of models and the folders that forerun keeps: what `resolve` in models/hub starts from.

The package's own list is aliases.toml beside this file; a user's list is models.toml in the config folder. A user's
entry replaces the package's entry of the same name as a whole.
"""

import os
import re
import tomllib
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from forerun.errors import UsageError

DEFAULT_MODEL = "smollm2-135m"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Alias:
    """One entry of an alias file; aliases.toml explains the fields."""

    name: str
    hub: str | None = None
    revision: str | None = None
    file: str | None = None
    wheel: str | None = None
    wheel_file: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    path: str | None = None
    licence: str | None = None
    note: str | None = None

    @property
    def source(self) -> str:
        """Where the model comes from, for people."""
        if self.path is not None:
            return self.path
        if self.hub is not None:
            return f"{self.hub}:{self.file}" if self.file else self.hub
        return str(self.wheel)


def config_folder() -> Path:
    """Folder of the user's settings: $FORERUN_HOME, else $XDG_CONFIG_HOME/forerun, else ~/.config/forerun."""
    return _folder("FORERUN_HOME", "XDG_CONFIG_HOME", ".config")


def cache_folder() -> Path:
    """Folder of downloaded models: $FORERUN_CACHE, else $XDG_CACHE_HOME/forerun, else ~/.cache/forerun."""
    return _folder("FORERUN_CACHE", "XDG_CACHE_HOME", ".cache")


def _folder(own: str, xdg: str, fallback: str) -> Path:
    try:
        if own_folder := os.environ.get(own):
            return Path(own_folder).expanduser().absolute()
        base = os.environ.get(xdg, "")
        # The XDG specification tells programs to ignore a relative path.
        return (Path(base) if os.path.isabs(base) else Path.home() / fallback) / "forerun"
    except RuntimeError:
        raise UsageError(f"the home folder is unknown: set {own} to a folder that forerun may use") from None


def load_aliases() -> dict[str, Alias]:
    """All aliases by name: the package's, then the user's.

    Raises UsageError when the user's file is malformed, naming the file and the entry.
    """
    text = resources.files("forerun.models").joinpath("aliases.toml").read_text(encoding="utf-8")
    aliases = _parse(text, "aliases.toml", Path())
    path = config_folder() / "models.toml"
    try:
        aliases |= _parse(path.read_text(encoding="utf-8"), str(path), path.parent)
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the alias file {path}: {error}; mend or remove it") from None
    return aliases


def _parse(text: str, where: str, folder: Path) -> dict[str, Alias]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where} is not valid TOML: {error}") from None
    return {name: _parse_entry(name, entry, where, folder) for name, entry in document.items()}


def _parse_entry(name: str, entry: Any, where: str, folder: Path) -> Alias:
    def refuse(problem: str) -> UsageError:
        return UsageError(f"{where}: alias {name!r} {problem}")

    if not isinstance(entry, dict):
        raise refuse(f'must be a table: write [{name}] and below it, for example, hub = "organisation/model"')
    if not _NAME.fullmatch(name):
        raise refuse("has a name that is not made of letters, digits, '.', '-' and '_'")
    known = {field.name for field in fields(Alias)} - {"name"}
    for key, value in entry.items():
        if key not in known:
            hint = " (quote a name that has dots)" if isinstance(value, dict) else ""
            raise refuse(f"has the unknown key {key!r}{hint}: choose from {', '.join(sorted(known))}")
        want = int if key == "size_bytes" else str
        if not isinstance(value, want) or isinstance(value, bool) or not value:
            raise refuse(f"needs a {'whole number' if want is int else 'text'} for {key!r}")
    alias = Alias(name=name, **entry)
    if (alias.path is None) == (alias.hub is None and alias.wheel is None):
        raise refuse("needs either a path, or a hub repository or wheel")
    if alias.wheel is not None and not (alias.wheel_file and alias.file and alias.sha256 and alias.size_bytes):
        raise refuse("with a wheel also needs wheel_file, file, sha256 and size_bytes")
    if alias.sha256 is not None and not (_SHA256.fullmatch(alias.sha256) and alias.file):
        raise refuse("needs 64 lower-case hexadecimal digits for 'sha256', and the 'file' that has this hash")
    if alias.path is not None:
        return Alias(**{**entry, "name": name, "path": str(folder / Path(alias.path).expanduser())})
    return alias
