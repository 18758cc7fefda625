"""The one error a user meets when streams cannot run."""

import re
from collections.abc import Iterator
from typing import Any, TypeGuard

import click
from kedro.io import DatasetError
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

SHORT = 300  # characters that still are a sentence
TROUBLE = (OSError, Py4JJavaError)  # of a disk or a store, with our own small files
SECRET = (  # conf/base/spark.yml hides the same: spark.redaction.regex
    r"password|passwd|pwd|secret|token|jaas|credential|access.?key|api.?key"
    r"|keystore\.key|user\.info"
)

# What a second try cannot mend: a plan, a schema or a checkpoint that does not fit,
# a value that does not convert, Python code of the user's. All else may pass: a full
# disk, a lost connection, a killed worker.
FINAL = re.compile(
    r"AnalysisException|ParseException|PythonException|AssertionError"
    r"|NotCompatible|IllegalArgumentException|UnsupportedOperationException"
    r"|NumberFormatException|ArithmeticException|DateTimeException|ClassCastException"
    r"|IndexOutOfBoundsException|NoSuchElementException|CheckpointOffsets"
    r"|RecordTooLargeException|KafkaIllegalStateException|SparkRuntimeException"
    r"|IncompatibleSchemaException|ClassNotFoundException|NoClassDefFoundError"
    r"|InvariantViolationException"
)
MALFORMED = re.compile("MALFORMED_RECORD|Malformed records are detected")
EXTERNAL = "DATA_SOURCE_EXTERNAL_ERROR"
# What a retry may mend of Python code: a connection, a disk, a database that restarts.
PASSING = re.compile(
    "Connect|Disconnect|Timeout|TimedOut|Unavailable|NoHost|BrokenPipe|OSError|Shutdown"
    "|Deadlock|Serialization|OperationalError|InterfaceError"
)
OWN_MODULES = ("builtins", __name__.partition(".")[0])
NAME = re.compile(r"[\w.]*")  # of an exception, with which its text begins
SECRET_VALUE = re.compile(
    rf"((?:{SECRET})(?:[\w.-]*\s*=|\s*:)\s*)[^\s&,;]+", re.IGNORECASE
)
# With a password, or a token in place of a user; not abfss://container@account.
USER_IN_URL = re.compile(r"://[^\s/:@]*:[^\s/@]+@|(?:(?<=http)|(?<=https))://[^\s/@]+@")
RESET = "kedro streams reset NAME"  # whoever knows the stream puts its name there
MESSAGES_GONE = (
    "Messages that this stream has not read yet are gone from Kafka. If they were too "
    "old for the topic's retention, set failOnDataLoss: false in load_args for one run, "
    "to go on with those that are there; if the topic was made anew, its offsets begin "
    f"again, and so must the stream: {RESET}"
)
STATE_CHANGED = re.compile(
    r"STATE_STORE_\w*(NOT_COMPATIBLE|INCOMPATIBLE|MISMATCH)|StateSchemaNotCompatible"
    r"|STREAMING_STATEFUL_OPERATOR_NOT_MATCH|CheckpointOffsets"
)
OTHER_CHECKPOINT = (
    ". The checkpoint was made by other code, which kept something else; undo the "
    f"change, or start over: {RESET}"
)
TOPIC_GONE = (
    ". A topic that this stream reads has been deleted, and its messages with it, which "
    "failOnDataLoss: false does not bring back; make the topic anew, whose offsets begin "
    f"again, and so must the stream: {RESET}"
)
TOO_LARGE = "; raise max.message.bytes of the topic, or send smaller messages"
REWRITTEN = (
    ". A stream can only follow a table to which rows are added: read what its writer "
    "reads, or, by an entry with streaming: false, the table as it is"
)
CHANGED = "Cannot process overwrite snapshot"  # as Iceberg says it
NO_LAKE = (
    ": a name with several dots begins with a catalog, and that of lake has tables of "
    "Iceberg; write file_format: iceberg, or a name with at most a schema before it"
)
NO_DRIVER = (
    "; name its class, for a SparkJDBCDataset under save_args, e.g. properties: {driver: "
    "org.postgresql.Driver}"
)
SENTENCES = {  # what to add to what Kafka, Delta and Java say
    "not available in Kafka any more": f". {MESSAGES_GONE}",
    "UnknownTopicOrPartitionException": TOPIC_GONE,
    "larger than the max message size the server": TOO_LARGE,
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES": REWRITTEN,
    "REQUIRES_SINGLE_PART_NAMESPACE": NO_LAKE,
    CHANGED: REWRITTEN,
    "No suitable driver": NO_DRIVER,
}
# The third is how Java puts it when the class made a function that Spark sent along.
NO_CLASS = re.compile("ClassNotFoundException|NoClassDefFoundError|SerializedLambda")
CLASS_GONE = (
    "; executors lack a jar that the driver has: let packages in "
    "spark.yml name it, or put it into the image of both (kedro streams jars)"
)
TASK = re.compile(  # which of Spark's tasks failed, before what it failed by
    r"^(?:[\w.]+: )?Job aborted due to stage failure: .*?\(TID \d+\) \([^)]*\): "
)
UNSAID = "TASK_WRITE_FAILED"  # of which the cause has the reason
CARELESS_ADVICE = re.compile(r" This is currently not supported\. .*")  # of Delta
OWN_WORDS = re.compile(r"^.*?\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: \w+)?$")
CLASSES = re.compile(r"^(?:Caused by: |: )?((?:[a-z]\w*\.)+[A-Z][\w$]*)", re.MULTILINE)
PYTHON_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
# What databases call their users' mistakes, whichever library asks them (PEP 249).
DATABASE_MISTAKES = {"DataError", "IntegrityError", "NotSupportedError"}
DATABASE_MISTAKES |= {"ProgrammingError"}


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
    text = _message(java) if java else str(error)
    if UNSAID in text:
        reasons = [said for said in map(_message, causes(error)) if UNSAID not in said]
        text = reasons[0] if reasons else text
    line = _users_own_error(text) or _first_line(text)
    is_executors = re.search(r"executor (?!driver)", line)
    line = TASK.sub("", line)
    line = CARELESS_ADVICE.sub("", OWN_WORDS.sub(r"\1", line))
    if is_executors and NO_CLASS.search(line):
        line += CLASS_GONE
    for words, sentence in SENTENCES.items():
        line = line.removesuffix(".") + sentence if words in line else line
    if STATE_CHANGED.search(text):
        line = line.removesuffix(".") + OTHER_CHECKPOINT
    return SECRET_VALUE.sub(r"\1***", without_user(line))


