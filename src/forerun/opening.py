"""Opening models that belong together with their tokenizers."""

from forerun.backends.base import LoadedModel
from forerun.errors import UnsupportedModel
from forerun.models.hub import resolve
from forerun.models.registry import ModelFiles, open_model
from forerun.models.weights import trim_vocabulary
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
