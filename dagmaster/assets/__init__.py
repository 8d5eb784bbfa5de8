"""The business domain: what may be decided about assets and their versions, who may see them, how they are published.

Decisions are pure: from an asset and a version to the change that is written. `service.assets` runs them.
"""
