"""Drafters. Importing this package registers the built-in ones; others register themselves from anywhere."""

from forerun.speculation.drafters.block_head import BlockHeadDrafter
from forerun.speculation.drafters.draft_model import ModelDrafter
from forerun.speculation.drafters.eagle import EagleDrafter
from forerun.speculation.drafters.early_exit import make_early_exit
from forerun.speculation.drafters.grammar import GrammarDrafter
from forerun.speculation.drafters.layer_skip import make_layer_skip
from forerun.speculation.drafters.lookahead import LookaheadDrafter
from forerun.speculation.drafters.medusa import MedusaDrafter
from forerun.speculation.drafters.ngram import NgramDrafter
from forerun.speculation.drafters.prediction import PredictionDrafter
from forerun.speculation.drafters.recycle import RecycleDrafter
from forerun.speculation.drafters.self_int4 import make_self_int4
from forerun.speculation.drafters.suffix import SuffixDrafter

AUTO = ("suffix",)  # what "auto" is made of: it needs nothing but the target, and covers what ngram finds
GUIDES = ("grammar", "prediction")  # draft beside all others, for requests that say something of what will come

__all__ = [
    "AUTO",
    "GUIDES",
    "BlockHeadDrafter",
    "EagleDrafter",
    "GrammarDrafter",
    "LookaheadDrafter",
    "MedusaDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "PredictionDrafter",
    "RecycleDrafter",
    "SuffixDrafter",
    "make_early_exit",
    "make_layer_skip",
    "make_self_int4",
]
