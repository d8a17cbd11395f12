"""Programs that run in the engine's environment, by path: they may import what it has, and nothing of kvgate's."""