def why_it_ended(query: StreamingQuery) -> Exception | None:
    """Return what a query ended by, with what Java knows of it, which pyspark drops."""
    error = query.exception()
    if error is not None:
        error._origin = query._jsq.exception().get()  # type: ignore[attr-defined]
    return error


def causes(error: Any) -> Iterator[Any]:
    """Follow what Java says that an error came by, if Spark has kept it."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None:
        yield java
        java = java.getCause()


def _message(java: Any) -> str:
    """Return what an exception of Java's says, with its class if that is one word."""
    text = str(java.getMessage() or "")
    return text if " " in text else str(java.toString())


def _first_line(text: str) -> str:
    """Return the first line, or all of a short text whose first line announces more."""
    lines = [line.strip() for line in text.split("\n") if line.strip()] or [""]
    whole = " ".join(lines)
    is_whole = lines[0].endswith(":") and len(whole) < SHORT
    return (whole if is_whole else lines[0]).removesuffix(";")


def _users_own_error(text: str) -> str | None:
    """Return the exception and the line that raised it, if Python code failed."""
    _, found, trace = text.partition("Traceback (most recent call last):\n")
    if not found:
        return None
    lines = trace.split("\n\n")[0].rstrip().split("\n")
    places = [i for i, line in enumerate(lines) if line.startswith("  File ")]
    if not places:
        return lines[-1]
    message = [line for line in lines[places[-1] + 1 :] if not line.startswith("  ")]
    return f"{' '.join(message)} ({lines[places[-1]].strip()})"


def without_user(text: str) -> str:
    """Hide who a url lets in, and how."""
    return USER_IN_URL.sub("://***@", text)


def is_sparks(error: BaseException | None) -> TypeGuard[Exception]:
    """Whether an error is Spark's own, and not of Python code around it."""
    return isinstance(error, Py4JJavaError | PySparkException)


def is_final(error: BaseException | None) -> bool:
    """Whether a stream that failed with this would only fail again."""
    if _is_of_a_users_function(error):
        return True
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if isinstance(error, PYTHON_MISTAKES) or names & DATABASE_MISTAKES:
            return True
        raised = NAME.match(_users_own_error(str(error)) or "")
        if raised and PASSING.search(raised[0]):
            return False
        is_java = isinstance(error, Py4JJavaError)
        trace = str(error) if is_java else getattr(error, "_stackTrace", "")
        classes = CLASSES.findall(trace)
        if MALFORMED.search(str(error)) or CHANGED in str(error):
            return True
        if EXTERNAL in trace:  # a store's trouble, which Spark calls an analysis
            classes = [c for c in classes if not c.endswith("AnalysisException")]
        if any(map(FINAL.search, classes)):
            return True
        error = getattr(error, "_cause", None) or error.__cause__
    return False


def _is_of_a_users_function(error: BaseException | None) -> bool:
    """Whether code of the user's has raised this, and not a store it speaks to."""
    others = (OSError, DatasetError, Py4JError, PySparkException, click.ClickException)
    if error is None or isinstance(error, others):
        return False
    if type(error).__module__.partition(".")[0] not in OWN_MODULES:
        return False  # a library's, of which nobody knows
    return not any(PASSING.search(kind.__name__) for kind in type(error).__mro__)
