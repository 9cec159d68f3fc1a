"""Domino: lossless speculative decoding for `generate`, by adding one argument (arXiv 2605.29707)."""

from transformers import AutoConfig, AutoModel

from .configuration_domino import DominoConfig
from .generation.engine import generate
from .generation.statistics import DraftStatistics
from .installing import VERSION
from .modeling_domino import DominoModel

AutoConfig.register(DominoConfig.model_type, DominoConfig, exist_ok=True)
AutoModel.register(DominoConfig, DominoModel, exist_ok=True)

__version__ = VERSION
__all__ = ["DominoConfig", "DominoModel", "DraftStatistics", "generate"]
