"""Batch: the flattened input of one step; Drawn and Outcome: what comes back.

There are no phases. A sequence contributes the rows of some pending tokens (a prefill chunk, or the one token of plain
decoding) and, when all its pending tokens are in, possibly draft nodes behind the last one, which is then the root.

    sequence A, 3 of 7 prompt tokens        sequence B, decoding with a tree root ─ 1 ─ 2
    row         0  1  2                     3     4  5  6                        └─ 3
    position    0  1  2                     9    10 11 10          position = context + depth
    slot        0  1  2                     9    10 11 12          logical slot = context + row: siblings do not collide

Keys of a row. A causal row at position p sees logical positions 0..p through the block table. A tree row sees 0..root
through the block table and then its ancestors and itself, in depth order, node i at logical slot root + i. A chain's
slots equal its positions, so chains are causal rows.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from forerun.speculation.tree import DraftTree

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class DrawRequest:
    """Draw the tokens of one sequence by walking its tree from the root row.

    The walk: draw the root row's token for absolute position `position`; if a child holds it, go on at that child's row
    with position + 1, else stop. Rows off the walked path are neither processed nor drawn.

    first_output  index into Batch.output_rows of the root row; node i is at first_output + i
    position      absolute position that the first drawn token will take
    key           noise key, two 32-bit words
    history_*     distinct tokens so far with their counts in the output (0: prompt only); empty without penalties
    banned        ids forbidden while position < banned_until (min_tokens)
    masks         None, or [rows of the tree, ceil(V / 32)] uint32: bit t % 32 of word t // 32 of a row is set when
                  token t may be drawn on it (a grammar)
    logprobs      None, or how many alternatives to report beside the drawn token
    """

    first_output: int
    tree: DraftTree
    position: int
    key: tuple[int, int]
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bias_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    bias_values: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0, np.float64))
    history_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    history_counts: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    banned: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    banned_until: int = 0
    masks: npt.NDArray[np.uint32] | None = None
    logprobs: int | None = None
    logits_hash: bool = False


@dataclass(frozen=True)
class Batch:
    """Everything one forward pass needs. R rows, B sequences, O output rows, M blocks in the longest table.

    tokens       [R] int32
    positions    [R] int32   rotary position and logical position of the row
    slots        [R] int32   physical KV slot that the row writes
    query_start  [B+1] int32 rows of sequence b are query_start[b] .. query_start[b+1]-1
    context_len  [B] int32   tokens of b computed before this step
    block_table  [B, M] int32 physical blocks in logical order, -1 behind the end
    tree_root    [B] int32   position of the root of b's branching tree, -1 when all of b's rows are causal
    ancestors    [R] uint64  for rows of a branching tree: bit i set when node i of that tree (logical slot tree_root +
                             i) is the row itself or an ancestor; 0 for causal rows. Nodes need not be rows of this
                             batch: a drafter computes its tree level by level
    output_rows  [O] int32   ascending rows whose logits are computed
    draws        one per sequence that draws
    scores       draws that can only end in the prompt's next token, one per row whose token is to be scored
    """

    tokens: Int32
    positions: Int32
    slots: Int32
    query_start: Int32
    context_len: Int32
    block_table: Int32
    tree_root: Int32
    ancestors: npt.NDArray[np.uint64]
    output_rows: Int32
    draws: tuple[DrawRequest, ...]
    scores: tuple[DrawRequest, ...] = ()

    @property
    def num_rows(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Drawn:
    """The target's own draws, one entry per output row; rows that no walk visited hold -1.

    tokens       [O] int32, -1 not visited; -2 the row holds NaN (or no finite value), its walk stopped there
    logprobs     [O] float64, log-softmax of the unprocessed logits at the drawn token (NaN where not asked for)
    top          per row: ((id, logprob), ...) most likely first, empty where not asked for
    hashes       per row: 8 bytes of BLAKE2b over the fp32 logits, b"" where not asked for
    """

    tokens: Int32
    logprobs: npt.NDArray[np.float64]
    top: tuple[tuple[tuple[int, float], ...], ...]
    hashes: tuple[bytes, ...]


NOT_DRAWN = -1
NOT_FINITE = -2


@dataclass(frozen=True)
class Outcome:
    """What one sequence's draws amount to.

    accepted   rows of the tree on the accepted path, in depth order
    tokens     tokens to append: the accepted ones and the bonus token; empty only when is_finite is False at the root
    rows       [len(tokens)] output-row index behind each token, for logprobs and hashes
    is_finite  False when the walk met a row with NaN; the tokens before it stand
    """

    tree: DraftTree
    accepted: tuple[int, ...]
    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    is_finite: bool = True
