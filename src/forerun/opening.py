"""Opening what an LLM consists of: models that belong together with their tokenizers, and what computes them."""

from forerun.backends.base import Backend, LoadedModel
from forerun.errors import UnsupportedModel, UsageError
from forerun.models.hub import resolve
from forerun.models.registry import ModelFiles, open_model
from forerun.models.weights import trim_vocabulary
from forerun.options import EngineOptions
from forerun.profile import Profile
from forerun.speculation.host import OpenedModel
from forerun.text.tokenizer import Tokenizer


def open_for_drafting(reference: str) -> OpenedModel:
    """Another model beside the target. Raises ModelNotFound, ModelFileError, UnsupportedModel or DownloadError."""
    path = resolve(reference)
    files = open_model(path)
    tokenizer = load_tokenizer(files)
    model = trim_vocabulary(LoadedModel(files.spec, files.weights), tokenizer.vocab_size)
    return OpenedModel(str(path), model, tokenizer)


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a model's files. Raises UnsupportedModel when it has tokens that the model lacks."""
    tokenizer = Tokenizer.from_folder(files.folder) if files.folder else Tokenizer.from_gguf(files.metadata)
    if tokenizer.vocab_size > files.spec.vocab_size:
        raise UnsupportedModel(
            f"the tokenizer has {tokenizer.vocab_size} tokens but the model only {files.spec.vocab_size}: "
            "the files do not belong together"
        )
    return tokenizer


def open_backend(options: EngineOptions, threads: int | None, profile: Profile | None) -> Backend:
    """The backend that the options name, which has loaded nothing yet. Raises UsageError."""
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}")
    if options.backend == "reference":
        from forerun.backends.reference import ReferenceBackend

        return ReferenceBackend()
    if options.backend == "cpu":
        if profile is not None:
            from forerun.backends.profiled import ProfiledCpuBackend

            return ProfiledCpuBackend(profile, threads, options.isa, options.fault, options.weights)
        from forerun.backends.cpu import CpuBackend

        return CpuBackend(threads=threads, isa=options.isa, fault=options.fault, weights=options.weights)
    raise UsageError(f"unknown backend {options.backend!r}: choose cpu or reference")
