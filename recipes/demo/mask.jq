# Divide the text of a document into chunks of at most 100 characters.  In each chunk, mask the middle one of the words
# that are in the vocabulary: {"text": "... [MASK] ...", "word": the masked word}.
($vocab | split("\n") | map({ (.): true }) | add) as $known |
.text | gsub("\\s+"; " ") | scan("\\S.{0,99}(?= |$)") | . as $chunk |
[match("(?<![\\p{L}\\p{N}\\p{M}])\\p{L}{2,}(?![\\p{L}\\p{N}\\p{M}])"; "g") | select($known[.string | ascii_downcase])] |
select(length > 0) | .[length / 2 | floor] |
{ text: ($chunk[:.offset] + "[MASK]" + $chunk[.offset + .length:]), word: (.string | ascii_downcase) }
