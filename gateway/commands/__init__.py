"""The commands beside `serve`. Each reads, computes and prints."""
