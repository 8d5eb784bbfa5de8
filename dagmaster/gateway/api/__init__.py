"""The routes of the gateway, one module per noun."""
