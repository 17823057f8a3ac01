"""Compare what meg-preprocess wrote with what another encoder returns for the same texts."""
import array
import itertools
import json
import struct
import sys

BATCH = 1 << 22  # characters of text, or 4 times the number of ids, after which a batch for the other encoder ends


def show(number, text, ours, theirs, name):
    at = next((i for i, (a, b) in enumerate(itertools.zip_longest(ours, theirs)) if a != b), None)
    sys.exit(f"text {number}, {text[:40]!r}...: from id {at} on {ours[at:at + 8]!r}, "
             f"{name} has {theirs[at:at + 8]!r}")


def each(function):
    """Return a function that maps `function` over a list."""
    return lambda many: [function(one) for one in many]


def read(path):
    with open(path, encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)


def batches(items, size):
    batch, nbytes = [], 0
    for item in items:
        batch.append(item)
        nbytes += size(item)
        if nbytes > BATCH:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def lengths(path):
    with open(path, "rb") as f:
        magic, version, code, sequences, documents = struct.unpack("<9sQBQQ", f.read(34))
        return code, array.array("i", f.read(4 * sequences))


def ids(prefix, path, name, encode_all):
    """Check that PREFIX_text_document has the ids that encode_all returns for the texts of path, JSON lines."""
    code, counts = lengths(prefix + "_text_document.idx")
    counts, nbytes, total, number = iter(counts), 0, 0, 0
    with open(prefix + "_text_document.bin", "rb") as f:
        for batch in batches((line["text"] for line in read(path)), len):
            for text, theirs in zip(batch, encode_all(batch), strict=True):
                ours = array.array({4: "i", 8: "H"}[code])
                if theirs:
                    ours.fromfile(f, next(counts))
                if list(ours) != theirs:
                    show(number, text, list(ours), theirs, name)
                number += 1
                nbytes += len(text.encode("utf-8"))
                total += len(theirs)
        if f.read(1) or next(counts, None) is not None:
            sys.exit(f"more ids than {name} has")
    if total == 0:
        sys.exit(f"no ids to compare in {path}")
    return f"{nbytes / 1e6:.1f} MB, {total} ids"


def texts(documents, name, decode_all, is_meant=lambda ids: True):
    """Check that each of documents, lines of meg-preprocess --decode --json, has the text that decode_all returns for
    its ids.  Skip documents for whose ids is_meant is false."""
    nbytes = 0
    meant = (document for document in read(documents) if is_meant(document["ids"]))
    for batch in batches(meant, lambda document: 4 * len(document["ids"])):
        for document, theirs in zip(batch, decode_all([document["ids"] for document in batch]), strict=True):
            if document["text"] != theirs:
                show(document["document"], theirs, document["text"], theirs, name)
            nbytes += len(theirs.encode("utf-8"))
    if nbytes == 0:
        sys.exit(f"no text to compare in {documents}")
    return f"{nbytes / 1e6:.1f} MB of decoded text"
