"""The chat template: the variables it reads, the form of content it expects, its rendering as transformers does it.

`rendered_text.py` bounds what it may write, `interruption.py` its time.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any

import jinja2.ext
import jinja2.meta
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

from gateway.tokens.message_shape import ContentFormat
from gateway.tokens.messages import Json


class _Generation(jinja2.ext.Extension):
    """Parses `{% generation %}`, transformers' tag around an assistant's text."""

    tags = {"generation"}  # noqa: RUF012  # the attribute's declared type is a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call, as in transformers: what is inside can change no variable of what is around it.
        return nodes.CallBlock(self.call_method("_shown"), [], [], body, lineno=line)

    def _shown(self, caller: Callable[[], str]) -> str:
        return caller()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  # templates pass them by position, too
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005  # the engine's local time, as it writes it


_ENVIRONMENT = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
)
_ENVIRONMENT.filters["tojson"] = _to_json
_ENVIRONMENT.globals |= {"raise_exception": _refuse, "strftime_now": _now}

_CUT = "CONTINUE_FINAL_MESSAGE_TAG "
"""Where a prompt ends that a model continues. It is transformers' own mark, so a text that holds it is cut alike. A
template may strip the blank at its end."""


class ChatTemplate:
    """One chat template, parsed once.

    Raises:
        jinja2.TemplateSyntaxError: it is not a template.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        tree = _ENVIRONMENT.parse(source)
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
        """The variables it reads from outside; the engine passes on no others."""
        self.content_format = _content_format(tree)
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self.indents = "indent" in source
        """Whether it may print values as indented JSON."""

    @functools.cached_property
    def _compiled(self) -> jinja2.Template:
        return _ENVIRONMENT.from_string(self.source)

    def render(
        self, messages: Sequence[Json], tools: Sequence[Json] | None, variables: Mapping[str, Any], *, continued: bool
    ) -> str:
        """The text of a conversation, as transformers' `apply_chat_template` has it.

        Args:
            messages: at least one.
            tools: JSON schemas.
            variables: all others, `documents` and `add_generation_prompt` too.
            continued: whether the text ends with the last message's content, for the model to continue it.

        Raises:
            jinja2.TemplateError: the template refuses the conversation.
            Exception: as it fails otherwise.
        """
        if not messages:
            raise ValueError("an empty conversation")
        given = {"documents": None, "add_generation_prompt": False} | dict(variables)
        if given["documents"] is not None and not all(isinstance(document, dict) for document in given["documents"]):
            raise TypeError("a document is not an object")
        if not continued:
            return self._compiled.render(messages=messages, tools=tools, **given)
        if given["add_generation_prompt"] or "content" not in self.source:
            raise ValueError("nothing to continue")
        messages = deepcopy(messages)
        content = _mark_end(messages[-1])
        text = self._compiled.render(messages=messages, tools=tools, **given)
        if content.strip() not in text or _CUT.strip() not in text:
            raise ValueError("the template does not show what is to be continued")
        end = text.rindex(_CUT.strip())
        return text[:end] if text[end : end + len(_CUT)] == _CUT else text[:end].rstrip()


def _mark_end(message: Json) -> str:
    """Put `_CUT` after a message's last text, and return that text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _CUT
        return content
    if content is None:
        raise ValueError("no content to continue")
    for part in reversed(content):
        if "text" in part:
            text: str = part["text"]
            part["text"] = text + _CUT
            return text
    raise ValueError("no text to continue")


def _content_format(tree: nodes.Template) -> ContentFormat:
    """`PARTS` if the template loops over a message's content, else `STRING`.

    It reads the syntax tree as vLLM does, with the same limits: it ignores scopes, and a loop or an assignment over
    messages into anything but a plain name means `STRING`.
    """
    try:
        loop = next(_content_loops(tree), None)
        if loop is None:
            return ContentFormat.STRING
        _name(loop.target)
    except _UnclearError:
        return ContentFormat.STRING
    return ContentFormat.PARTS


class _UnclearError(Exception):
    """The template binds messages in a way that this analysis does not follow."""


def _content_loops(tree: nodes.Template) -> Iterator[nodes.For]:
    messages = _names_bound_to(tree, "messages")
    message_names = [
        _name(loop.target) for loop in tree.find_all(nodes.For) if any(_reads(loop.iter, name) for name in messages)
    ]

    def is_content(node: nodes.Node) -> bool:
        return any(_reads(node, name, "content") for name in message_names)

    in_macros, parameters = _macro_loops(tree, is_content)
    for loop in tree.find_all(nodes.For):
        if is_content(loop.iter):
            yield loop
        elif isinstance(loop.iter, nodes.Name):
            name = loop.iter.name
            if name in parameters.get(id(loop), ()) or (name == "content" and id(loop) not in in_macros):
                yield loop


def _macro_loops(
    tree: nodes.Template, is_content: Callable[[nodes.Node], bool]
) -> tuple[set[int], dict[int, set[str]]]:
    """The loops inside macros, and for each the parameters of its macro that receive a message's content."""
    inside: set[int] = set()
    parameters: dict[int, set[str]] = {}
    calls: dict[str, list[nodes.Call]] = {}
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name):
            calls.setdefault(call.node.name, []).append(call)
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        given: set[str] = set()
        for call in calls.get(macro.name, ()):
            given |= {name for name, value in zip(names, call.args, strict=False) if is_content(value)}
            given |= {
                keyword.key
                for keyword in call.kwargs
                if isinstance(keyword, nodes.Keyword) and keyword.key in names and is_content(keyword.value)
            }
        for loop in macro.find_all(nodes.For):
            inside.add(id(loop))
            if given:
                parameters[id(loop)] = given
    return inside, parameters


def _names_bound_to(tree: nodes.Template, name: str) -> set[str]:
    """`name`, and every name to which some assignment gives its value or a part of it."""
    assignments = list(tree.find_all(nodes.Assign))
    bound: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop()
        bound.add(current)
        pending += [
            target
            for assignment in assignments
            if _reads(assignment.node, current) and (target := _name(assignment.target)) not in bound
        ]
    return bound


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _UnclearError
    return target.name


def _reads(node: nodes.Node | None, name: str, attribute: str | None = None) -> bool:
    """Whether an expression reads the variable (or its attribute), perhaps filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, attribute)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, attribute)
    if attribute is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == attribute and _reads_name(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == attribute and _reads_name(node.node, name)


def _reads_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
