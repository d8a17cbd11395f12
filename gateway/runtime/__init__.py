"""The process's own concerns: signals, file descriptors, background work."""
