"""lmctr: click-through-rate prediction for Hugging Face Transformers."""

__version__ = "0.1.0"
