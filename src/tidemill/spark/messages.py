"""Messages of Spark errors, short enough for users."""


def short(error: BaseException) -> str:
    """Return the beginning of a Spark error message, without the query plan."""
    text = str(error).split("\n\nJVM stacktrace")[0].split(";\n'")[0]
    return " ".join(text.split())[:600]
