"""llama.cpp's server, as an engine that kvgate launches."""
