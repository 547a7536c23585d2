"""The engine over HTTP: one small file per API shape, each a translation to ChatRequest and from ChatDelta."""
