"""``dict(net_arch=[64, 64], activation_fn=nn.ReLU)`` as data: read, never evaluated."""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["read_expression"]


def read_expression(text: str) -> Any:
    """Read a Python literal, in which ``dict(a=1)`` is a dict and a dotted name is its text.

    Raises:
        ValueError: The text is anything else.

    Example:
        >>> read_expression("dict(net_arch=dict(pi=[64]), activation_fn=nn.ReLU)")
        {'net_arch': {'pi': [64]}, 'activation_fn': 'nn.ReLU'}
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no Python literal") from error


def _value(node: ast.expr) -> Any:
    match node:
        case ast.List():
            return [_value(item) for item in node.elts]
        case ast.Tuple():
            return tuple(_value(item) for item in node.elts)
        case ast.Dict():
            return {_key(key): _value(value) for key, value in _pairs(node)}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return {_named(keyword): _value(keyword.value) for keyword in keywords}
        case ast.Name() | ast.Attribute():
            return _dotted(node)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{ast.unparse(node)!r} is neither a literal, dict(name=value) nor a name"
        ) from None


def _pairs(node: ast.Dict) -> list[tuple[ast.expr | None, ast.expr]]:
    return list(zip(node.keys, node.values, strict=True))


def _key(node: ast.expr | None) -> Any:
    if node is None:
        raise ValueError("'**' is not understood")
    return ast.literal_eval(node)


def _named(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError("'**' is not understood")
    return keyword.arg


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            return f"{_dotted(owner)}.{name}"
    raise ValueError(f"{ast.unparse(node)!r} is not a name")
