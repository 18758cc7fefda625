"""The one error a user meets when streams cannot run."""

import click


class StreamsError(click.ClickException):
    """A reason not to go on; ``kedro run`` prints it as its last lines and exits 1."""


def listed(problems: list[str]) -> str:
    """Join problems into one message, a line each when there are several."""
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems\n" + "\n".join(f"- {text}" for text in problems)


def first_sentence(error: BaseException) -> str:
    """Return what Spark says in an error, without its stack trace and query plan."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java else error).strip()
    python_error = _last_line_of_traceback(text)
    return python_error or text.split("\n")[0].removesuffix(";")


def _last_line_of_traceback(text: str) -> str | None:
    """Return the user's own exception and line, if Python code failed."""
    _, found, trace = text.partition("Traceback (most recent call last):\n")
    if not found:
        return None
    lines = trace.split("\n\n")[0].split("\n")
    places = [line.strip() for line in lines if line.startswith("  File ")]
    return f"{lines[-1]} ({places[-1]})" if places else lines[-1]
