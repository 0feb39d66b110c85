"""A curious, model-based agent that trains as one compiled program on a device mesh."""

__version__ = "0.1.0"
