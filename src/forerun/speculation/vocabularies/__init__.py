"""Draft programs whose token ids are not the target's: trimmed outputs, other tokenizers."""
