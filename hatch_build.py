"""Gives the wheel README as its description, with links that also work elsewhere."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A link or picture of a page in Markdown, whose target is a file of the repository.
LOCAL = re.compile(r"(!?)(\[[^]]*\])\((?!https?:|#)([^)]+)\)")


class Description(MetadataHookInterface):
    """Reads ``repository`` from ``[tool.hatch.metadata.hooks.custom]``."""

    def update(self, metadata):
        """Set the description; without an address, links stay as they are."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if address := self.config.get("repository"):
            text = LOCAL.sub(lambda link: _absolute(address, *link.groups()), text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _absolute(address, picture, text, target):
    view = "raw" if picture else "blob"
    return f"{picture}{text}({address}/{view}/HEAD/{target})"
