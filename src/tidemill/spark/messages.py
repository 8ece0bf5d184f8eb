"""Messages of Spark errors, short enough for users."""

from tidemill.store.secrets import redact_text


def short(error: BaseException) -> str:
    """Return the beginning of the message of an error of Spark or of a user's function.

    The query plan is left out, and so are the passwords of URLs.
    """
    text = str(error).split("\n\nJVM stacktrace")[0].split(";\n'")[0]
    return redact_text(" ".join(text.split()))[:600]
