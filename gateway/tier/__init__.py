"""The admission cores behind a socket: one owner decides, fronts carry requests."""
