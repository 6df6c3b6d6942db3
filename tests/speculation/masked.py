"""A grammar for models with any vocabulary, and a loaded engine's answers under it."""

from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np

from forerun.llm import LLM
from forerun.sequence import SamplingParams


class Residues:
    """Behind a token of residue r modulo 3 one of residue r + 1 must follow, behind the prompt one of residue 0."""

    def __init__(self, vocab_size: int, state: int = 0) -> None:
        self._vocab_size, self._state = vocab_size, state

    def allowed(self) -> np.ndarray:
        bits = np.zeros(-(-self._vocab_size // 32) * 32, np.uint8)
        bits[self._state : self._vocab_size : 3] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def advance(self, token: int) -> None:
        if token % 3 != self._state:
            raise ValueError(f"{token} is not allowed in state {self._state}")
        self._state = (token + 1) % 3

    def fork(self) -> "Residues":
        return Residues(self._vocab_size, self._state)


def masked_answers(llm: LLM, prompts: Seq[list[int]], params: SamplingParams) -> list[tuple[list[int], list[bytes]]]:
    """Tokens and hashes of logits of each prompt's answer under Residues."""
    size = llm.model.spec.vocab_size
    sequences = [
        llm.engine.add(replace(llm._request(index, prompt, params, ""), make_token_mask=lambda: Residues(size)))[0]
        for index, prompt in enumerate(prompts)
    ]
    while llm.engine.has_work:
        llm.engine.step()
    assert not any(sequence.error for sequence in sequences)
    for sequence in sequences:
        assert [token % 3 for token in sequence.output] == [i % 3 for i in range(sequence.num_output)]
    return [(sequence.output, sequence.logits_hashes) for sequence in sequences]
