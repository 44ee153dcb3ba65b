"""Compressed files of a run: rows with gzip, long files of stored episodes with zstd."""

from __future__ import annotations

import gzip
import zlib

from marl_verl.errors import MarlError

LEVEL = 3
"""Of zstd, for stored episodes: 9 % smaller than gzip's level 6, in a quarter of the time (10 ms a MB)."""

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # how such files begin


def packed(content: bytes) -> bytes:
    """The content compressed with zstd. Equal contents give equal bytes."""
    import pyarrow as pa  # 0.1 s, which commands that read no such file do not need

    return bytes(pa.Codec("zstd", compression_level=LEVEL).compress(content, asbytes=True))


def unpacked(content: bytes, source: str) -> bytes:
    """The content of a file, decompressed if it is gzip or zstd. MarlError if that fails."""
    try:
        if content.startswith(GZIP):
            return gzip.decompress(content)
        if content.startswith(ZSTD):
            import pyarrow as pa

            return bytes(pa.CompressedInputStream(pa.BufferReader(content), "zstd").read())
    except (EOFError, OSError, zlib.error) as error:
        raise MarlError(f"{source} is damaged: it cannot be decompressed ({error})") from error
    return content
