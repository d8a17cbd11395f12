"""PURE, but for its readers. What a model needs of a card, before it is launched."""
