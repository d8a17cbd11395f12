"""Advice on settings: histories of past traffic, and the rules that judge them."""
