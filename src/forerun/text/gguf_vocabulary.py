"""Rebuilds a tokenizer from GGUF metadata, so that a model is one file.

Two kinds exist: "gpt2", byte-level BPE whose pre-tokenizer is named by tokenizer.ggml.pre, and "llama", SentencePiece
BPE, of which the file keeps scores instead of merges. Anything else is refused: a wrong split gives wrong ids and a
model that merely looks a little worse.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from forerun.errors import ModelFileError, UnsupportedModel
from forerun.text.vocabulary import Vocabulary, end_ids

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)

_GPT2_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ONE_DIGIT = r"\p{N}"
# The cl100k shape: contractions in any case, a word with one leading non-letter, digits in runs of at most three
# (Llama 3) or one by one (Qwen2), punctuation that keeps its line ends, line ends, spaces.
_CL100K_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Bpe:
    """How one tokenizer.ggml.pre splits text before byte-level BPE: regexes applied one after the other."""

    splits: tuple[str, ...]
    nfc: bool = False  # the original tokenizer composes Unicode first
    whole_words: bool = False  # a word that is a token is taken as it is, whatever the merges would give
    add_bos: bool = False  # unless the file says otherwise


_GPT2 = _Bpe((_GPT2_WORDS,))
_DIGITS_GPT2 = _Bpe((_ONE_DIGIT, _GPT2_WORDS))
_LLAMA3 = _Bpe((_CL100K_WORDS.replace("DIGITS", "{1,3}"),), whole_words=True, add_bos=True)

# Facts from the models' own tokenizer.json files; the names are those that GGUF converters write.
_BPE_KINDS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
    "refact": _DIGITS_GPT2,
    "command-r": _Bpe((_ONE_DIGIT, _GPT2_WORDS), nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _Bpe((_CL100K_WORDS.replace("DIGITS", ""),), nfc=True),
    "deepseek-coder": _Bpe((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", _ONE_DIGIT)),
}

_T = TypeVar("_T")


def read_gguf_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Build a Vocabulary from the tokenizer.* entries of a GGUF file (arrays as Python lists).

    Raises UnsupportedModel for a tokenizer or pre-tokenizer that forerun does not know, ModelFileError for entries
    that are missing or contradict each other.
    """
    kind = _required(metadata, "tokenizer.ggml.model", str)
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(f"tokenizer.ggml.model {kind!r} is not supported; forerun runs 'gpt2' and 'llama'")
    texts = tuple(_required(metadata, "tokenizer.ggml.tokens", list))
    if not all(isinstance(text, str) for text in texts):
        raise ModelFileError("tokenizer.ggml.tokens holds something else than texts; the file is damaged, get it again")
    types = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(texts)
    if len(types) != len(texts):
        raise ModelFileError(
            f"the file has {len(texts)} tokens but {len(types)} token types; it is damaged, get it again"
        )
    control = frozenset(i for i, t in enumerate(types) if t in (_CONTROL, _UNKNOWN) and texts[i])
    defined = frozenset(i for i, t in enumerate(types) if t == _USER_DEFINED and texts[i])

    if kind == "gpt2":
        core, add_bos = _byte_level_bpe(metadata, texts)
    else:
        core, add_bos = _sentencepiece_bpe(metadata, texts, types), True
    core.add_special_tokens([AddedToken(texts[i], special=True, normalized=False) for i in sorted(control)])
    core.add_tokens([AddedToken(texts[i], normalized=False) for i in sorted(defined)])

    sentencepiece = kind == "llama"
    bos_id = _token_id(metadata, "bos", len(texts), default=1 if sentencepiece else None)
    named_ends = [
        _token_id(metadata, "eos", len(texts), default=2 if sentencepiece else None),
        _token_id(metadata, "eot", len(texts)),
        _token_id(metadata, "eom", len(texts)),
    ]
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos))
    if add_bos and bos_id is None:
        raise ModelFileError("the file asks for a BOS token but has no tokenizer.ggml.bos_token_id; convert it again")
    return Vocabulary(
        core=core,
        texts=texts,
        control=control,
        literal=control | defined,
        byte_level=not sentencepiece,
        leading_space=sentencepiece and _space_prefix(metadata),
        bos_id=bos_id,
        eos_ids=end_ids(named_ends, texts, control | defined),
        add_bos=add_bos,
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _byte_level_bpe(metadata: Mapping[str, Any], texts: tuple[str, ...]) -> tuple[Tokenizer, bool]:
    """Encoder of a "gpt2" vocabulary, and whether its kind adds BOS by default."""
    name = metadata.get("tokenizer.ggml.pre")
    if name not in _BPE_KINDS:
        known = ", ".join(_BPE_KINDS)
        raise UnsupportedModel(f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; known: {known}")
    bpe = _BPE_KINDS[name]
    merges = [tuple(m.split(" ")) for m in _required(metadata, "tokenizer.ggml.merges", list)]
    vocab = {text: i for i, text in enumerate(texts)}
    core = Tokenizer(_bpe_model(vocab, merges, ignore_merges=bpe.whole_words))
    if bpe.nfc:
        core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in bpe.splits]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return core, bpe.add_bos


def _sentencepiece_bpe(metadata: Mapping[str, Any], texts: tuple[str, ...], types: list[int]) -> Tokenizer:
    """Encoder of a "llama" vocabulary: no pre-tokenizer, spaces written as U+2581, bytes for unknown characters."""
    if metadata.get("tokenizer.ggml.remove_extra_whitespaces"):
        raise UnsupportedModel(
            "tokenizer.ggml.remove_extra_whitespaces is not supported for 'llama' tokenizers; use its tokenizer.json"
        )
    scores = _required(metadata, "tokenizer.ggml.scores", list)
    if len(scores) != len(texts):
        raise ModelFileError(f"the file has {len(texts)} tokens but {len(scores)} scores; it is damaged, get it again")
    has_bytes = _BYTE in types
    unknown = next((text for text, t in zip(texts, types, strict=True) if t == _UNKNOWN), None)
    if unknown is None and not has_bytes:
        raise ModelFileError("the tokenizer has neither byte tokens nor an unknown token; convert the model again")
    vocab = {text: i for i, text in enumerate(texts)}
    merges = _merges_from_scores(texts, types, scores)
    core = Tokenizer(_bpe_model(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes))
    escape = normalizers.Replace(" ", "▁")
    # Prepend acts on every stretch of text between control tokens, as SentencePiece encodes each of them on its own.
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), escape]) if _space_prefix(metadata) else escape
    return core


