"""HTML reports: one file without scripts or external resources, light and dark, texts escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

_STYLE = """
:root { color-scheme: light dark; --page: #f5f6f8; --card: #ffffff; --ink: #1b2330; --soft: #667085;
  --line: #e3e7ed; --first: #2f6fde; --second: #d9480f; --third: #0f8f7f; --fill: #0f8f7f22; --bad:
  #c92a2a; --bad-fill: #c92a2a14; --good: #2b8a3e; --track: #eef1f5; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1a2029; --ink: #e6e9ee;
  --soft: #98a2b3; --line: #2c3440; --first: #7aa7ff; --second: #ff9d66; --third: #4fd1bd; --fill:
  #4fd1bd22; --bad: #ff8787; --bad-fill: #ff878720; --good: #8ce99a; --track: #252d38; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.45 system-ui,
  -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-variant-numeric:
  tabular-nums; }
main { max-width: 1240px; margin: 0 auto; padding: 36px 24px 64px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 40px 0 4px; }
h3 { font-size: 16px; margin: 0; overflow-wrap: anywhere; }
h4 { font-size: 13px; margin: 18px 0 4px; color: var(--soft); font-weight: 600; }
p { margin: 0 0 12px; } .soft { color: var(--soft); } .small { font-size: 13px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 14px;
  margin: 22px 0 0; }
.figure, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.figure { padding: 14px 16px; } .figure b { display: block; font-size: 24px; line-height: 1.2;
  font-weight: 650; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(370px, 100%), 1fr));
  gap: 16px; margin-top: 14px; }
.cards.wide { grid-template-columns: minmax(0, 1fr); }
.card { padding: 16px 18px; min-width: 0; }
.head { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between; gap:
  2px 12px; }
.badges { margin: 8px 0 10px; display: flex; flex-wrap: wrap; gap: 6px; }
.badge { font-size: 12.5px; padding: 2px 9px; border-radius: 99px; background: var(--track);
  white-space: nowrap; }
.badge.bad { background: var(--bad-fill); color: var(--bad); font-weight: 600; } .bad { color:
  var(--bad); }
.badge.good { color: var(--good); }
svg { display: block; width: 100%; height: auto; margin-top: 2px; }
svg text { font: 10.5px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--line); stroke-width: 1; } .stroke { fill: none; stroke-width: 1.8;
  stroke-linejoin: round; stroke-linecap: round; } .s1 { stroke: var(--first); } .s2 { stroke:
  var(--second); } .s3 { stroke: var(--third); }
.f1 { fill: var(--first); } .f2 { fill: var(--second); } .f3 { fill: var(--third); } .area { fill:
  var(--fill); }
.key { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin: 0 5px 3px 10px;
  }
.key.k1 { background: var(--first); } .key.k2 { background: var(--second); } .key.k3 { background:
  var(--third); }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius:
  10px; margin-top: 14px; } .card .scroll { border: 0; margin-top: 0; border-radius: 0; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { padding: 7px 9px; text-align: right; border-bottom: 1px solid var(--line); white-space:
  nowrap; }
.card th, .card td { padding: 5px 12px 5px 0; } tbody tr:last-child td { border-bottom: 0; }
th { color: var(--soft); font-weight: 600; } th.text, td.text { text-align: left; }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 200px; } td.bar { width: 90px;
  min-width: 90px; }
.track { display: block; height: 7px; border-radius: 4px; background: var(--track); overflow:
  hidden; }
.track i { display: block; height: 100%; background: var(--first); border-radius: 4px; }
.shares { display: flex; height: 9px; border-radius: 5px; overflow: hidden; background:
  var(--track); gap: 1px; }
.shares i { min-width: 2px; } code { font: 12.5px ui-monospace, SFMono-Regular, Menlo, monospace; }
.commons { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(330px, 100%), 1fr));
  gap: 0 28px; }
.chart { max-width: 430px; } .commons td.long { min-width: 120px; }
@media print { body { background: #fff; } .card, .figure { break-inside: avoid; } }
"""


class Html(str):
    """Text that is already HTML; any other text is escaped when it is inserted."""

    __slots__ = ()


def html(template: str, *values: object) -> Html:
    """Fill in the template with escaped values."""
    return Html(template.format(*map(_safe, values)))


def joined(parts: Iterable[str]) -> Html:
    """Join the parts, escaped."""
    return Html("".join(map(_safe, parts)))


def _safe(value: object) -> str:
    return value if isinstance(value, Html) else escape(str(value))


def page(title: str, subtitle: str, made: datetime, parts: Iterable[Html]) -> str:
    """A complete HTML page."""
    head = html(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
        title,
        Html(_STYLE),
    )
    begin = html(
        '<h1>{}</h1>\n<p class="soft">{} Made {} UTC by Holdfast.</p>\n',
        title,
        subtitle,
        f"{made:%Y-%m-%d %H:%M}",
    )
    return joined([head, begin, *parts, Html("</main>\n</body>\n</html>\n")])


def figures(pairs: Sequence[tuple[str, str]]) -> Html:
    """Large numbers, each with a caption."""
    figure = '<div class="figure"><b>{}</b><span class="soft small">{}</span></div>\n'
    return html('<div class="figures">\n{}</div>\n', joined(html(figure, *pair) for pair in pairs))


def badge(text: str, kind: str = "") -> Html:
    """A short label; `kind` is "bad", "good" or empty."""
    return html('<span class="badge {}">{}</span>', kind, text)


def bar(share: float) -> Html:
    """A bar that shows a share from 0 to 1."""
    return html('<span class="track"><i style="width:{}%"></i></span>', f"{share * 100:.1f}")


def table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> Html:
    """A table. Each column has a title and a class: "" (numbers), "text", "text long" or "bar"."""
    header = joined(html('<th class="{}">{}</th>', kind, title) for title, kind in columns)
    body = joined(
        html(
            "<tr>{}</tr>\n",
            joined(
                html('<td class="{}">{}</td>', kind, value)
                for (_, kind), value in zip(columns, row, strict=True)
            ),
        )
        for row in rows
    )
    return html(
        '<div class="scroll"><table><thead><tr>{}</tr></thead>\n<tbody>{}</tbody></table></div>\n',
        header,
        body,
    )


# -- numbers as text -------------------------------------------------------------------------------


def duration(seconds: float | None) -> str:
    """A duration such as 3 h 12 min."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for size, unit, part_size, part in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // part_size
            return f"{whole // size} {unit}{f' {rest} {part}' if rest else ''}"
    raise AssertionError(seconds)


def number(value: float | None) -> str:
    """A number with separators; two digits if it is small."""
    if value is None:
        return "–"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2g}"


def signed(value: float | None) -> str:
    """A number with its sign."""
    return number(value) if value is None or value <= 0 else f"+{number(value)}"


def plural(count: int, noun: str) -> str:
    """A count with its noun, such as 3 hours."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
