"""Trained heads: small networks over the target's hidden states that guess the next tokens. Specs and forward passes.

Place: a reader (files/heads_*) turns a checkpoint into a spec and weights; a drafter runs the passes as programs beside
the target. A head reads the target's own embedding and output matrices where it has none of its own.

    Medusa      K small blocks over one hidden state, each with the scores of one further position
    EAGLE       one or a few decoder layers over (embedding of a token, hidden state before it), asked token by token;
                its own output takes the place of hidden states that the target has not computed yet
    block head  decoder layers over one row with the last token and K - 1 rows without one: K positions in one pass

A head's own weights have names that begin with "head."; the target's keep theirs (models/spec). Where a paper feeds
several inputs side by side into one matrix, the matrix is cut by columns and the products are summed:
[A B] (x, y) = A x + B y.

Source: Medusa, arXiv:2401.10774; EAGLE, arXiv:2401.15077; EAGLE-3, arXiv:2503.01840; for the block head, DFlash,
arXiv:2602.06036, and P-EAGLE, arXiv:2602.01469.
Differs: the sums above, rounded product by product.
"""

from dataclasses import dataclass
from typing import TypeVar

from forerun.backends.base import Ops
from forerun.models.decoder import attend, attention, mlp
from forerun.models.spec import LayerSpec, ModelSpec

V = TypeVar("V")

Shapes = dict[str, tuple[int, ...]]

STATE = "state"  # captured: what a head computes before its output matrix, for every row


def scores_name(head: int) -> str:
    """The name under which Medusa's scores for `head` are captured, on output rows."""
    return f"scores.{head}"


# ---- Medusa ----


@dataclass(frozen=True)
class MedusaSpec:
    """K heads of `num_blocks` residual blocks x + silu(W x + b) over hidden states of width E.

    num_columns  rows of each head's own output matrix; 0: they share the target's
    """

    hidden: int
    num_heads: int
    num_blocks: int
    num_columns: int

    def weight_shapes(self) -> Shapes:
        """Its own weights."""
        shapes: Shapes = {}
        for head in range(self.num_heads):
            for block in range(self.num_blocks):
                shapes[f"head.{head}.block.{block}"] = (self.hidden, self.hidden)
                shapes[f"head.{head}.block.{block}.bias"] = (self.hidden,)
            if self.num_columns:
                shapes[f"head.{head}.output"] = (self.num_columns, self.hidden)
        return shapes


def medusa(spec: MedusaSpec, target: ModelSpec, ops: Ops[V]) -> V:
    """Scores of the last head [O, columns]; those of every head are captured. Features: hidden state L."""
    hidden = ops.select_outputs(ops.features(spec.hidden))
    for head in range(spec.num_heads):
        x = hidden
        for block in range(spec.num_blocks):
            name = f"head.{head}.block.{block}"
            x = ops.add(x, ops.silu(ops.linear(x, (name,), (f"{name}.bias",))))
        scores = ops.linear(x, (f"head.{head}.output" if spec.num_columns else target.output_weight,))
        ops.capture(scores_name(head), scores)
    return scores


# ---- EAGLE ----


@dataclass(frozen=True)
class EagleSpec:
    """EAGLE of version 1 (EAGLE and EAGLE-2 checkpoints) or 3.

    hidden          E, width of its layers and embeddings      captures  hidden states of the target that it reads
    target_hidden   width of those                             layers    version 3 has exactly one
    num_columns     rows of its own output matrix, its draft vocabulary; 0: it uses the target's matrix
    own_embed       rows of its own embedding table; 0: it uses the target's
    """

    version: int
    hidden: int
    target_hidden: int
    captures: tuple[int, ...]
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    num_columns: int = 0
    own_embed: int = 0
    fc_bias: bool = False

    @property
    def feature_width(self) -> int:
        """Width of what its layers take for a hidden state."""
        return self.hidden if self.version == 3 else self.target_hidden

    def weight_shapes(self) -> Shapes:
        """Its own weights."""
        shapes: Shapes = {}
        if self.own_embed:
            shapes["head.embed"] = (self.own_embed, self.hidden)
        if self.num_columns:
            shapes["head.output"] = (self.num_columns, self.hidden)
        if self.version == 3:
            shapes["head.fc"] = (self.hidden, self.target_hidden * len(self.captures))
            shapes["head.norm"] = (self.hidden,)
            shapes["head.feature_norm"] = (self.hidden,)
        else:
            shapes["head.fc.embed"] = (self.hidden, self.hidden)
            shapes["head.fc.feature"] = (self.hidden, self.target_hidden)
            if self.fc_bias:
                shapes["head.fc.bias"] = (self.hidden,)
        for index, layer in enumerate(self.layers):
            prefix = f"head.layers.{index}."
            shapes |= _layer_shapes(prefix, layer, self.hidden)
            if self.version == 1 and index == 0:
                del shapes[prefix + "attn_norm"]
            if self.version == 3:
                for part in "qkv":
                    shapes[f"{prefix}attn.{part}.feature"] = shapes[f"{prefix}attn.{part}"]
        return shapes


