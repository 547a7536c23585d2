"""The engine on an NVIDIA GPU: packed weights, KV pages in fragment order, prefill, and the backends that decode."""
