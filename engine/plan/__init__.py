"""PURE, but for its readers. The plan of a model's memory on its cards, made before launch."""
