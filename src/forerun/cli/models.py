"""`forerun models`: list what can be run, fetch it, and show what it is."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from forerun.cli.console import print_json, progress, stdout

app = typer.Typer(help="List, fetch and show models.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Reference = Annotated[str, typer.Argument(metavar="MODEL", help="A path, an alias, or a hub repository.")]


@dataclass(frozen=True)
class Listed:
    """One line of the list."""

    name: str  # what `--model` takes
    default: bool
    path: str | None  # None: not on this machine
    size_bytes: int | None
    licence: str | None
    source: str
    note: str | None


@app.callback(invoke_without_command=True)
def _models(context: typer.Context, json: Json = False) -> None:
    if context.invoked_subcommand is None:
        list_models(json)


@app.command("list")
def list_models(json: Json = False) -> None:
    """List the aliases and the models on this machine."""
    listed = list(_listed())
    if json:
        print_json({"models": [asdict(entry) for entry in listed]})
        return
    from rich.table import Table

    from forerun.models.aliases import cache_folder
    from forerun.models.download import megabytes

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("MODEL", no_wrap=True)
    table.add_column("ON DISK", justify="right", no_wrap=True)
    for heading in ("LICENCE", "WHAT", "FROM"):
        table.add_column(heading, overflow="fold")
    for entry in listed:
        name = f"{entry.name} (default)" if entry.default else entry.name
        size = "-" if entry.size_bytes is None else megabytes(entry.size_bytes)
        table.add_row(name, size, entry.licence or "", entry.note or "", entry.source.partition(":")[0])
    console = stdout()
    console.print(table)
    console.print(f"\nDownloaded models lie in {cache_folder() / 'models'}", style="dim", soft_wrap=True, markup=False)


def _listed() -> Iterator[Listed]:
    from forerun.models.aliases import DEFAULT_MODEL, load_aliases
    from forerun.models.cached import ModelFolder, gguf_groups, stored_bytes
    from forerun.models.hub import cached_path

    seen: set[Path] = set()
    for name, alias in load_aliases().items():
        path = cached_path(alias)
        size = None if path is None else stored_bytes(path)
        seen |= set() if path is None else {path}
        shown = None if path is None else str(path)
        yield Listed(name, name == DEFAULT_MODEL, shown, size, alias.licence, alias.source, alias.note)
    for folder in ModelFolder.all():
        if folder.is_snapshot():
            found = {folder.root: folder.source}
        else:
            found = {
                folder.root / parts[0]: f"{folder.source}:{key}" for key, parts in gguf_groups(folder.files()).items()
            }
        for path, name in found.items():
            if path not in seen:
                # A pinned revision cannot be written as a reference, its path can.
                reference = str(path) if "@" in folder.source else name
                yield Listed(reference, False, str(path), stored_bytes(path), None, folder.source, None)


@app.command("pull")
def pull(model: Reference, json: Json = False) -> None:
    """Fetch a model, unless it is here already, and say where it lies."""
    from forerun.models.cached import stored_bytes
    from forerun.models.download import megabytes
    from forerun.models.hub import resolve

    with progress(f"Fetching {model}") as report:
        path = resolve(model, progress=report)
    size = stored_bytes(path)
    if json:
        print_json({"name": model, "path": str(path), "size_bytes": size})
    else:
        print(f"{model}: {megabytes(size)} in {path}")


@app.command("show")
def show(model: Reference, json: Json = False) -> None:
    """Show a model's architecture, sizes, context, KV bytes per token and licence. It must be on this machine."""
    facts = _facts(model)
    if json:
        print_json(facts)
        return
    from rich.table import Table

    from forerun.models.download import megabytes

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{count} {name}" for name, count in value.items()) + " tensors"
        elif key in ("size_bytes", "kv_bytes_per_token"):
            value = megabytes(value) if key == "size_bytes" else f"{value:,} bytes in bf16"
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        label = key.removesuffix("_bytes").replace("kv_bytes", "KV bytes").replace("_", " ")
        table.add_row(label, "unknown" if value is None else str(value))
    stdout().print(table, markup=False)


def _facts(model: str) -> dict[str, Any]:
    """What `show` prints, as JSON values."""
    from forerun.cache.layout import KvStack
    from forerun.models.aliases import load_aliases
    from forerun.models.hub import resolve
    from forerun.models.registry import open_model

    path = resolve(model, offline=True)
    files = open_model(path)
    spec = files.spec
    attention, mlp = spec.layers[0].mixer, spec.layers[0].mlp
    stack = KvStack("target", spec.num_layers, attention.num_kv_heads, attention.head_dim, "bf16")
    alias = load_aliases().get(model)
    facts = {
        "name": files.name,
        "family": spec.family,
        "layers": spec.num_layers,
        "hidden": spec.hidden,
        "heads": attention.num_heads,
        "kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "intermediate": mlp.intermediate,
        "vocabulary": spec.vocab_size,
        "tied_embeddings": spec.tied_embeddings,
        "context": spec.max_context,
        "kv_bytes_per_token": stack.bytes_per_token,
        "size_bytes": files.size_bytes,
        "formats": dict(files.formats),
        "licence": files.licence or (alias.licence if alias else None),
        "path": str(path),
    }
    return facts | {key: value for key, value in spec.extra.items() if key not in facts}
