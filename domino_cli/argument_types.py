"""What a flag's text may be: argparse types, whose errors name the value."""

import argparse

from serving.address import is_host


def positive(text: str) -> int:
    """argparse type: an integer of at least 1."""
    return _integer(text, 1)


def not_negative(text: str) -> int:
    """argparse type: an integer of at least 0."""
    return _integer(text, 0)


def chance(text: str) -> float:
    """argparse type: a probability below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below 1")
    return value


def candidates(text: str) -> int | str:
    """argparse type: a number of tokens, or "certified"."""
    return text if text == "certified" else not_negative(text)


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {least}")
    return value


def host(text: str) -> str:
    """argparse type: an address or name to listen on."""
    if not is_host(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no address to listen on")
    return text


def port(text: str) -> int:
    """argparse type: a TCP port, 0 for a free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
