"""`holdfast queues`: the queues of a running service."""

from __future__ import annotations

from typing import Any

import click

from sqs_api.commands.operators import QUEUE, OperatorClient, asks, part, show_json
from sqs_api.commands.terminal_tables import instant, number, plain, show_table, span

_SORTS = ("name", "visible", "in_flight", "delayed", "oldest", "expires")
_DEAD_LETTER_SORTS = ("severity", "name", "visible", "arrived", "oldest", "expires")
_HEAD = ("queue", "visible", "in flight", "delayed", "oldest", "lost in", "dead letters")


@click.group()
def queues() -> None:
    """List queues and their dead letters."""


@queues.command("list")
@click.option("--search", help="A part of their names.")
@click.option(
    "--sort",
    type=click.Choice(tuple(dict.fromkeys((*_SORTS, *_DEAD_LETTER_SORTS)))),
    help="[default: name; of dead-letter queues, severity]",
)
@click.option("--reverse", is_flag=True, help="The other way round; empty queues stay last.")
@click.option(
    "--tag",
    "tags",
    metavar="KEY[=VALUE]",
    multiple=True,
    help="Only those with this tag; KEY^=VALUE: it begins so.",
)
@click.option("--dead-letters", is_flag=True, help="Dead-letter queues, the worst first.")
@click.option("--by-tag", metavar="KEY", help="Dead-letter queues grouped by this tag.")
@asks
def list_queues(
    service: OperatorClient,
    *,
    search: str | None,
    sort: str | None,
    reverse: bool,
    tags: tuple[str, ...],
    dead_letters: bool,
    by_tag: str | None,
    as_json: bool,
) -> None:
    """List the queues with their counters and ages."""
    if sort is not None and sort not in (_DEAD_LETTER_SORTS if dead_letters else _SORTS):
        raise click.UsageError(f"--sort {sort} is {'not ' if dead_letters else ''}for dead letters")
    if by_tag is not None and not dead_letters:
        raise click.UsageError("--by-tag needs --dead-letters")
    if tags and dead_letters:
        raise click.UsageError("--tag is not for dead letters: see --by-tag")
    path = "dead-letters" if dead_letters else "queues"
    more = {"by_tag": by_tag} if dead_letters else {"tags": "\n".join(tags) or None}
    order = {"sort": sort, "reverse": reverse or None}
    found = list(service.pages(path, "queues", "after", search=search, limit=500, **order, **more))
    if as_json:
        show_json(found)
    elif dead_letters:
        head = ("severity", *([] if by_tag is None else [plain(by_tag)]), "in last hour")
        show_table((*_HEAD, *head), (_dead_letter_line(queue, by_tag) for queue in found))
    else:
        show_table(_HEAD, map(_line, found))


_SIGNS_MAX = 90
"""Characters of a failure in a line."""


@queues.command()
@QUEUE
@click.option(
    "--sort",
    type=click.Choice(("messages", "first", "last", "lost")),
    default="messages",
    show_default=True,
)
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
@asks
def failures(service: OperatorClient, *, queue: str, sort: str, limit: int, as_json: bool) -> None:
    """Count the messages of dead-letter queue QUEUE by what they failed for. The id of a failure
    chooses its messages: `redrive start QUEUE --failure ID`."""
    found = service.get(f"queues/{part(queue)}/failures", sort=sort, limit=limit)
    if as_json:
        show_json(found)
        return
    show_table(
        ("failure", "messages", "in last hour", "first", "last", "lost at", "signs"),
        map(_failure_line, found["failures"]),
    )
    if found["others"]:
        click.echo(f"\n{number(found['others'])} messages of other failures")
    if not found["is_exact"]:
        click.echo(
            f"\ncounted {number(found['messages'])} of {number(found['stored'])} messages so far"
        )


def _failure_line(failure: dict[str, Any]) -> tuple[str, ...]:
    signs = failure["signs"]
    told = "masked" if signs is None else ", ".join(plain(each["value"]) for each in signs)
    return (
        failure["id"] or "-",
        number(failure["messages"]),
        number(failure["last_hour"]),
        *(instant(failure[name]) for name in ("first_ms", "last_ms", "lost_ms")),
        told[:_SIGNS_MAX],
    )


def _dead_letter_line(queue: dict[str, Any], by_tag: str | None) -> tuple[str, ...]:
    group = () if by_tag is None else (plain(queue["group"]),)
    return (*_line(queue), queue["level"], *group, number(queue["arrived"]))


def _line(queue: dict[str, Any]) -> tuple[str, ...]:
    has_messages = any(queue[name] for name in ("visible", "in_flight", "delayed"))
    links = [f"of {', '.join(queue['sources'])}"] if queue["sources"] else []
    if queue["dead_letter_queue"]:
        links.append(f"to {queue['dead_letter_queue']['name']}")
    return (
        queue["name"],
        number(queue["visible"]),
        number(queue["in_flight"]),
        number(queue["delayed"]),
        span(queue["oldest_age_s"]),
        span(queue["expires_in_s"]) if has_messages else "",
        "; ".join(links),
    )


@queues.command()
@QUEUE
@asks
def show(service: OperatorClient, *, queue: str, as_json: bool) -> None:
    """Show one queue: counters, attributes, tags, dead letters, the latest redrive."""
    found = service.get(f"queues/{part(queue)}")
    if as_json:
        show_json(found)
        return
    show_table(_HEAD, [_line(found)])
    if found["task"]:
        task = found["task"]
        click.echo(f"\nlatest redrive: {task['status']}, {task['moved']} of {task['to_move']}")
    meanings = {row["key"]: row["meaning"] for row in found["own_tags"]}
    for title in ("attributes", "tags"):
        if found[title]:
            click.echo()
            lines = [
                (plain(name), plain(text), meanings.get(name, ""))
                for name, text in found[title].items()
            ]
            show_table((title, "", ""), lines)
    for key, reason in found["tags_without_effect"].items():
        click.echo(f"\nwarning: tag {plain(key)} has no effect, since {reason}")
    if found["policy_without_effect"]:
        labels = plain(", ".join(found["policy_without_effect"]))
        click.echo(
            "\nwarning: these statements of the policy have no effect, since their Resource is "
            f"not this queue: {labels}"
        )
