"""What the person sent: text, links and embedded files, as a prompt and what is attached to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from acp.schema import (
    AudioContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

from pointcode_local.complete import mention
from pointcode_local.surrogates import without_surrogates

Block = TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock


class PromptError(Exception):
    """A prompt that cannot be taken; the text is for people."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """Text that the editor sent along; `source` names it."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` mentions linked files as `@path`, which attaches them as far as the rules allow reading them."""

    text: str
    attachments: tuple[Attachment, ...]
    blocks: tuple[Block, ...] = ()

    @property
    def links(self) -> dict[str, Path]:
        """The linked files by URI."""
        found = {block.uri: path_of(block.uri) for block in self.blocks if isinstance(block, ResourceContentBlock)}
        return {uri: path for uri, path in found.items() if path is not None}


def read_prompt(blocks: Sequence[Block], cwd: Path, unsaved: Mapping[str, str] | None = None) -> Prompt:
    """The prompt of a message's blocks; `unsaved` holds the text of linked files (by URI) that the editor has changed.

    Raises PromptError.
    """
    parts: list[str] = []
    attachments: list[Attachment] = []
    for block in blocks:
        match block:
            case TextContentBlock():
                parts.append(without_surrogates(block.text))
            case ResourceContentBlock() if unsaved and block.uri in unsaved:
                name = name_of(block.uri, cwd)
                attachments.append(_shown(name, unsaved[block.uri]))
                parts.append(name)
            case ResourceContentBlock():
                parts.append(_link(block, cwd))
            case EmbeddedResourceContentBlock():
                attachment = _embedded(block, cwd)
                attachments.append(attachment)
                parts.append(_mentioned_by_name(attachment.source, parts))
            case ImageContentBlock() | AudioContentBlock():
                raise PromptError(f"{block.type} content is not supported: the model reads text only")
    text = _joined(parts)
    if not text.strip():
        raise PromptError("the prompt is empty")
    return Prompt(text, tuple(attachments), tuple(blocks))


def _joined(parts: Sequence[str]) -> str:
    """The parts in order; a name never runs into the word beside it."""
    text = ""
    for part in parts:
        gap = " " if text and part and not text[-1].isspace() and not part[0].isspace() else ""
        is_punctuation = part[:1] in tuple(".,;:!?)]}")
        text += ("" if is_punctuation else gap) + part
    return text.strip()


def path_of(uri: str) -> Path | None:
    """The file that a URI (or a plain path) names; None for other schemes."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return Path(uri) if uri.startswith("/") else None


def name_of(uri: str, cwd: Path) -> str:
    """How to call a resource: relative inside the folder, else as it is."""
    path = path_of(without_surrogates(uri))
    if path is None:
        return without_surrogates(uri)
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def _link(block: ResourceContentBlock, cwd: Path) -> str:
    if path_of(block.uri) is None:
        return f"[{without_surrogates(block.title or block.name)}]({without_surrogates(block.uri)})"
    return mention(name_of(block.uri, cwd))


def _embedded(block: EmbeddedResourceContentBlock, cwd: Path) -> Attachment:
    name = name_of(block.resource.uri, cwd)
    if not isinstance(block.resource, TextResourceContents):
        return Attachment(name, f"[{name} is binary; this model reads text only]")
    return _shown(name, block.resource.text)


def _shown(name: str, text: str) -> Attachment:
    return Attachment(name, f"[contents of {name}, as the editor shows it]\n{without_surrogates(text)}")


def _mentioned_by_name(name: str, parts: Sequence[str]) -> str:
    """The name stands in the text where the editor put the file, unless the text has it already. Without `@`: its
    contents come along, so nothing is read from disk."""
    return "" if any(name in part for part in parts) else name
