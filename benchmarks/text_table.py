"""Rows of cells in, a Markdown table out that is also aligned on a terminal."""

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    rule = "|".join("-" * (width + 1) + ":" for width in widths)
    body = [
        "| " + " | ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    return "\n".join([body[0], f"|{rule}|", *body[1:]])
