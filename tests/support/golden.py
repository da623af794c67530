"""Golden bytes: blocks of commented hexadecimal in tests/golden/, and those in SPEC.md."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["ROOT", "golden", "spec_golden", "spec_state_table"]

ROOT = Path(__file__).resolve().parents[2]


def golden(name: str) -> dict[str, bytes]:
    """The blocks of ``tests/golden/<name>.hex``."""
    blocks: dict[str, str] = {}
    title = ""
    for line in (ROOT / "tests" / "golden" / f"{name}.hex").read_text().splitlines():
        code = line.split("#", 1)[0].strip()
        if code.startswith("["):
            title = code.strip("[]")
            blocks[title] = ""
        elif code:
            blocks[title] += code
    return {title: bytes.fromhex(code) for title, code in blocks.items()}


def spec_golden() -> dict[str, bytes]:
    """The ``name: hex`` lines of SPEC.md's golden blocks."""
    blocks = re.findall(r"^```golden\n(.*?)^```", (ROOT / "SPEC.md").read_text(), re.M | re.S)
    lines = [line.split(":") for block in blocks for line in block.splitlines() if line]
    return {name.strip(): bytes.fromhex(code) for name, code in lines}


def spec_state_table() -> dict[tuple[str, str], str]:
    """(state, message) -> next state, as SPEC.md's table has it; cells with "-" are left out."""
    text = (ROOT / "SPEC.md").read_text()
    table = text[text.index("<!-- state-table -->") :].split("\n\n")[0].splitlines()[1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    header = rows[0]
    return {
        (row[0], message): cell
        for row in rows[2:]
        for message, cell in zip(header[1:], row[1:], strict=True)
        if cell != "-"
    }
