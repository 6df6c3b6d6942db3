"""Fill in the middle: the prompt that asks a model for what stands between two texts.

Source: Bavarian et al., arXiv:2207.14255; the order prefix, suffix, middle, which all of the families below were
trained on, spelled with their tokens.
"""

from dataclasses import dataclass

from forerun.text.tokenizer import Tokenizer

# (before the prefix, before the suffix, before the middle) by family.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SantaCoder, Granite
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)
# Tokens that end a middle beside the end of text: padding, and what would begin another file.
_ENDS = ("<|fim_pad|>", "<fim_pad>", "<|file_sep|>", "<|file_separator|>", "<file_sep>", "<|repo_name|>", "▁<EOT>")


@dataclass(frozen=True)
class Infill:
    """How one model is asked for a middle.

    prefix, suffix, middle  ids of the tokens that announce each
    ends                    ids that end a middle beside the model's own end of text
    """

    prefix: int
    suffix: int
    middle: int
    ends: tuple[int, ...]

    def prompt(self, tokenizer: Tokenizer, before: str, after: str) -> list[int]:
        """Token ids that ask for the text between `before` and `after`; no text in them is read as a control token."""
        bos = [tokenizer.bos_id] if tokenizer.bos_id is not None and tokenizer.adds_bos else []
        first, second = (tokenizer.encode(text, special=False) for text in (before, after))
        return [*bos, self.prefix, *first, self.suffix, *second, self.middle]


def find_infill(tokenizer: Tokenizer) -> Infill | None:
    """How this model fills in the middle, None when its vocabulary has no tokens for it."""
    for marks in _MARKS:
        prefix, suffix, middle = map(tokenizer.added_id, marks)
        if prefix is not None and suffix is not None and middle is not None:
            ends = [prefix, suffix, middle, *(tokenizer.added_id(text) for text in _ENDS)]
            return Infill(prefix, suffix, middle, tuple(token for token in ends if token is not None))
    return None
