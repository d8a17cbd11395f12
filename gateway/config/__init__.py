"""The settings: their types and meanings, their sources, and which of them a reload changes live."""
