"""The decode engine: tokens in, tokens out. Knows nothing of agents or tools."""