def _merges_from_scores(texts: tuple[str, ...], types: list[int], scores: list[float]) -> list[tuple[str, ...]]:
    """Merges, first to last, that make BPE join the pairs that SentencePiece would join.

    SentencePiece joins the neighbours whose concatenation is the token of the highest score; so every way to cut a
    token into two tokens is a merge, in the order of the scores. Cuts of one token have equal rank there (the leftmost
    pair in the text is joined first); here the cut whose left part has the lower id goes first.
    """
    pieces = {text: i for i, text in enumerate(texts) if types[i] in (_NORMAL, _USER_DEFINED)}
    merges: list[tuple[str, ...]] = []
    for text in sorted(pieces, key=lambda text: (-scores[pieces[text]], pieces[text])):
        cuts = [(text[:k], text[k:]) for k in range(1, len(text)) if text[:k] in pieces and text[k:] in pieces]
        merges += sorted(cuts, key=lambda cut: (pieces[cut[0]], pieces[cut[1]]))
    return merges


def _bpe_model(vocab: dict[str, int], merges: list[tuple[str, ...]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)  # type: ignore[arg-type]
    except Exception as e:  # the library raises bare Exception for a merge of tokens that do not exist
        why = str(e).partition("\n")[0]
        raise ModelFileError(f"the merges do not fit the tokens ({why}); the file is damaged, get it again") from e


def _space_prefix(metadata: Mapping[str, Any]) -> bool:
    return bool(metadata.get("tokenizer.ggml.add_space_prefix", True))


def _required(metadata: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    value = metadata.get(key)
    if not isinstance(value, kind):
        raise ModelFileError(f"the file has no usable {key}; convert the model again with its tokenizer")
    return value


def _token_id(metadata: Mapping[str, Any], name: str, vocab_size: int, default: int | None = None) -> int | None:
    """tokenizer.ggml.<name>_token_id, checked against the vocabulary."""
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is None:
        return default if default is not None and default < vocab_size else None
    if not isinstance(value, int) or not 0 <= value < vocab_size:
        raise ModelFileError(
            f"{name}_token_id {value} is outside the vocabulary of {vocab_size}; convert the model again"
        )
    return int(value)
