"""Spans from submission to execution; without an exporter they cost nothing."""
