"""Text that people search for, as patterns of LIKE."""


def literal(text: str) -> str:
    """What people type is meant as it stands."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
