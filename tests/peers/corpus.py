#!/usr/bin/env python3
"""corpus.py OUT MBYTES - write about MBYTES of text from this machine as JSON lines.

Sources are the corpora of MEG_SHARED, /usr/share/doc, the manual pages, Python's sources and C headers.  Files that are
not UTF-8 or contain a zero byte are skipped.  Texts, except those of .jsonl files, are split after 2^20 characters."""
import gzip
import json
import os
import sys

CUT = 1 << 20


def files():
    shared = os.environ.get("MEG_SHARED")
    roots = [os.path.join(shared, "data/corpus")] if shared else []
    roots += ["/usr/share/doc", "/usr/share/man", "/usr/lib/python3", "/usr/lib/python3.11", "/usr/include"]
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path):
                    yield path


def texts(path):
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            text = f.read().decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError):
        return
    if "\0" in text:
        return
    if path.endswith(".jsonl"):
        for line in text.splitlines():
            yield from json.loads(line).values() if line else ()
    else:
        for at in range(0, len(text), CUT):
            yield text[at:at + CUT]


def main(out, mbytes):
    left = int(mbytes) * 10**6
    with open(out, "w", encoding="utf-8") as f:
        for path in files():
            for text in texts(path):
                if isinstance(text, str):
                    f.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                    left -= len(text.encode())
            if left <= 0:
                return
    sys.exit("only %.1f MB of text is left to find" % (left / 1e6))


main(*sys.argv[1:])
