"""The floor of the command line: a typer program with the same options that does nothing."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option, Typer

Text = str | None
program = Typer(add_completion=False)


@program.command()
def send(  # noqa: PLR0913, PLR0917 - as many as `agent-bus send` has
    to: Annotated[list[str], Option("--to", metavar="NAME", help="Repeat it, or use commas.")],
    subject: Annotated[str, Option("--subject", metavar="TEXT", help="One line.")] = "",
    kind: Annotated[str, Option("--kind", metavar="KIND", help="note, task, question …")] = "note",
    body: Annotated[Text, Option("--body", metavar="TEXT", help="The body itself.")] = None,
    body_file: Annotated[Text, Option("--body-file", metavar="F", help="From a file.")] = None,
    reply_to: Annotated[Text, Option("--reply-to", metavar="ID", help="What it answers.")] = None,
    thread: Annotated[Text, Option("--thread", metavar="ID", help="The conversation.")] = None,
    priority: Annotated[Text, Option("--priority", metavar="P", help="low … urgent.")] = None,
    expires_in: Annotated[Text, Option("--expires-in", metavar="TIME", help="90s, 2h.")] = None,
    idempotency_key: Annotated[
        Text, Option("--idempotency-key", metavar="KEY", help="Makes sending again safe.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Send to a name that nobody has.")] = False,
    as_name: Annotated[Text, Option("--as", "--from", metavar="NAME", help="Who.")] = None,
    project: Annotated[Text, Option("--project", metavar="DIR", help="Where.")] = None,
    json: Annotated[bool, Option("--json", help="One JSON object a line.")] = False,
    stdin: Annotated[Text, Argument(metavar="[-]", help="From standard input.")] = None,
) -> None:
    """Send nothing."""


@program.command()
def inbox(
    kind: Annotated[Text, Option("--kind", metavar="KIND", help="Only of this kind.")] = None,
    limit: Annotated[str, Option("--limit", metavar="N", help="Lines on a page.")] = "50",
    page: Annotated[str, Option("--page", metavar="N", help="Which page.")] = "1",
    unread: Annotated[bool, Option("--unread", help="Leave out what was read.")] = False,
    sender: Annotated[Text, Option("--from", metavar="NAME", help="Only from this one.")] = None,
    as_name: Annotated[Text, Option("--as", metavar="NAME", help="Who.")] = None,
    project: Annotated[Text, Option("--project", metavar="DIR", help="Where.")] = None,
    json: Annotated[bool, Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List nothing."""


if __name__ == "__main__":
    program()
