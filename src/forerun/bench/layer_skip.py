"""`bench layer-skip`: which sub-layers may this model leave out when it drafts for itself?

The model reads a text once and its KV stays. For every set of sub-layers that speculation/layer_skip_search asks about,
a pass without them reads the same text as a drafter would: in runs of RUN tokens, each behind the model's KV, inside
the run behind its own. A run has one block to itself, so all of them are sequences of one batch.

    text        [ 0 .. 31 ][ 32 .. 63 ]                      blocks with the model's KV
    run 8..11   block 0 copied, slots 8..11 written anew     run 36..39   block 0, block 1 copied, slots 4..7 anew
"""

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forerun.backends.base import DraftProgram, ForwardResult, Limits, LoadedModel, ProgramSpec, Progress
from forerun.batch import Batch
from forerun.bench import corpus
from forerun.errors import UsageError
from forerun.llm import LLM, EngineOptions
from forerun.models import decoder
from forerun.speculation.layer_skip_search import Agreement, Budget, Found, Skip, search
from forerun.speculation.skip_profile import ModelIdentity, SkipProfile, sub_layers

RUN = 4  # tokens of one draft; divides every block size
ROWS = 128  # of one batch
NUM_LIKELIEST = 256  # tokens that the overlap of two distributions is summed over
KEEP_FIRST, KEEP_LAST = 2, 1  # layers that are never left out

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SkipWish:
    """How long and thoroughly to search.

    tokens            length of the text
    max_measurements  sets of sub-layers that are measured
    max_seconds       ends the search early; then a slower machine may find another set
    """

    tokens: int = 512
    seed: int = 0
    max_measurements: int = 400
    max_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.tokens < RUN or self.tokens % RUN:
            raise UsageError(f"tokens must be a multiple of {RUN}, got {self.tokens}")
        if self.max_measurements < 1 or not self.max_seconds > 0:
            raise UsageError("the search needs at least one measurement and more than zero seconds")


def search_profile(llm: LLM, wish: SkipWish, options: EngineOptions, progress: Progress) -> SkipProfile:
    """The best set of sub-layers to leave out of the loaded model. Restarts the engine. `progress` counts measurements.

    options  those the model was loaded with

    Raises UsageError when the text, the KV cache or the model is too small.
    """
    spec = llm.model.spec
    inner = range(KEEP_FIRST, spec.num_layers - KEEP_LAST)
    names = [name for name in sub_layers(spec.num_layers) if int(name.split(".")[1]) in inner]
    if not names:
        raise UsageError(f"a model of {spec.num_layers} layers has none to leave out: layer-skip needs at least 4")
    llm.reconfigure(speculation="off", options=options)  # KV is written behind the engine's back
    text = CalibrationText(llm, wish.tokens)
    total = _pass_bytes(llm, frozenset())
    sizes = {name: total - _pass_bytes(llm, frozenset([name])) for name in names}
    end = time.monotonic() + wish.max_seconds
    done = 0

    def measure(skip: Skip) -> Agreement:
        nonlocal done
        agreement = text.agreement(skip)
        done += 1
        progress(min(done, wish.max_measurements), wish.max_measurements)
        return agreement

    found = search(sizes, total, measure, wish.seed, Budget(wish.max_measurements, lambda: time.monotonic() > end))
    llm.reconfigure(speculation="off", options=options)
    if found is None:
        raise UsageError("the search ended before its first measurement: give it more seconds")
    return _profile(llm, wish, found)


def _pass_bytes(llm: LLM, skip: Skip) -> int:
    return llm.backend.pass_bytes(_pass_without(llm.model, skip, 1))


def _pass_without(model: LoadedModel, skip: Skip, max_len: int) -> ProgramSpec:
    return ProgramSpec(
        "layer-skip", model, lambda ops: decoder.logits(model.spec, ops, skip), Limits(ROWS, ROWS, max_len)
    )


def _profile(llm: LLM, wish: SkipWish, found: Found) -> SkipProfile:
    order = sub_layers(llm.model.spec.num_layers)
    return SkipProfile(
        model=ModelIdentity.of(llm.opened),
        skip=tuple(name for name in order if name in found.skip),
        same_token=found.agreement.same_token,
        overlap=found.agreement.overlap,
        cost=found.cost,
        speedup=found.speedup,
        depth=found.depth,
        origin={
            "text": f"{corpus.NAME}, {wish.tokens} tokens",
            "seed": str(wish.seed),
            "numerics_id": llm.numerics_id,
        },
    )


