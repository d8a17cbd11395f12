"""Scripts that the engine's interpreter runs by path. They may import its libraries, but nothing of kvgate's."""
