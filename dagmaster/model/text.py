"""Text for messages."""


def shorten(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