class CalibrationText:
    """A text whose KV the model has written, and what the model said after each token.

    Uses the whole KV store. Raises UsageError when the text or the KV cache is too short.
    """

    def __init__(self, llm: LLM, num_tokens: int) -> None:
        self._backend, self._model = llm.backend, llm.model
        self._block_size = llm.kv_layout.block_size
        text = llm.tokenizer.encode_prompt(corpus.text())
        longest = min(len(text), llm.max_model_len) // RUN * RUN
        if num_tokens > longest:
            raise UsageError(f"at most {longest} tokens of text can be read by this model, not {num_tokens}")
        self._text = np.array(text[:num_tokens], np.int32)
        self._blocks = -(-num_tokens // self._block_size)
        needed = self._blocks + num_tokens // RUN
        if needed > llm.kv_layout.num_blocks:
            wanted = needed * llm.kv_layout.bytes_per_block
            raise UsageError(
                f"{num_tokens} tokens of text need {wanted / 1e6:.0f} MB of KV cache but it has "
                f"{llm.kv_layout.total_bytes / 1e6:.0f} MB: raise --kv-cache-bytes or lower --tokens"
            )
        self._read()

    def agreement(self, skip: Skip) -> Agreement:
        """How often a pass without some sub-layers agrees with the model, over all tokens."""
        program = self._backend.add_program(_pass_without(self._model, skip, len(self._text)))
        return self.agreement_of(program)

    def agreement_of(self, program: DraftProgram) -> Agreement:
        """How often a pass agrees with the model, over all tokens. limits of its batches  at least ROWS"""
        same, overlap = 0, 0.0
        for batch in self._drafts():
            result = program.forward(batch)
            tokens, probs = self._tokens[batch.positions], self._probs[batch.positions]
            logits, log_total = _normalised(result, batch.num_rows)
            same += int((logits.argmax(axis=1) == tokens[:, 0]).sum())
            draft = np.exp(np.take_along_axis(logits, tokens, axis=1) - log_total)
            rest = np.minimum(1 - draft.sum(axis=1), 1 - probs.sum(axis=1))  # all other tokens as one
            overlap += float(np.minimum(draft, probs).sum(dtype=np.float64) + rest.clip(0).sum(dtype=np.float64))
        return Agreement(same / len(self._text), overlap / len(self._text))

    def _read(self) -> None:
        """Compute the text's KV, keep the likeliest tokens after each position, copy a block for every run."""
        count = min(NUM_LIKELIEST, self._model.spec.vocab_size)
        self._tokens = np.empty((len(self._text), count), np.int32)  # likeliest first
        self._probs = np.empty((len(self._text), count), np.float32)
        table = np.arange(self._blocks, dtype=np.int32)[None]
        whole = self._backend.add_program(_pass_without(self._model, frozenset(), len(self._text)))
        for start in range(0, len(self._text), ROWS):
            rows = np.arange(start, min(start + ROWS, len(self._text)), dtype=np.int32)
            result = whole.forward(self._batch(rows, rows, [start], table))
            self._tokens[rows] = result.top(range(len(rows)), count)
            logits, log_total = _normalised(result, len(rows))
            self._probs[rows] = np.exp(np.take_along_axis(logits, self._tokens[rows], axis=1) - log_total)
        starts = range(0, len(self._text), RUN)
        self._backend.copy_blocks([(start // self._block_size, self._own_block(start)) for start in starts])

    def _own_block(self, start: int) -> int:
        return self._blocks + start // RUN

    def _drafts(self) -> Iterator[Batch]:
        """All runs, in batches."""
        for first in range(0, len(self._text), ROWS):
            rows = np.arange(first, min(first + ROWS, len(self._text)), dtype=np.int32)
            starts = range(first, first + len(rows), RUN)
            table = np.full((len(starts), self._blocks), -1, np.int32)
            for index, start in enumerate(starts):
                last = start // self._block_size
                table[index, :last] = np.arange(last)
                table[index, last] = self._own_block(start)
            own = np.repeat(np.array([self._own_block(start) for start in starts], np.int32), RUN)
            yield self._batch(rows, own * np.int32(self._block_size) + rows % self._block_size, list(starts), table)

    def _batch(self, rows: Int32, slots: Int32, starts: Seq[int], table: Int32) -> Batch:
        """Rows at positions `rows`; a sequence begins at each of `starts`."""
        return Batch(
            tokens=self._text[rows],
            positions=rows,
            slots=slots.astype(np.int32),
            query_start=np.array([*(start - rows[0] for start in starts), len(rows)], np.int32),
            context_len=np.array(starts, np.int32),
            block_table=table,
            tree_root=np.full(len(starts), -1, np.int32),
            ancestors=np.zeros(len(rows), np.uint64),
            output_rows=np.arange(len(rows), dtype=np.int32),
            draws=(),
        )


def _normalised(result: ForwardResult, count: int) -> tuple[Float32, Float32]:
    """Logits [count, V] and the logarithm [count, 1] of the sum of their exponentials."""
    logits = result.logits(range(count))
    highest = logits.max(axis=1, keepdims=True)
    total: Float32 = np.log(np.exp(logits - highest).sum(axis=1, keepdims=True)) + highest
    return logits, total
