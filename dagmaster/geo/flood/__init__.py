"""Flood maps that come as tiles, one file for each tile and return period."""
