"""The error of a configuration."""


class ConfigurationError(Exception):
    """The configuration cannot be used. The message, for its author, lists every fault, one a line."""
