"""`bench quality`: does the engine compute the model, or only something consistent?

Equality between settings cannot tell. So the engine's logits over real text are compared with those of an independent
pass in fp32 over the dequantised weights (bench/dense). What remains is the rounding of weights, activations and KV.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forerun.backends.base import Progress
from forerun.batch import Batch
from forerun.bench import corpus
from forerun.bench.dense import dense_logits
from forerun.errors import UsageError
from forerun.llm import LLM, EngineOptions

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Quality:
    """The engine's distributions q against fp32's p, over `tokens` positions.

    mean_kl, max_kl  KL(p || q) in nats                top1_agreement  share of positions with the same likeliest token
    perplexity       of the text under the engine      perplexity_fp32  and under fp32
    """

    tokens: int
    mean_kl: float
    max_kl: float
    top1_agreement: float
    perplexity: float
    perplexity_fp32: float


def measure_quality(
    llm: LLM, num_tokens: int, options: EngineOptions, progress: Progress, fp32: Float32 | None = None
) -> Quality:
    """Compare over the first `num_tokens` tokens of the corpus. Restarts the engine. `progress` counts positions.

    options  those the model was loaded with
    fp32     what `fp32_logits` gave for this model and text, if it is known already

    Raises UsageError when the text or the KV cache is too short.
    """
    text, following = _text(llm, num_tokens)
    engine = engine_logits(llm, text, options)
    progress(num_tokens, 2 * num_tokens)
    if fp32 is None:
        fp32 = dense_logits(llm.model, text)
    progress(2 * num_tokens, 2 * num_tokens)
    return compare_logits(fp32, engine, following)


def fp32_logits(llm: LLM, num_tokens: int) -> Float32:
    """[T, V] float32 logits of the file's own weights over the text: the same for all formats of a model's weights.

    Raises UsageError when the text or the KV cache is too short.
    """
    return dense_logits(llm.model, _text(llm, num_tokens)[0])


def compare_logits(fp32: Float32, engine: Float32, following: npt.NDArray[np.int64]) -> Quality:
    """Statistics of two [T, V] arrays of logits; `following` [T] are the tokens that came next in the text."""
    kl, loss, loss_fp32 = np.empty(len(fp32)), np.empty(len(fp32)), np.empty(len(fp32))
    for position, (a, b) in enumerate(zip(fp32, engine, strict=True)):  # row by row: float64 needs memory
        p, q = _log_softmax(a), _log_softmax(b)
        kl[position] = np.exp(p) @ (p - q)
        loss_fp32[position], loss[position] = -p[following[position]], -q[following[position]]
    return Quality(
        tokens=len(fp32),
        mean_kl=float(kl.mean()),
        max_kl=float(kl.max()),
        top1_agreement=float((fp32.argmax(axis=1) == engine.argmax(axis=1)).mean()),
        perplexity=float(np.exp(loss.mean())),
        perplexity_fp32=float(np.exp(loss_fp32.mean())),
    )


def engine_logits(llm: LLM, tokens: Seq[int], options: EngineOptions) -> Float32:
    """[T, V] float32 logits of the backend after each of the tokens, in batches of its own limits.

    Writes KV behind the engine's back, so the engine is restarted with an empty cache first and last.
    """
    llm.reconfigure(speculation="off", options=options)
    piece = min(options.max_rows, options.max_outputs)
    parts = []
    for start in range(0, len(tokens), piece):
        batch = _batch(tokens, start, min(len(tokens), start + piece), llm.kv_layout.block_size)
        parts.append(llm.backend.forward(batch).logits(range(len(batch.output_rows))))
    llm.reconfigure(speculation="off", options=options)
    return np.concatenate(parts)


def _text(llm: LLM, num_tokens: int) -> tuple[list[int], npt.NDArray[np.int64]]:
    """The corpus' first tokens, and the token that follows each."""
    tokens = llm.tokenizer.encode_prompt(corpus.text())
    longest = min(len(tokens) - 1, llm.max_model_len)
    if not 1 <= num_tokens <= longest:
        raise UsageError(f"between 1 and {longest} tokens can be compared with this model, not {num_tokens}")
    return tokens[:num_tokens], np.array(tokens[1 : num_tokens + 1])


def _batch(tokens: Seq[int], start: int, stop: int, block_size: int) -> Batch:
    """Rows start..stop of one sequence that lies in the first blocks; logits of all of them."""
    rows = np.arange(start, stop, dtype=np.int32)  # position, logical and physical slot are the same number
    count = stop - start
    return Batch(
        tokens=np.array(tokens[start:stop], np.int32),
        positions=rows,
        slots=rows,
        query_start=np.array([0, count], np.int32),
        context_len=np.array([start], np.int32),
        block_table=np.arange(-(-stop // block_size), dtype=np.int32)[None],
        tree_root=np.array([-1], np.int32),
        ancestors=np.zeros(count, np.uint64),
        output_rows=np.arange(count, dtype=np.int32),
        draws=(),
    )


def _log_softmax(row: Float32) -> Float64:
    z = row.astype(np.float64)
    z -= z.max()
    shifted: Float64 = z - np.log(np.exp(z).sum())
    return shifted
