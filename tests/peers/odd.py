"""Prints texts that nobody wrote, as JSON lines: long runs, random letters and characters, blanks of all kinds.
What has no character assigned (in Unicode 14: Python 3.11) is left out: encoders differ there by the version they know."""
import json
import random
import unicodedata

r = random.Random(5)
n = 100000
assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
letters = "abcdefghijklmnopqrstuvwxyz"
alphabets = ["a", "-", " ", "\n", "=", "0", letters, letters + " ", "\U0001f600", "\u2581 a", "\u0301e", "ﬁ", "\ufdfa",
             "".join(map(chr, range(0x1F600, 0x1F640))), "".join(map(chr, range(0x4E00, 0x9FA6))),
             "".join(map(chr, range(0x20, 0x7F))), "".join(map(chr, range(0x20))) + " a",
             "".join(c for c in assigned if "\u0080" <= c < "\u3000"), " \u00a0\u2000\u3000\u200b\u2028\u0085ab",
             "".join(assigned)]
for alphabet in alphabets:
    for size in 10, 1000, n:
        print(json.dumps({"text": "".join(r.choices(alphabet, k=size))}))