def fuse(spec: EagleSpec, ops: Ops[V]) -> V:
    """Version 3: the target's hidden states side by side as one of width E, of the output rows."""
    return ops.linear(ops.select_outputs(ops.features(spec.target_hidden * len(spec.captures))), ("head.fc",))


def eagle(spec: EagleSpec, target: ModelSpec, first_kv_layer: int, ops: Ops[V]) -> V:
    """Scores [O, columns] of the token behind each row, and STATE.

    A row holds a token and, as its feature [R, feature_width], the hidden state of the token before it: fused, or the
    STATE of that token's row.
    """
    embedded = ops.embed("head.embed" if spec.own_embed else "embed")
    feature = ops.features(spec.feature_width)
    layers = _eagle3 if spec.version == 3 else _eagle1
    x = layers(spec, embedded, feature, first_kv_layer, ops)
    ops.capture(STATE, x)
    x = ops.select_outputs(x)
    if spec.version == 3:
        x = ops.rms_norm(x, "head.norm", spec.norm_eps)
    return ops.linear(x, ("head.output" if spec.num_columns else target.output_weight,))


def _eagle1(spec: EagleSpec, embedded: V, feature: V, first_kv_layer: int, ops: Ops[V]) -> V:
    """The layers of version 1; the first one has no norm before its attention."""
    biases = ("head.fc.bias" if spec.fc_bias else None,)
    x = ops.add(ops.linear(embedded, ("head.fc.embed",), biases), ops.linear(feature, ("head.fc.feature",)))
    for index, layer in enumerate(spec.layers):
        prefix = f"head.layers.{index}."
        normed = x if index == 0 else ops.rms_norm(x, prefix + "attn_norm", spec.norm_eps)
        x = ops.add(x, attention(ops, normed, first_kv_layer + index, layer.mixer, prefix + "attn."))
        x = _mlp_of(spec.norm_eps, prefix, layer, x, ops)
    return x


def _eagle3(spec: EagleSpec, embedded: V, feature: V, layer: int, ops: Ops[V]) -> V:
    """The one layer of version 3, whose attention reads both inputs and whose residual is the feature."""
    prefix, mixer = "head.layers.0.", spec.layers[0].mixer
    names = tuple(f"{prefix}attn.{part}" for part in "qkv")
    biases = tuple(f"{name}.bias" if mixer.qkv_bias else None for name in names)
    from_token = ops.linear(ops.rms_norm(embedded, prefix + "attn_norm", spec.norm_eps), names, biases)
    normed = ops.rms_norm(feature, "head.feature_norm", spec.norm_eps)
    from_feature = ops.linear(normed, tuple(f"{name}.feature" for name in names))
    mixed = attend(ops, ops.add(from_token, from_feature), layer, mixer, prefix + "attn.")
    return _mlp_of(spec.norm_eps, prefix, spec.layers[0], ops.add(feature, mixed), ops)


# ---- block head ----


