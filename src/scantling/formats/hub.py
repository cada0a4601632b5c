"""Models of a hub by their id: config.json, and headers of safetensors files by range request.

Needs the extra ``hub`` (huggingface_hub), whose settings hold: ``HF_ENDPOINT``, ``HF_TOKEN``,
``HF_HOME`` for the cache and ``HF_HUB_OFFLINE``. No weight is fetched: of a safetensors file the
first bytes, and the rest of its header where that is longer.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scantling.errors import FieldError, shorten
from scantling.formats import safetensors
from scantling.formats.json_file import parse_object, read_object

if TYPE_CHECKING:
    from types import ModuleType

    from scantling.formats.checkpoint import Checkpoint

FIRST_BYTES = 100_000
"""Of a file's start in one request: the headers of most shards are shorter."""
TIMEOUT_S = 30.0
PARALLEL = 8
STATUS = {
    401: "needs a login, or does not exist",
    403: "may not be read with this login; its licence may have to be accepted",
    404: "does not exist",
}


def hub() -> ModuleType:
    """The package huggingface_hub.

    Raises:
        FieldError: If it is not installed.
    """
    try:
        found = importlib.import_module("huggingface_hub")
    except ImportError:
        hint = "pip install 'scantling[hub]', or give the path of its config.json"
        raise FieldError("model", None, "of a hub needs huggingface_hub", hint) from None
    if not hasattr(found, "get_session"):
        raise FieldError("huggingface_hub", found.__version__, "is too old", "1.0 or newer")
    return found


def is_repo_id(text: str) -> bool:
    """Whether a text can be a hub id: a name, a slash, a name.

    Example:
        >>> is_repo_id("Qwen/Qwen3-0.6B"), is_repo_id("a/b/c"), is_repo_id("../b")
        (True, False, False)
    """
    parts = text.split("/")
    legal = all(p.replace("-", "").replace("_", "").replace(".", "").isalnum() for p in parts)
    return len(parts) == 2 and legal and text.isascii() and not text.startswith(".")


def fetch_config(repo_id: str, revision: str = "main") -> tuple[dict[str, Any], list[str]]:
    """The config.json of a hub model, from the cache where it is there, with notes.

    Raises:
        FieldError: If it cannot be had: no package, no network, no such model, no right to it.
    """
    path = _cached(repo_id, "config.json", revision)
    if path is not None:
        return read_object(path)
    raw, _ = _read(repo_id, "config.json", revision, 0, 2**26)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise FieldError(f"{repo_id}/config.json", None, "is no text file") from None
    return parse_object(text, f"{repo_id}/config.json")


def fetch_checkpoint(repo_id: str, revision: str = "main") -> Checkpoint:
    """The headers of a hub model's safetensors files, with its config.

    Raises:
        FieldError: As ``fetch_config``; or if it has no safetensors files, or they are corrupt.
    """
    from scantling.formats.checkpoint import from_safetensors

    config, notes = fetch_config(repo_id, revision)
    try:
        index = _json(repo_id, safetensors.INDEX, revision)
    except _MissingError:
        index = None
    if index is None:
        try:
            header = _header(repo_id, "model.safetensors", revision)
        except _MissingError:
            raise FieldError("model", repo_id, "has no model.safetensors and no index") from None
        return from_safetensors(header, config, repo_id, notes)
    files = safetensors.shards(index, safetensors.INDEX)
    with ThreadPoolExecutor(PARALLEL) as pool:
        found = dict(zip(files, pool.map(lambda f: _header(repo_id, f, revision), files),
                         strict=True))  # fmt: skip
    header = safetensors.join(index, found.__getitem__, safetensors.INDEX)
    return from_safetensors(header, config, repo_id, notes)


class _MissingError(FieldError):
    """The hub has no such file."""


def _json(repo_id: str, name: str, revision: str) -> dict[str, Any]:
    path = _cached(repo_id, name, revision)
    if path is not None:
        return read_object(path)[0]
    raw, _ = _read(repo_id, name, revision, 0, 2**26)
    return parse_object(raw.decode("utf-8", "replace"), f"{repo_id}/{name}")[0]


def _header(repo_id: str, name: str, revision: str) -> safetensors.Header:
    path = _cached(repo_id, name, revision)
    if path is not None:
        return safetensors.read_file(path)
    first, file_bytes = _read(repo_id, name, revision, 0, FIRST_BYTES)
    n = safetensors.header_length(first, file_bytes, name)
    raw = first[8:]
    if n > len(raw):
        more, _ = _read(repo_id, name, revision, len(first), n - len(raw))
        raw += more
    return safetensors.parse(raw[:n], file_bytes, name)


def _cached(repo_id: str, name: str, revision: str) -> Path | None:
    """A file of the local cache, which holds without a network."""
    package = hub()
    with _framed(package, repo_id):
        found = package.try_to_load_from_cache(repo_id, name, revision=revision)
    return Path(found) if isinstance(found, str) else None


def _read(repo_id: str, name: str, revision: str, begin: int, n: int) -> tuple[bytes, int]:
    """At most n bytes of a file from begin, and the size of the whole file."""
    package = hub()
    where = f"{repo_id}/{name}"
    with _framed(package, where):
        url = package.hf_hub_url(repo_id, name, revision=revision)
        utils = importlib.import_module("huggingface_hub.utils")
        headers = utils.build_hf_headers(library_name="scantling")
        headers |= {"Range": f"bytes={begin}-{begin + n - 1}", "Accept-Encoding": "identity"}
        client = package.get_session()
        with client.stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response:
            status = response.status_code
            if status == 404:
                raise _MissingError(where, None, STATUS[404])
            if status not in {200, 206}:
                raise FieldError(where, None, STATUS.get(status, f"answered with status {status}"))
            skip = begin if status == 200 else 0  # a server may ignore the range
            found = bytearray()
            for chunk in response.iter_bytes(65536):
                found += chunk
                if len(found) >= skip + n:
                    break
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            total = total if status == 206 else response.headers.get("Content-Length", "")
    if not total.isdecimal() or len(total) > 18:
        raise FieldError(where, None, "was sent without its size")
    return bytes(found[skip : skip + n]), int(total)


@contextmanager
def _framed(package: ModuleType, where: str) -> Iterator[None]:
    """Everything a request can raise, as one line."""
    transport = importlib.import_module(type(package.get_session()).__module__.partition(".")[0])
    errors = importlib.import_module("huggingface_hub.errors")
    offline = "give the path of its config.json, or unset HF_HUB_OFFLINE"
    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise FieldError(where, None, "cannot be fetched offline", offline) from None
    except errors.HFValidationError as error:
        raise FieldError("model", where, f"is no hub id: {_first_line(error)}") from None
    except (transport.HTTPError, transport.InvalidURL, OSError) as error:
        what = f"cannot be fetched: {_first_line(error)}"
        raise FieldError(where, None, what, "check the network, HF_ENDPOINT and the name") from None


def _first_line(error: BaseException) -> str:
    return shorten(str(error).strip().partition("\n")[0] or type(error).__name__, 120)


__all__ = ["fetch_checkpoint", "fetch_config", "hub", "is_repo_id"]
