"""The handler of the tutorial."""

from dagmaster import Context, Permanent, handler


@handler("text.count_words")
def count_words(ctx: Context) -> dict[str, int]:
    words = ctx.params["text"].split()
    if not words:
        raise Permanent("there is no text to count")
    ctx.logger.info("counted %d words", len(words))
    return {"words": len(words)}