@dataclass(frozen=True)
class BlockSpec:
    """A head that guesses `size` tokens in one pass.

    captures     hidden states of the target that it reads, each of width E as its own layers
    size         K, rows of a block: row 0 is the last token, the others stand for tokens that are not known
    mask_token   token whose embedding those rows get
    num_columns  rows of its output matrix
    markov_rank  rank r of the correction by the token before; 0: none
    """

    hidden: int
    captures: tuple[int, ...]
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    size: int
    mask_token: int
    num_columns: int
    markov_rank: int = 0
    has_confidence: bool = False

    def weight_shapes(self) -> Shapes:
        """Its own weights that the passes read."""
        shapes: Shapes = {"head.norm": (self.hidden,), "head.output": (self.num_columns, self.hidden)}
        for index in range(len(self.captures)):
            shapes[f"head.feature_norm.{index}"] = (self.hidden,)
            shapes[f"head.fc.{index}"] = (self.hidden, self.hidden)
        for index, layer in enumerate(self.layers):
            shapes |= _layer_shapes(f"head.layers.{index}.", layer, self.hidden)
        return shapes

    def array_shapes(self, vocab_size: int) -> Shapes:
        """Weights that the drafter itself reads, see block_head. vocab_size  V, the target's"""
        shapes: Shapes = {"head.mask_hidden": (self.hidden,), "head.positions": (self.size - 1, self.hidden)}
        if self.markov_rank:
            shapes["head.markov.before"] = (vocab_size, self.markov_rank)
            shapes["head.markov.after"] = (self.markov_rank, self.num_columns)
        if self.has_confidence:
            shapes["head.confidence"] = (self.hidden + 2,)
            shapes["head.confidence.bias"] = (1,)
        return shapes


def inject(spec: BlockSpec, first_kv_layer: int, ops: Ops[V]) -> V:
    """Write the KV of committed tokens, from the target's hidden states at their positions; the fused hidden states of
    the output rows [O, E].

    features  [R, captures * E]
    """
    parts = ops.split(ops.features(spec.hidden * len(spec.captures)), (spec.hidden,) * len(spec.captures))
    normed = [ops.rms_norm(part, f"head.feature_norm.{index}", spec.norm_eps) for index, part in enumerate(parts)]
    x = ops.linear(normed[0], ("head.fc.0",))
    for index, part in enumerate(normed[1:], 1):
        x = ops.add(x, ops.linear(part, (f"head.fc.{index}",)))
    for index, layer in enumerate(spec.layers):
        prefix, mixer = f"head.layers.{index}.", layer.mixer
        names = (prefix + "attn.k", prefix + "attn.v")
        biases = tuple(f"{name}.bias" if mixer.qkv_bias else None for name in names)
        width = mixer.num_kv_heads * mixer.head_dim
        both = ops.linear(ops.rms_norm(x, prefix + "attn_norm", spec.norm_eps), names, biases)
        k, v = ops.split(both, (width, width))
        ops.write_kv(first_kv_layer + index, ops.rope(k, mixer.num_kv_heads, mixer.rope), v, mixer)
    return ops.select_outputs(x)


def block(spec: BlockSpec, first_kv_layer: int, ops: Ops[V]) -> V:
    """Scores [O, columns] of the token behind each row, causal inside the block, and STATE, here on output rows.

    features  [R, E] beside the tokens' embeddings: row 0 the fused hidden state before the last token, row j what the
              head has learned for rows without a token
    """
    x = ops.add(ops.embed("embed"), ops.features(spec.hidden))
    for index, layer in enumerate(spec.layers):
        prefix = f"head.layers.{index}."
        normed = ops.rms_norm(x, prefix + "attn_norm", spec.norm_eps)
        x = ops.add(x, attention(ops, normed, first_kv_layer + index, layer.mixer, prefix + "attn."))
        x = _mlp_of(spec.norm_eps, prefix, layer, x, ops)
    x = ops.rms_norm(ops.select_outputs(x), "head.norm", spec.norm_eps)
    ops.capture(STATE, x)
    return ops.linear(x, ("head.output",))


# ---- all ----


def _mlp_of(eps: float, prefix: str, layer: LayerSpec, x: V, ops: Ops[V]) -> V:
    return ops.add(x, mlp(ops, ops.rms_norm(x, prefix + "mlp_norm", eps), layer.mlp, prefix + "mlp."))


def _layer_shapes(prefix: str, layer: LayerSpec, hidden: int) -> Shapes:
    """Weights of one decoder layer, named as in a model."""
    one = ModelSpec("head", 1, hidden, (layer,), 1.0, True, 1).weight_shapes()
    start = "layers.0."
    return {prefix + name.removeprefix(start): shape for name, shape in one.items() if name.startswith(start)}
