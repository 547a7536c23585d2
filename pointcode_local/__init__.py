"""pointcode-local: a terminal coding assistant whose model runs in the same process."""

__version__ = "0.1.0"
