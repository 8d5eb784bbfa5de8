"""The business domain: decisions on assets and their versions, visibility, and publication.

Decisions are pure: from an asset and a version to the change to write. `service.assets` runs them.
"""
