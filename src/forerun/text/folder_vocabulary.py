"""Reads the tokenizer of a Hugging Face folder: tokenizer.json and the small JSON files beside it.

tokenizer.json is taken as it is; what it leaves open (BOS, the ids that end a turn, the chat template) comes from
tokenizer_config.json, special_tokens_map.json, generation_config.json and chat_template.jinja.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from forerun.errors import ModelFileError, UnsupportedModel
from forerun.text.vocabulary import Vocabulary, end_ids


def read_folder_vocabulary(folder: Path) -> Vocabulary:
    """Build a Vocabulary from a folder that has a tokenizer.json.

    Raises ModelFileError when it is missing or broken, UnsupportedModel when it is neither byte-level nor
    SentencePiece BPE.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFileError(f"{folder} has no tokenizer.json; save the tokenizer in that form or use a GGUF file")
    description = _read_json(path)
    try:
        core = Tokenizer.from_file(str(path))
    except Exception as e:  # the library raises bare Exception
        raise ModelFileError(f"{path} is not a usable tokenizer ({e}); get the file again") from e
    core.no_padding()
    core.no_truncation()

    added = core.get_added_tokens_decoder()
    ids = core.get_vocab(with_added_tokens=True)
    texts = [""] * (max(ids.values(), default=-1) + 1)
    for text, i in ids.items():
        texts[i] = text
    control = frozenset(i for i, token in added.items() if token.special)

    config = _read_json(folder / "tokenizer_config.json")
    names = _read_json(folder / "special_tokens_map.json") | config
    generation = _read_json(folder / "generation_config.json")
    bos_id = ids.get(_token_text(names.get("bos_token")))
    eos = generation.get("eos_token_id")
    named_ends = [ids.get(_token_text(names.get("eos_token"))), *(eos if isinstance(eos, list) else [eos])]
    byte_level, leading_space = _decoding(description)
    return Vocabulary(
        core=core,
        texts=tuple(texts),
        control=control,
        literal=frozenset(added),
        byte_level=byte_level,
        leading_space=leading_space,
        bos_id=bos_id,
        eos_ids=end_ids(named_ends, tuple(texts), frozenset(added)),
        add_bos=bos_id is not None and _adds_bos(core, config, bos_id),
        chat_template=_chat_template(folder, config),
    )


def _decoding(description: dict[str, Any]) -> tuple[bool, bool]:
    """(byte-level?, leading space taken away?) from the decoder of a tokenizer.json."""
    decoder = description.get("decoder") or {}
    steps = {step["type"]: step for step in decoder.get("decoders", [decoder]) if "type" in step}
    if "ByteLevel" in steps:
        return True, False
    if "ByteFallback" in steps:
        strip = steps.get("Strip", {})
        return False, strip.get("content") == " " and strip.get("start", 0) > 0
    found = ", ".join(steps) or "none"
    raise UnsupportedModel(f"tokenizer.json decodes with {found}; forerun runs byte-level and byte-fallback BPE")


def _adds_bos(core: Tokenizer, config: dict[str, Any], bos_id: int) -> bool:
    """The configuration's word if it gives one, else what the tokenizer's own post-processor does."""
    said = config.get("add_bos_token")
    return said if isinstance(said, bool) else core.encode("").ids[:1] == [bos_id]


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # named templates; "default" is the one for chat
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    return template if isinstance(template, str) else None


def _token_text(entry: Any) -> str:
    """Text of a special token, written either plainly or as a description of an added token."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else ""


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ModelFileError(f"{path} cannot be read ({e}); get the file again") from e
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object; get the file again")
    return value
