"""`pointcode bench turn`: small tasks of our own, each in a fresh folder, judged mechanically."""
