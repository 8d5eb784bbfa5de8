"""The partners' gateway: reads from views, sends every change to the orchestrator's API."""
