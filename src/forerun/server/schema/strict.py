"""Schema: what every body and every part of one has in common."""

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """Strict: no unknown fields, no silent conversion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
