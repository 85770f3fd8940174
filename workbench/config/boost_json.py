"""Parse a ``boost_config.json`` as strict JSON, or say in one sentence what is wrong; ``boost_config.py`` validates it.

Python's JSON reader accepts more than JSON: NaN, infinities, and a key given twice, of which it silently keeps the
last. A configuration that means something else than it seems to say is refused here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.config.errors import ConfigError, shown


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file, see `parse_json`; whatever is wrong is a ConfigError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; a study writes its own into STUDY/result") from None
    except IsADirectoryError:
        files = sorted([*path.glob("boost_config*.json"), *path.glob("result/boost_config*.json")])
        hint = f"; give {files[0]}" if files else ""
        raise ConfigError(f"{path}: is a folder, not a file{hint}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read ({reason})") from None
    return parse_json(data, path.name)


def parse_json(document: str | bytes, name: str) -> dict[str, Any]:
    """Parse an object in strict JSON: no NaN, infinities and twin keys; a ConfigError says what is wrong.

    Its sentence begins with the name. Bytes are UTF-8, with or without byte order mark.
    """
    try:
        text = document if isinstance(document, str) else document.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: is not UTF-8 text (byte {error.start})") from None
    if not text.strip():
        raise ConfigError(f"{name}: is empty; expected a JSON object")

    def no_constant(constant: str) -> Any:
        raise ConfigError(f"{name}: numbers must be finite, got {constant}")

    def no_twin(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, value in pairs:
            if key in members:
                raise ConfigError(f"{name}: key {json.dumps(key, ensure_ascii=False)} appears twice in one object")
            members[key] = value
        return members

    try:
        values = json.loads(text, parse_constant=no_constant, object_pairs_hook=no_twin)
    except json.JSONDecodeError as error:
        fault = "ends too early, it looks half-written" if _is_cut_off(text, error) else "is not valid JSON"
        raise ConfigError(f"{name}: {fault} (line {error.lineno}, column {error.colno}: {error.msg})") from None
    except ConfigError:
        raise
    except ValueError:  # Python refuses integers of more than 4300 digits
        raise ConfigError(f"{name}: a number has too many digits") from None
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deeply") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: must hold an object of sections, got {shown(values)}")
    return values


def _is_cut_off(text: str, error: json.JSONDecodeError) -> bool:
    """Return whether more text could have cured the fault: it lies at the very end, or in a word that begins there."""
    rest = text[error.pos :].strip()
    if error.msg.startswith("Unterminated string"):
        return True
    if error.msg.startswith("Invalid \\uXXXX"):
        return '"' not in rest
    return any(word.startswith(rest) for word in ("true", "false", "null", "-", ".", "e-", "e+"))  # "" begins all
