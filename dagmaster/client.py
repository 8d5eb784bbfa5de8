"""A typed HTTP client, sync and async."""
