"""Search text as LIKE patterns."""


def literal(text: str) -> str:
    """Escape the wildcards of LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
