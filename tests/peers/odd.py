"""Print random texts as JSON lines: long runs, random letters and characters, all whitespace.

Except for emoji, characters newer than Unicode 3.2, or of another category since then, do not occur: how an encoder
treats them depends on the Unicode version of its tables (tokenizers 0.23 has those of Unicode 8, 9 and 16)."""
import json
import random
import unicodedata

r = random.Random(5)
n = 100000
category, old_category = unicodedata.category, unicodedata.ucd_3_2_0.category
settled = [c for c in map(chr, range(0x110000)) if category(c) == old_category(c) not in ("Cn", "Cs")]
letters = "abcdefghijklmnopqrstuvwxyz"
alphabets = ["a", "-", " ", "\n", "=", "0", letters, letters + " ", "\U0001f600", "\u2581 a", "\u0301e", "ﬁ", "\ufdfa",
             "".join(map(chr, range(0x1F600, 0x1F640))), "".join(map(chr, range(0x4E00, 0x9FA6))),
             "".join(map(chr, range(0x20, 0x7F))), "".join(map(chr, range(0x20))) + " a",
             "".join(c for c in settled if "\u0080" <= c < "\u3000"), " \u00a0\u2000\u3000\u200b\u2028\u0085ab",
             "".join(settled)]
for alphabet in alphabets:
    for size in 10, 1000, n:
        print(json.dumps({"text": "".join(r.choices(alphabet, k=size))}))
