"""Expected output lengths, learned from similar requests, and the KV cache peak that follows from them."""
