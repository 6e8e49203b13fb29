"""Scripts from templates: what a trace says goes in as data, and the result is held against the template."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tracelens.reproducers.inputs import Unreplayable
from tracelens.reproducers.scripts.collective_kinds import CollectiveKind
from tracelens.reproducers.scripts.kits import Kit
from tracelens.reproducers.scripts.outline import MAKERS, difference, is_outline
from tracelens.reproducers.scripts.source import Source, literal
from tracelens.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

Choice = bool | Kit | CollectiveKind | frozenset[str]
"""What a template's structure depends on; never text of a trace. A set is one of outline.MAKERS."""


UNFAITHFUL = "its script was not written: "
"""How the reason begins where a script would be more than its template and data."""


def render(template: str, choices: Mapping[str, Choice], /, **data: Any) -> str:
    """A script from a template.

    The template is rendered twice: with the data, and with DATA in its place. If the two differ in more than
    that, text of a trace got into the script in a way that nobody meant.

    Args:
        template: name.
        choices: what its structure depends on.
        data: what it is filled with: numbers, texts, lists, which become literals, or Source.

    Raises:
        Unreplayable: the script is not its template with other data.
    """
    for name, choice in choices.items():
        if not (
            choice <= MAKERS
            if isinstance(choice, frozenset)
            else isinstance(choice, bool | Kit | CollectiveKind)
        ):
            raise TypeError(f"{name} may not affect the structure of a script")
    sources = {
        name: value if isinstance(value, Source) else Source(literal(value)) for name, value in data.items()
    }
    if with_data := [name for name, source in sources.items() if not is_outline(source.outline)]:
        raise TypeError(f"the outline of {', '.join(with_data)} contains data")
    fixed = {**choices, "version": __version__}
    compiled = _environment().get_template(template)
    text = compiled.render(fixed, **{name: source.text for name, source in sources.items()})
    outline = compiled.render(fixed, **{name: source.outline for name, source in sources.items()})
    if reason := difference(text.encode("utf-8", "surrogatepass"), outline):
        raise Unreplayable(f"{UNFAITHFUL}{reason}; please report this as a bug")
    return text


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("tracelens.reproducers"),
        autoescape=False,  # Python, not HTML; `render` checks what comes out
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
