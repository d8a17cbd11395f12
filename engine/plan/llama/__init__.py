"""The plan of a GGUF model in llama-server: its memory on a card and on the host, and the split between them."""
