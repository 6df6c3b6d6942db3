"""Rig: a loaded model whose KV cache is full of something, and batches made by hand to run on it.

Kernels take as long whatever the values are, so the KV cache is filled by computing one short text and copying its
blocks everywhere: every sequence reads memory of its own, as in service. Physical blocks, b a sequence's blocks:

    chain    0 .. b-1    one sequence: chains of rows, prefill chunks
    lanes    b .. end    many sequences of one row each; how many blocks a lane has depends on the context
"""

from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np

from forerun.backends.cpu import CpuBackend
from forerun.batch import Batch, DrawRequest
from forerun.bench import corpus
from forerun.cache.layout import KvStack
from forerun.errors import UsageError
from forerun.llm import LLM
from forerun.models.spec import ModelSpec
from forerun.sampling.walk import hash_row
from forerun.speculation.tree import DraftTree

CONTEXTS = (128, 2048, 8192)
MAX_CHAIN = 64  # rows of the longest chain
PREFILL = 512
SEED_BLOCKS = 8  # computed; all others are copies
MANY_LANES = 16  # sequences at the longest context
KV_BYTES = 4 << 30  # at most, for those


def wanted_kv_bytes(spec: ModelSpec, codec: str, block_size: int, quick: bool) -> int:
    """KV memory for one sequence of full length and for many at every context, as far as KV_BYTES allow."""
    mixer = spec.layers[0].mixer
    per_token = KvStack("target", spec.num_layers, mixer.num_kv_heads, mixer.head_dim, codec).bytes_per_token
    one = min(spec.max_context, CONTEXTS[-1])
    step = SEED_BLOCKS * block_size  # lanes are a multiple of it
    lanes = MAX_CHAIN * (CONTEXTS[0] // step + 1) * step
    if not quick:
        lanes = max(lanes, min(MANY_LANES * (one // step + 1) * step, KV_BYTES // per_token - one))
    return per_token * (-(-one // block_size) * block_size + lanes)


class Rig:
    """Batches and KV of a loaded model. Uses the whole KV store: the model must have no running requests.

    Raises UsageError for a backend without timed kernels and for a KV cache that is too small.
    """

    def __init__(self, llm: LLM) -> None:
        if not isinstance(llm.backend, CpuBackend):
            raise UsageError("only the cpu backend has kernels to measure: leave --backend out")
        self.backend = llm.backend
        self.max_len = llm.max_model_len
        self.block_size = llm.kv_layout.block_size
        self.bytes_per_token = llm.kv_layout.bytes_per_block // self.block_size
        self._chain_blocks = -(-self.max_len // self.block_size)
        self._num_blocks = llm.kv_layout.num_blocks
        self._vocab_size = llm.model.spec.vocab_size
        if self._num_blocks < self._chain_blocks:
            raise UsageError("the KV cache holds no sequence of full length: raise --kv-cache-bytes")
        self._text = np.array(llm.tokenizer.encode(corpus.text()), np.int32)
        self._seeds = min(SEED_BLOCKS, self._chain_blocks)
        self._fill_chain()

    # ---- what fits ----

    def start(self, context: int, rows: int) -> int:
        """First position of `rows` rows at a context, so that the last still fits the model."""
        return min(context, self.max_len - max(rows, MAX_CHAIN))

    def contexts(self, quick: bool) -> list[int]:
        """Contexts that this model and KV cache have; the shortest alone when quick."""
        fitting = [context for context in CONTEXTS if context <= self.max_len]
        if not fitting:
            raise UsageError(f"contexts begin at {CONTEXTS[0]} tokens but the model holds {self.max_len}")
        return fitting[:1] if quick else fitting

    def max_lanes(self, context: int) -> int:
        """Sequences of one row each that fit at a context."""
        return (self._num_blocks - self._chain_blocks) // self._lane_blocks(context)

    # ---- batches ----

    def chain(self, start: int, rows: int, *, last_only: bool = False) -> Batch:
        """`rows` rows of one sequence behind `start` tokens; logits of all, or of the last as in prefill."""
        blocks = np.arange(self._chain_blocks, dtype=np.int32)
        return self._batch([(start, rows)], [blocks], last_only)

    def lanes(self, context: int, count: int) -> Batch:
        """`count` sequences of one row each behind the start of `context`."""
        length = self._lane_blocks(context)
        tables = [self._chain_blocks + lane * length + np.arange(length, dtype=np.int32) for lane in range(count)]
        return self._batch([(self.start(context, 1), 1)] * count, tables, False)

    def drawing(self, batch: Batch, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> Batch:
        """The batch with a draw for each of its output rows."""
        draws = tuple(
            DrawRequest(
                first_output=output,
                tree=DraftTree.root_only(int(batch.tokens[row])),
                position=int(batch.positions[row]) + 1,
                key=(output, 1),
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
            )
            for output, row in enumerate(batch.output_rows)
        )
        return replace(batch, draws=draws)

    def hashes(self, batch: Batch) -> list[bytes]:
        """Run a batch and hash each output row's logits."""
        result = self.backend.forward(batch)
        return [hash_row(result.view[output]) for output in range(len(batch.output_rows))]

    # ---- KV ----

    def fill_lanes(self, context: int) -> None:
        """Give all lanes of a context the same KV, whatever ran before."""
        used = self.max_lanes(context) * self._lane_blocks(context)
        first = self._chain_blocks
        self.backend.copy_blocks([(index % self._seeds, first + index) for index in range(used)])

    def _lane_blocks(self, context: int) -> int:
        """A multiple of SEED_BLOCKS, so that logical block j of every lane is a copy of the same block."""
        return (self.start(context, 1) // self.block_size // SEED_BLOCKS + 1) * SEED_BLOCKS

    def _fill_chain(self) -> None:
        self.backend.forward(self.chain(0, min(self._seeds * self.block_size, self.max_len), last_only=True))
        self.backend.copy_blocks([(block % self._seeds, block) for block in range(self._seeds, self._chain_blocks)])

    def _batch(self, runs: Seq[tuple[int, int]], tables: Seq[np.ndarray], last_only: bool) -> Batch:
        starts, counts = np.array([run[0] for run in runs]), np.array([run[1] for run in runs])
        query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        owner = np.repeat(np.arange(len(runs)), counts)
        positions = np.concatenate([np.arange(start, start + count) for start, count in runs]).astype(np.int32)
        table = np.stack(tables).astype(np.int32)
        rows = np.arange(len(positions), dtype=np.int32)
        return Batch(
            tokens=self._text[positions % len(self._text)],
            positions=positions,
            slots=table[owner, positions // self.block_size] * np.int32(self.block_size)
            + positions % np.int32(self.block_size),
            query_start=query_start,
            context_len=starts.astype(np.int32),
            block_table=table,
            tree_root=np.full(len(runs), -1, np.int32),
            ancestors=np.zeros(len(positions), np.uint64),
            output_rows=query_start[1:] - 1 if last_only else rows,
            draws=(),
        )
