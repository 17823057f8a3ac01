#!/bin/sh
# corpus.sh FILE|DIR... - print one document per line, {"text": ...}, in a shuffled but reproducible order.
# A FILE is text or JSON lines, possibly compressed.  In a DIR, text files are read, except hidden files and those in
# hidden directories; compressed files are not read.  Text is split at line ends into documents of about 2000 bytes, and
# its control characters except tabs are removed.  JSON lines are copied.  Bytes that are not valid UTF-8 are removed.
set -eu
LC_ALL=C
export LC_ALL

documents='
function flush_document() {
    if (text != "")
        printf "{\"text\":\"%s\"}\n", text
    text = ""
}
FNR == 1 { flush_document(); is_json = /^\{.*\}\r?$/ }
is_json { print; next }
length(text) >= 2000 { flush_document() }
{
    gsub(/["\\]/, "\\\\&")
    gsub(/\t/, "\\t")
    gsub(/[\001-\037\177]/, "")
    text = text $0 "\\n"
}
END { flush_document() }'

for path; do
    if [ -d "$path" ]; then
        (cd "$path" && grep -rIlZ --exclude-dir='.?*' --exclude='.?*' '' . | sort -z | xargs -0r awk "$documents")
    else
        zstd -dcfq -- "$path" | awk "$documents"
    fi
done | iconv -c -f UTF-8 -t UTF-8 | sort -R --random-source="$0" | awk '
{ print }
END {
    if (NR < 20) {
        print "CORPUS has " NR " documents of about 2000 bytes, needs at least 20; use more text" >"/dev/stderr"
        exit 1
    }
}'
