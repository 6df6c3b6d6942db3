"""kv_stack: the KV layers of a model."""

from forerun.cache.layout import KvStack
from forerun.errors import UnsupportedModel
from forerun.models.spec import ModelSpec


def kv_stack(name: str, spec: ModelSpec, codec: str) -> KvStack:
    """The stack of a model's attention layers, stored as `codec`. Raises UnsupportedModel when they differ in shape."""
    shapes = {(layer.mixer.num_kv_heads, layer.mixer.head_dim) for layer in spec.layers}
    if len(shapes) > 1:
        raise UnsupportedModel("layers with different KV shapes are not supported")
    ((num_kv_heads, head_dim),) = shapes
    return KvStack(name, spec.num_layers, num_kv_heads, head_dim, codec)
