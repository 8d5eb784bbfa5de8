"""Shared by the HTTP applications: errors, limits, admission and the request log."""
