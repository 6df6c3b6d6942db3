"""Real GGUF files, when FORERUN_TEST_MODELS names a folder that has them."""

import os
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from forerun.backends.base import Limits, LoadedModel
from forerun.backends.reference import ReferenceBackend
from forerun.cache.layout import KvLayout, KvStack
from forerun.models.registry import open_model
from tests.steps import Rows, make_batch

pytestmark = pytest.mark.slow

FACTS = {  # layers, hidden, heads, KV heads, vocabulary, tied, QKV bias
    "smollm2-135m.gguf": (30, 576, 9, 3, 49152, True, False),
    "qwen2.5-coder-0.5b.gguf": (24, 896, 14, 2, 151936, False, True),
}
PROMPT = ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"]


@pytest.fixture(params=FACTS)
def path(request: pytest.FixtureRequest) -> Path:
    folder = os.environ.get("FORERUN_TEST_MODELS")
    if not folder or not (Path(folder) / request.param).is_file():
        pytest.skip(f"FORERUN_TEST_MODELS has no {request.param}")
    return Path(folder) / request.param


def test_opens_fast_and_reads_what_the_package_reads(path: Path) -> None:
    start = time.perf_counter()
    model = open_model(path)
    assert time.perf_counter() - start < 1.0
    spec, attention = model.spec, model.spec.layers[0].mixer
    sizes = (spec.num_layers, spec.hidden, attention.num_heads, attention.num_kv_heads, spec.vocab_size)
    assert (*sizes, spec.tied_embeddings, attention.qkv_bias) == FACTS[path.name]
    compared = {"embed": "token_embd.weight", "layers.3.mlp.down": "blk.3.ffn_down.weight", "final_norm": ""}
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name in spec.weight_shapes():
        rows = model.weights.read(name, 0, min(64, model.weights.shape(name)[0]))
        assert np.isfinite(rows).all()
        if compared.get(name):
            tensor = tensors[compared[name]]
            assert rows.tobytes() == gguf.quants.dequantize(tensor.data[:64], tensor.tensor_type).tobytes()


def test_the_oracle_continues_a_sentence(path: Path) -> None:
    """Wrong row order, rotation or bias gives noise instead of " Paris"."""
    model = open_model(path)
    attention, vocabulary = model.spec.layers[0].mixer, model.metadata["tokenizer.ggml.tokens"]
    backend = ReferenceBackend()
    backend.load(LoadedModel(model.spec, model.weights), Limits(16, 16, 16))
    stack = KvStack("target", model.spec.num_layers, attention.num_kv_heads, attention.head_dim, "bf16")
    backend.allocate_kv(KvLayout(1, 16, (stack,)))
    batch = make_batch([Rows([vocabulary.index(word) for word in PROMPT], 0, [0])], 16, all_outputs=False)
    logits = backend.forward(batch).logits([0])[0]
    assert vocabulary[int(logits.argmax())] == "ĠParis"
