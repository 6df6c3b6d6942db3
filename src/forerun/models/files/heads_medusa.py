"""read_medusa: published Medusa checkpoints.

    config.json                                   medusa_num_heads, medusa_num_layers
    medusa_lm_head.safetensors or .pt             {head}.{block}.linear.weight [E, E] and .bias [E]
                                                  {head}.{num_blocks}.weight   [V, E], absent: the target's matrix

Some exports put "medusa_head." or "heads." before every name. Without a config the numbers are counted.
Source: github.com/FasterDecoding/Medusa, the layout only.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.errors import ModelFileError, UnsupportedModel
from forerun.models.files.heads_file import HeadFile, HeadSource, HeadWeights
from forerun.models.heads import MedusaSpec
from forerun.models.spec import ModelSpec

WEIGHT_FILES = ("medusa_lm_head.safetensors", "model.safetensors", "medusa_lm_head.pt", "pytorch_model.bin")
_NAME = re.compile(r"(?P<prefix>.*?)(?P<head>\d+)\.(?P<part>\d+)\.(?P<kind>linear\.weight|linear\.bias|weight)")


def read_medusa(path: Path, target: ModelSpec) -> tuple[MedusaSpec, HeadWeights]:
    """The heads of a checkpoint, for a target. Raises ModelNotFound, ModelFileError, UnsupportedModel."""
    file = HeadFile(path, WEIGHT_FILES)
    parts = [match for name in file.tensors if (match := _NAME.fullmatch(name))]
    if not parts or len({match["prefix"] for match in parts}) != 1:
        raise ModelFileError(f"{file.where} has no tensors named like 0.0.linear.weight: give a Medusa checkpoint")
    prefix = parts[0]["prefix"]
    num_heads = _count(file.config, "medusa_num_heads", 1 + max(int(match["head"]) for match in parts), file.where)
    blocks = [int(match["part"]) for match in parts if match["kind"] != "weight"]
    num_blocks = _count(file.config, "medusa_num_layers", 1 + max(blocks, default=-1), file.where)
    output = f"{prefix}0.{num_blocks}.weight"
    num_columns = file.tensors[output].shape[0] if output in file.tensors else 0
    hidden = _hidden(file, f"{prefix}0.0.linear.weight" if num_blocks else output)
    if hidden != target.hidden:
        raise UnsupportedModel(
            f"{file.where} is made for hidden states of width {hidden}, the model's have {target.hidden}: "
            "give a head that was trained for this model"
        )
    spec = MedusaSpec(hidden, num_heads, num_blocks, num_columns)
    sources: dict[str, HeadSource] = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            tensor, name = f"{prefix}{head}.{block}.linear", f"head.{head}.block.{block}"
            sources |= {name: HeadSource(f"{tensor}.weight"), f"{name}.bias": HeadSource(f"{tensor}.bias")}
        sources[f"head.{head}.output"] = HeadSource(f"{prefix}{head}.{num_blocks}.weight")
    further = frozenset(match[0] for match in parts if int(match["head"]) >= num_heads)
    return spec, HeadWeights(file, sources, spec.weight_shapes(), further)


def _hidden(file: HeadFile, tensor: str) -> int:
    shape = file.shape(tensor)
    if len(shape) != 2:
        raise ModelFileError(f"{file.where}: tensor {tensor!r} has the shape {shape}, not a matrix; fetch it again")
    return shape[1]


def _count(config: Mapping[str, Any], key: str, counted: int, where: str) -> int:
    """What config.json says, at most what there is: further heads may be left out."""
    value = config.get(key, counted)
    if type(value) is not int or not 0 <= value <= counted or (key == "medusa_num_heads" and value == 0):
        raise ModelFileError(f"{where}: {key} is {value!r:.60} but there are {counted} in the weights; fetch it again")
    return value
