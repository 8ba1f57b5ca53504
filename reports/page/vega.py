"""Vega, Vega-Lite and Vega-Embed as one script that needs no network: it lies in the package as ``templates/vega.js.gz``.

``vl_convert.javascript_bundle()`` of vl-convert-python 1.9 made it, of Vega-Lite 6.4, whose schema Altair checks charts against.
Their licence is in the same folder. The file is kept because making it takes seconds, and a package of 30 MB.
"""

from __future__ import annotations

import base64
import functools
from pathlib import Path

FILE = Path(__file__).parent / "templates" / "vega.js.gz"


@functools.cache
def packed() -> str:
    """The script, compressed by gzip, in base64."""
    return base64.b64encode(FILE.read_bytes()).decode()
