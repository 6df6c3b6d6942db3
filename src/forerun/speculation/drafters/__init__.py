"""Drafters. Importing this package registers the built-in ones; others register themselves from anywhere."""

from forerun.speculation.drafters.block_head import BlockHeadDrafter
from forerun.speculation.drafters.draft_model import ModelDrafter
from forerun.speculation.drafters.eagle import EagleDrafter
from forerun.speculation.drafters.medusa import MedusaDrafter
from forerun.speculation.drafters.ngram import NgramDrafter

AUTO = ("ngram",)  # what "auto" is made of: drafters that need nothing but the target

__all__ = ["AUTO", "BlockHeadDrafter", "EagleDrafter", "MedusaDrafter", "ModelDrafter", "NgramDrafter"]
