"""The partners' gateway: reads database views, forwards every change to the API."""
