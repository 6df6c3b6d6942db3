"""`bench layer-skip`: which sub-layers may this model leave out when it drafts for itself?

The text is the model's own, because that is what drafts are made for: stretches of the corpus, each followed by as many
tokens that the model says next. (On other people's text a part agrees with the whole far less often.) Its KV stays. For
every set of sub-layers that speculation/layer_skip_search asks about, a pass without them reads the model's stretches
as a drafter would: in runs of RUN tokens, each behind the model's KV, inside the run behind its own. A run has one
block to itself, so all of them are sequences of one batch.

    text        [ corpus 0 .. 31 ][ own 32 .. 63 ][ corpus 64 .. 95 ]            blocks with the model's KV
    run 36..39  the first block, then a copy of the second, whose slots 36..39 are written anew
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
from forerun.sequence import SamplingParams
from forerun.speculation.drafting.layer_skip_search import Agreement, Budget, Found, Skip, search
from forerun.speculation.drafting.skip_profile import ModelIdentity, SkipProfile, sub_layers

STRETCH = 32  # tokens of the corpus, then as many of the model's own
RUN = 4  # tokens of one draft; divides STRETCH and every block size
ROWS = 128  # of one batch
NUM_LIKELIEST = 256  # tokens that the overlap of two distributions is summed over
KEEP_FIRST, KEEP_LAST = 2, 1  # layers that are never left out

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SkipWish:
    """How long and thoroughly to search.

    tokens            of the model's own text that are measured; the whole text is twice as long
    max_measurements  sets of sub-layers that are measured
    max_seconds       ends the search early; then a slower machine may find another set
    """

    tokens: int = 512
    seed: int = 0
    max_measurements: int = 400
    max_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.tokens < STRETCH or self.tokens % STRETCH:
            raise UsageError(f"tokens must be a multiple of {STRETCH}, got {self.tokens}")
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
            "text": f"{corpus.NAME} with the model's own continuations, {wish.tokens} tokens measured",
            "seed": str(wish.seed),
            "numerics_id": llm.numerics_id,
        },
    )


def own_text(llm: LLM, num_own: int) -> list[int]:
    """[2 num_own] tokens: stretches of the corpus, each continued by the model. num_own  a multiple of STRETCH

    Raises UsageError when corpus or context are too short.
    """
    source = llm.tokenizer.encode_prompt(corpus.text())
    longest = min(len(source), llm.max_model_len // 2) // STRETCH * STRETCH
    if num_own > longest:
        raise UsageError(f"at most {longest} tokens can be measured with this model, not {num_own}")
    params = SamplingParams(max_tokens=STRETCH, min_tokens=STRETCH, temperature=0.0)
    text: list[int] = []
    for start in range(0, num_own, STRETCH):
        text += source[start : start + STRETCH]
        text += llm.generate([text], params)[0].choices[0].token_ids
    return text


class CalibrationText:
    """A text whose KV the model has written, and what the model said after each token of its own stretches.

    Uses the whole KV store. Raises UsageError when the text or the KV cache is too short.

    num_own  tokens that are measured
    """

    def __init__(self, llm: LLM, num_own: int) -> None:
        self._backend, self._model = llm.backend, llm.model
        self._block_size = llm.kv_layout.block_size
        self._text: Int32 = np.array(own_text(llm, num_own), np.int32)
        length = 2 * num_own
        self._blocks = -(-length // self._block_size)
        needed = self._blocks + num_own // RUN
        if needed > llm.kv_layout.num_blocks:
            raise UsageError(
                f"{num_own} tokens need {needed * llm.kv_layout.bytes_per_block / 1e6:.0f} MB of KV cache but it has "
                f"{llm.kv_layout.total_bytes / 1e6:.0f} MB: raise --kv-cache-bytes or lower --tokens"
            )
        self._starts = [start for start in range(0, length, RUN) if start // STRETCH % 2 == 1]
        self._own_block = {start: self._blocks + index for index, start in enumerate(self._starts)}
        self._read()

    def agreement(self, skip: Skip) -> Agreement:
        """How often a pass without some sub-layers agrees with the model."""
        program = self._backend.add_program(_pass_without(self._model, skip, len(self._text)))
        return self.agreement_of(program)

    def agreement_of(self, program: DraftProgram) -> Agreement:
        """How often a pass agrees with the model. Its batches hold at least ROWS rows and outputs."""
        same, overlap = 0, 0.0
        for batch in self._drafts():
            logits, log_total = _normalised(program.forward(batch), batch.num_rows)
            tokens, probs = self._tokens[batch.positions], self._probs[batch.positions]
            same += int((logits.argmax(axis=1) == tokens[:, 0]).sum())
            draft = np.exp(np.take_along_axis(logits, tokens, axis=1) - log_total)
            rest = np.minimum(1 - draft.sum(axis=1), 1 - probs.sum(axis=1))  # all other tokens as one
            overlap += float(np.minimum(draft, probs).sum(dtype=np.float64) + rest.clip(0).sum(dtype=np.float64))
        count = RUN * len(self._starts)
        return Agreement(same / count, overlap / count)

    def _read(self) -> None:
        """Compute the text's KV, keep the likeliest tokens after each position, copy a block for every run."""
        count = min(NUM_LIKELIEST, self._model.spec.vocab_size)
        self._tokens = np.empty((len(self._text), count), np.int32)  # likeliest first
        self._probs = np.empty((len(self._text), count), np.float32)
        table = np.arange(self._blocks, dtype=np.int32)[None]
        whole = self._backend.add_program(_pass_without(self._model, frozenset(), len(self._text)))
        for start in range(0, len(self._text), ROWS):
            rows = np.arange(start, min(start + ROWS, len(self._text)), dtype=np.int32)
            result = whole.forward(self._batch(rows, rows, [0, len(rows)], table))
            self._tokens[rows] = result.top(range(len(rows)), count)
            logits, log_total = _normalised(result, len(rows))
            self._probs[rows] = np.exp(np.take_along_axis(logits, self._tokens[rows], axis=1) - log_total)
        self._backend.copy_blocks([(start // self._block_size, own) for start, own in self._own_block.items()])

    def _drafts(self) -> Iterator[Batch]:
        """All runs, in batches."""
        runs = ROWS // RUN
        for first in range(0, len(self._starts), runs):
            starts = self._starts[first : first + runs]
            table = np.full((len(starts), self._blocks), -1, np.int32)
            for index, start in enumerate(starts):
                last = start // self._block_size
                table[index, :last] = np.arange(last)
                table[index, last] = self._own_block[start]
            rows: Int32 = np.concatenate([np.arange(start, start + RUN, dtype=np.int32) for start in starts])
            own: Int32 = np.repeat(np.array([self._own_block[start] for start in starts], np.int32), RUN)
            slots: Int32 = own * np.int32(self._block_size) + rows % np.int32(self._block_size)
            yield self._batch(rows, slots, range(0, len(rows) + 1, RUN), table)

    def _batch(self, rows: Int32, slots: Int32, query_start: Seq[int], table: Int32) -> Batch:
        """Rows at positions `rows`, all of them outputs."""
        return Batch(
            tokens=self._text[rows],
            positions=rows,
            slots=slots,
            query_start=np.array(query_start, np.int32),
            context_len=rows[np.array(query_start[:-1])],
            block_table=table,
            tree_root=np.full(len(query_start) - 1, -1, np.int32),
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
