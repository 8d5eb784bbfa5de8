"""What the applications that are served over HTTP have in common: errors, limits, admission and the log of requests."""
