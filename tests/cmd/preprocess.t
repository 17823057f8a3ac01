#!/bin/sh
# modules: io preprocess
# meg-preprocess: output files, order of documents, input formats, errors, inspection, failing writes.
. "${0%/*}/../lib.sh"
cd "$T" || exit 1

null() { # OUTPUT-PREFIX OPTION...
    prefix=$1
    shift
    meg-preprocess -q --tokenizer-type NullTokenizer --vocab-size 1000 --output-prefix "$prefix" "$@"
}
same() { # PREFIX PREFIX
    cmp "$1.bin" "$2.bin" && cmp "$1.idx" "$2.idx"
}
tokens() { # PREFIX: print the two-byte tokens
    od -An -v -tu2 "$1.bin" | xargs
}
index() { # PREFIX: print number of sequences, number of document index entries, lengths, document index
    s=$(od -An -tu8 -j18 -N8 "$1.idx" | xargs) d=$(od -An -tu8 -j26 -N8 "$1.idx" | xargs)
    lengths=$(od -An -v -td4 -j34 -N$((4 * s)) "$1.idx" | xargs)
    echo "$s $d: $lengths : $(od -An -v -td8 -j$((34 + 12 * s)) "$1.idx" | xargs)"
}

# ---- output ----
cat >in.jsonl <<'end'
{"text": "5 6", "title": "1"}
{"title": "2", "text": ["7", "", "8 9"]}
{"text": [], "title": "3 3"}
{"text": "", "title": "4"}
end
status 'JSON lines are encoded' 0 null a --input in.jsonl
is '.bin has the tokens' "$(tokens a_text_document)" '5 6 7 8 9'
is '.idx has sequences and documents, also empty ones' "$(index a_text_document)" '3 5: 2 1 2 : 0 1 3 3 3'
is 'the token type is uint16' "$(od -An -tu1 -j17 -N1 a_text_document.idx | xargs)" 8
null b --input in.jsonl --append-eod --json-keys text title
is '--append-eod extends the last sequence' "$(tokens b_text_document): $(index b_text_document)" \
    '5 6 1000 7 8 9 1000: 3 5: 3 1 3 : 0 1 3 3 3'
is 'each of --json-keys has its dataset' "$(tokens b_title_document)" '1 1000 2 1000 3 3 1000 4 1000'
{ echo; cat in.jsonl; } >blank.jsonl
null c --input blank.jsonl 2>err
is 'blank lines are a warning' "$(cat err)" 'meg-preprocess: skipped 1 blank line'
ok 'blank lines are not documents' same a_text_document c_text_document
grep . in.jsonl | null n --input - 2>err
is 'without blank lines there is no message' "$(cat err)" ''
null d --input /dev/null
is 'an empty file gives a dataset without documents' \
    "$(wc -c <d_text_document.bin | xargs) $(wc -c <d_text_document.idx | xargs)" '0 42'
meg-preprocess -q --input in.jsonl --tokenizer-type NullTokenizer --vocab-size 65499 --output-prefix wide
is 'tokens have four bytes from 65500 ids on' \
    "$(od -An -tu1 -j17 -N1 wide_text_document.idx | xargs) $(wc -c <wide_text_document.bin | xargs)" '4 20'

# ---- inputs ----
null stdin --input - <in.jsonl
ok 'standard input is read' same a_text_document stdin_text_document
for c in 'gzip -c' 'zstd -c -q' 'xz -c'; do
    $c in.jsonl >packed
    null "${c%% *}" --input packed
    ok "${c%% *} is recognized by its first bytes" same a_text_document "${c%% *}_text_document"
done
{ head -n 1 in.jsonl | gzip -c; tail -n +2 in.jsonl | gzip -c; } >packed
null packed --input packed
ok 'two gzip streams in one file are read' same a_text_document packed_text_document
head -c 1000 /dev/zero >>packed
null packed --input packed
ok 'zeros after gzip streams are ignored' same a_text_document packed_text_document
mkdir many
head -n 1 in.jsonl >many/1.jsonl && sed -n '2,3p' in.jsonl | tr -d '\n' | sed 's/}{/}\r{/' >many/2.jsonl
tail -n +4 in.jsonl >'many/[3].jsonl'
null many --input 'many/[12].jsonl' 'many/[3].jsonl'
ok 'patterns, names with brackets, a missing last newline and \r are read' same a_text_document many_text_document
sed 's/$/\r/' in.jsonl >crlf.jsonl
null crlf --input crlf.jsonl
ok 'lines that end with \r\n are read' same a_text_document crlf_text_document
yes '{"text":"5 6 7"}' | head -n 500000 | tr '\n' '\r' >cr.jsonl
status 'half a million lines that end with \r are read in linear time' 0 \
    timeout 300 meg-preprocess -q --input cr.jsonl --tokenizer-type NullTokenizer --vocab-size 9 --output-prefix cr
is 'each line that ends with \r is a document' "$(meg-preprocess --info cr_text_document --json | jq -c '[.documents, .tokens]')" \
    '[500000,1500000]'
rm cr.jsonl cr_text_document.*
null dup --input - <<'end'
{"text":"1","text":"2","nan":[NaN,-Infinity],"t":"\ud800"}
end
is 'the last of two equal keys is used' "$(tokens dup_text_document)" 2

# ---- order of documents ----
awk 'BEGIN { for (i = 0; i < 30000; i++) {
                 printf "{\"text\":\"%d", i % 1000
                 for (k = 0; k < i * 7 % 90; k++) printf " %d", (i * k) % 1000
                 print "\"}" } }' >big.jsonl
null w1 --input big.jsonl --append-eod
for n in 2 7; do
    null "w$n" --input big.jsonl --append-eod --workers "$n"
    ok "$n workers write the same bytes" same w1_text_document "w${n}_text_document"
done
seq 0 10 | sed 's/.*/{"text":"&"}/' >eleven.jsonl
null p --input eleven.jsonl --partitions 3 --workers 2
is '--partitions 3 orders lines as Megatron-LM does' "$(tokens p_text_document)" '0 3 6 9 1 4 7 10 2 5 8'
for p in 1 2 0; do awk -v p=$p 'NR % 3 == p' big.jsonl; done >dealt.jsonl
null p --input dealt.jsonl --append-eod
null q --input big.jsonl --append-eod --partitions 3 --workers 3
ok '--partitions orders many blocks as Megatron-LM does' same p_text_document q_text_document
# With at least as many partitions as lines, the order of lines is kept, and empty partitions need no time.
for p in 10 11 12 2147483648 9223372036854775807; do
    [ $p = 10 ] && order='0 10 1 2 3 4 5 6 7 8 9' || order='0 1 2 3 4 5 6 7 8 9 10'
    rm -f p_text_document.*
    timeout 60 meg-preprocess -q --tokenizer-type NullTokenizer --vocab-size 1000 --input eleven.jsonl --output-prefix p \
        --partitions $p --workers 2
    is "$p partitions of eleven lines keep their order" "$? $(tokens p_text_document)" "0 $order"
done
rm p_text_document.*
head -n 1 eleven.jsonl >one.jsonl
null p --input one.jsonl --partitions 2
is 'partitions of one line keep it' "$(tokens p_text_document)" 0
null p --input - --partitions 1 <one.jsonl
is 'one partition reads standard input' "$(tokens p_text_document)" 0
null p --input eleven.jsonl --partitions 3 --keep-sequential-samples
is '--keep-sequential-samples keeps the order of lines' "$(tokens p_text_document)" '0 1 2 3 4 5 6 7 8 9 10'
like '--log-interval logs progress' "$(meg-preprocess --tokenizer-type NullTokenizer --vocab-size 1000 \
    --input big.jsonl --output-prefix log --log-interval 10000 2>&1)" \
    '^meg-preprocess: [0-9]+ documents \([0-9.]+ docs/s, [0-9.]+ MB/s\), [0-9]+ tokens$'

# Another worker finds the second invalid line long before the first invalid line is read.
{ head -n 400 big.jsonl; echo oops; sed -n '401,800p' big.jsonl | sed 's/^/oops/'; } >twice.jsonl
for i in $(seq 20); do
    null bad --input twice.jsonl --workers 3
done 2>err
is 'the first of several invalid lines is named' "$(sort -u err | cut -d : -f 1-3)" 'meg-preprocess: twice.jsonl: line 401'
{ echo oops; yes "$(head -n 1 big.jsonl)"; } 2>&1 | timeout 300 meg-preprocess -q --input - --tokenizer-type NullTokenizer \
    --vocab-size 9 --output-prefix bad --workers 2 2>err
is 'an invalid line ends with 65' $? 65
is 'an invalid input leaves no file' "$(echo bad_*)" 'bad_*'
{ echo; cat big.jsonl; echo; } >blank.jsonl
meg-preprocess --input blank.jsonl --tokenizer-type NullTokenizer --vocab-size 1000 --output-prefix log --workers 3 2>err
is 'blank lines of all blocks are counted' "$(head -n 1 err)" 'meg-preprocess: skipped 2 blank lines'
like 'documents and tokens of all blocks are counted' "$(cat err)" \
    "30000 documents, $(meg-preprocess --info log_text_document --json | jq .tokens) tokens, [0-9.]+ s, [0-9.]*[1-9][0-9.]* MB/s\$"
if [ -f "${B:-}/tests/fault.so" ]; then
    MEG_FAULT_THREADS=1 LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0 \
        null few --input big.jsonl --append-eod --workers 4 2>err
    is 'a thread that cannot start is a warning' "$(cat err)" \
        'meg-preprocess: only 2 of 4 workers could be started: Resource temporarily unavailable'
    ok 'the other threads write the same bytes' same w1_text_document few_text_document
else
    skip 'threads that do not start' 'fault.so is not built: run make check'
fi

null auto --input big.jsonl --append-eod --workers auto --dataset-impl mmap
ok '--workers auto writes the same bytes' same w1_text_document auto_text_document

# ---- invalid input: exit status, message, no file left ----
refused() { # NAME MESSAGE OPTION...   with the input on standard input
    name=$1 want=$2
    shift 2
    null bad "$@" 2>err
    is "$name ends with 65" $? 65
    like "$name: the message states the error" "$(cat err)" "^meg-preprocess: $want"
    is "$name leaves no file" "$(echo bad*)" 'bad*'
}
good='{"text":"1"}'
printf '%s\nno json\n' "$good" >input
refused 'a line that is not JSON' "standard input: line 2: byte 1: found 'n'" --input - <input
printf '%s\n\n\n{"txt":"1"}\n' "$good" >input
refused 'a line without the key' 'standard input: line 4: the key "text" is missing' --input - <input
printf '{"text":5}\n' >input
refused 'a number as text' 'standard input: line 1: the value of key "text" is a number' --input - <input
printf '{"text":["5",[]]}\n' >input
refused 'a list of lists as text' 'standard input: line 1: the value of key "text" is a list with items other' --input - <input
printf '{"text":"\377"}\n' >bytes.jsonl
refused 'invalid UTF-8' 'bytes.jsonl: line 1: byte 10: invalid UTF-8: 0xff; use --replace-invalid to replace it with U.FFFD' --input bytes.jsonl
printf '{"text":"\\udc00"}\n' >input
refused 'a lone surrogate' 'standard input: line 1: byte 10: .u escape of a lone' --input - <input
printf '{"text":"1"} {"text":"2"}\n' >input
refused 'two objects on a line' 'standard input: line 1: byte 14' --input - <input
printf '{"text":"1001"}\n' >input
refused 'an id outside of the vocabulary' \
    'standard input: line 1: key "text": token id 1001 is not in the vocabulary, which has ids 0 to 1000' --input - <input
printf '{"text":"99999999999999999999"}\n' >input
refused 'an id of more than 64 bits' 'standard input: line 1: key "text": token id 9999.* is not in the vocabulary' --input - <input
printf '{"text":"1  2"}\n' >input
refused 'two blanks between ids' 'standard input: line 1: key "text": NullTokenizer: the text must be decimal ids separated by single spaces; found' --input - <input
head -c 60 packed >cut.in
refused 'a truncated .gz' 'cut.in: the gzip data is truncated' --input cut.in
zstd -c -q big.jsonl | head -c 5000 >cut.in
refused 'a truncated .zst' 'cut.in: the zstd data is truncated' --input cut.in
xz -c big.jsonl | head -c 5000 >cut.in
refused 'a truncated .xz' 'cut.in: the xz data is truncated' --input cut.in
{ gzip -c in.jsonl; echo tail; } >cut.in
refused 'a .gz with trailing garbage' 'cut.in: the gzip data is corrupt; copy or download the file again' --input cut.in
printf 'BZh91AY&SY\000' >bz2.in
refused 'a .bz2 file' 'bz2.in: found bzip2 data, expected text or JSON lines; decompress it: bzip2 -d' --input bz2.in
{ cat big.jsonl; echo oops; } >input
refused 'an invalid line after many blocks' 'standard input: line 30001:' --input - --workers 3 <input
cp a_text_document.idx bad_text_document.idx
printf 'oops\n' | null bad --input - 2>err
ok 'an older dataset with the same name is unchanged' cmp a_text_document.idx bad_text_document.idx
rm bad_text_document.idx

# ---- GPT2BPETokenizer ----
printf 'low lower lowest newest' | meg-vocab -q --vocab-size 269 --output-dir .
gpt2() { # OUTPUT-PREFIX OPTION...
    prefix=$1
    shift
    meg-preprocess -q --tokenizer-type GPT2BPETokenizer --output-prefix "$prefix" --vocab-file vocab.json \
        --merge-file merges.txt "$@"
}
echo '{"text":"low lower!"}' | gpt2 g --input - --append-eod
is 'vocab.json and merges.txt determine the ids' "$(tokens g_text_document)" '265 268 1 0'
status 'a text file as SentencePiece model ends with 65' 65 \
    gpt2 x --input in.jsonl --tokenizer-type Llama2Tokenizer --tokenizer-model vocab.json
like 'the message suggests the tokenizer type' "$(cat err)" 'vocab.json: this is a text file, not a SentencePiece model; use TikTokenizer'
: >empty.txt
status 'an empty merges file ends with 65' 65 gpt2 x --input in.jsonl --merge-file empty.txt
status 'a model name instead of a file ends with 66' 66 gpt2 x --input in.jsonl --tokenizer-type HuggingFaceTokenizer --tokenizer-model gpt2
status 'a directory without tokenizer.json ends with 66' 66 \
    meg-preprocess --input in.jsonl --output-prefix x --tokenizer-name-or-path /dev
like 'the message names the directory' "$(cat err)" '/dev: not a directory with tokenizer.json'
status 'two tokenizer directories end with 2' 2 meg-preprocess --input in.jsonl --output-prefix x --tokenizer-name-or-path . --tokenizer-model .
status '--vocab-extra-ids with a type without extra ids ends with 2' 2 gpt2 x --input in.jsonl --vocab-extra-ids 2
printf '{"text":"a\377\360\237\230b"}\n' >bytes.jsonl
gpt2 r --replace-invalid --input bytes.jsonl
echo '{"text":"a\ufffd\ufffdb"}' | gpt2 r2 --input -
ok '--replace-invalid replaces each ill-formed part with U+FFFD' same r_text_document r2_text_document
printf '{"\\ud800":1,"text":"a\\ud83d\\ud83db"}\n' >halves.jsonl
gpt2 r3 --replace-invalid --input halves.jsonl
ok '--replace-invalid replaces each lone surrogate with U+FFFD' same r3_text_document r2_text_document
gpt2 x --input halves.jsonl 2>err
like 'a lone surrogate is an error without --replace-invalid' "$(cat err)" 'halves.jsonl: line 1: byte 22: .u escape of a lone .*; use --replace-invalid to replace it with U\+FFFD'
printf '\357\273\277{"text":"low lower!"}\n' | gpt2 marked --input - --append-eod
ok 'a byte order mark is skipped' same marked_text_document g_text_document

# Each byte is a token unless it is merged, so the sequence lengths show where sentences end.
cat >prose.jsonl <<'end'
{"text":"Dr. No. Go!\n\nYes.", "list":["a","","Dr. b. c. d."]}
{"text":"", "list":[]}
end
lengths() { # OPTION...
    gpt2 s --split-sentences --input prose.jsonl "$@" 2>err
    index s_text_sentence
}
is '--split-sentences writes each sentence as a sequence' "$(lengths)" '4 3: 3 3 3 4 : 0 4 4'
ok 'the dataset is named sentence, not document' test ! -e s_text_document.idx
like 'a missing --punkt-data is a warning' "$(cat err)" '^meg-preprocess: .*--punkt-data is not set'
is 'the eod follows the last sentence of a document' "$(lengths --append-eod)" '4 3: 3 3 3 5 : 0 4 4'
is '--keep-newlines keeps the white space between sentences' "$(lengths --keep-newlines)" '4 3: 4 4 5 4 : 0 4 4'
mkdir -p punkt/english
echo dr >punkt/english/abbrev_types.txt
: >punkt/english/sent_starters.txt
: >punkt/english/collocations.tab
printf 'go\t48\n' >punkt/english/ortho_context.tab
is '--punkt-data has an effect on the sentences' "$(lengths --punkt-data punkt)" '3 3: 7 3 4 : 0 3 3'
is '--punkt-data causes no warning' "$(cat err)" ''
gpt2 s --split-sentences --input prose.jsonl --json-keys list text 2>err
is 'the texts of a list are not split' "$(index s_list_sentence)" '2 3: 1 12 : 0 2 2'
gpt2 s7 --split-sentences --input prose.jsonl --workers 3 2>err
gpt2 s --split-sentences --input prose.jsonl 2>err
ok 'three workers split the same sentences' same s_text_sentence s7_text_sentence
printf 'go\n' >punkt/english/ortho_context.tab
gpt2 bad --split-sentences --input prose.jsonl --punkt-data punkt 2>err
is 'invalid Punkt data end with 65' $? 65
like 'the message names file and line' "$(cat err)" \
    "^meg-preprocess: punkt/english/ortho_context.tab: line 1: found 'go', expected a word, a tab"
gpt2 bad --split-sentences --input prose.jsonl --punkt-data punkt --lang klingon 2>err
is 'a missing --lang ends with 66' $? 66
is 'invalid Punkt data leave no file' "$(echo bad*)" 'bad*'

# ---- inspection ----
is '--info prints text' "$(meg-preprocess --info b_text_document | tr -s ' ' | tr '\n' ';')" \
    'path b_text_document;format mmap;dtype uint16;modes no;documents 4;empty_documents 2;sequences 3;tokens 7;longest_document_tokens 4;mean_document_tokens 1.8;longest_sequence_tokens 3;mean_sequence_tokens 2.3;'
is '--info --json prints JSON' \
    "$(meg-preprocess --info b_text_document --json | jq -c '[.path, .modes, .documents, .mean_document_tokens]')" \
    '["b_text_document",false,4,1.75]'
is '--info of an empty dataset prints no means' "$(meg-preprocess --info d_text_document | grep mean | tr -s ' ' | tr '\n' ';')" \
    'mean_document_tokens -;mean_sequence_tokens -;'
is '--decode --json prints ids' "$(meg-preprocess --decode b_text_document --json)" '{"document":0,"ids":[5,6,1000],"lengths":[3]}
{"document":1,"ids":[7,8,9,1000],"lengths":[1,3]}
{"document":2,"ids":[],"lengths":[]}
{"document":3,"ids":[],"lengths":[]}'
inspect() { # OPTION...
    meg-preprocess --tokenizer-type NullTokenizer --vocab-size 1000 "$@"
}
is '--decode prints text' "$(inspect --decode b_text_document 1)" '7 8 9 1000'
is '--decode prints COUNT documents from FIRST on' "$(inspect --decode b_text_document 1:9 --json)" \
    '{"document":1,"ids":[7,8,9,1000],"lengths":[1,3],"text":"7 8 9 1000"}
{"document":2,"ids":[],"lengths":[],"text":""}
{"document":3,"ids":[],"lengths":[],"text":""}'
is '--decode prints nothing for COUNT 0' "$(inspect --decode b_text_document 1:0)" ''
gpt2 w --input prose.jsonl
is '--decode prints the text that was encoded' "$(gpt2 x --decode w_text_document)" "$(printf 'Dr. No. Go!\n\nYes.\n')"
status 'a document number out of range ends with 2' 2 inspect --decode b_text_document 4
like 'the message names the document' "$(cat "$T/err")" 'decode: document 4 does not exist: the dataset has 4 documents, numbered from 0'
status 'a negative COUNT ends with 2' 2 inspect --decode b_text_document 1:-1
status 'a FIRST that is not a number ends with 2' 2 inspect --decode b_text_document a
status 'two ranges end with 2' 2 inspect --decode b_text_document 1 2
status '--decode without tokenizer and --json ends with 2' 2 meg-preprocess --decode b_text_document
status '--decode with --input ends with 2' 2 inspect --decode b_text_document --input in.jsonl
status '--json without --info and --decode ends with 2' 2 inspect --json --input in.jsonl --output-prefix x
status 'an id that the tokenizer lacks ends with 65' 65 \
    meg-preprocess --decode b_text_document --tokenizer-type NullTokenizer --vocab-size 9
like 'the message names the document' "$(cat "$T/err")" '^meg-preprocess: b_text_document.bin: document 0: token id 1000 '
status 'a missing dataset ends with 66' 66 meg-preprocess --info nowhere

vocabulary() { # NAME MESSAGE OPTION...: check that an invalid vocabulary ends with 65 and a message
    name=$1 want=$2
    shift 2
    gpt2 bad --input eleven.jsonl "$@" 2>err
    is "$name ends with 65" $? 65
    like "$name: the message states the error" "$(cat err)" "^meg-preprocess: $want"
    is "$name leaves no file" "$(echo bad*)" 'bad*'
}
(cat merges.txt; echo 'q z') >m.txt
vocabulary 'a merge whose result is not a token' \
    "m.txt does not match vocab.json; 1 of [0-9]+ merges require tokens that are not in the vocabulary: line [0-9]+: 'q' \+ 'z' requires 'qz'\$" --merge-file m.txt
(cat merges.txt; echo 'low xyz'; for i in 1 2 3 4 5 6; do echo "q$i z"; done) >m.txt
vocabulary 'merges of tokens that are not in the vocabulary' \
    "m.txt does not match vocab.json; 7 of .* merges require tokens .*'low' \\+ 'xyz' requires 'xyz'; .*'q4'; \.\.\.\$" --merge-file m.txt
(cat merges.txt; echo 'l o w') >m.txt
vocabulary 'a line of three tokens' 'm.txt: line [0-9]+: expected two tokens' --merge-file m.txt
vocabulary 'a vocabulary file as merges file' \
    'vocab.json: this file looks like a vocabulary \(--vocab-file\)' --merge-file vocab.json
jq -c 'del(."<|endoftext|>")' vocab.json >v.json
vocabulary 'a vocabulary with a missing id' \
    "v.json: token '.*' has id 268; the ids of 268 tokens must be 0 to 267" --vocab-file v.json
jq -c 'del(."<|endoftext|>") | .new = 0' vocab.json >v.json
vocabulary 'a vocabulary without <|endoftext|>' 'v.json: the end-of-document token <\|endoftext\|> is missing' --vocab-file v.json
jq -c '."!" = 0' vocab.json >v.json
vocabulary 'one id for two tokens' "v.json: tokens '.*' and '.*' both have id 0" --vocab-file v.json
jq -c '."!" = "1"' vocab.json >v.json
vocabulary 'an id that is not a number' "v.json: token '!': the id must be a non-negative integer of at most 10 digits, found \"1\"" --vocab-file v.json
printf '{"!":0,"<|endoftext|>":1,"!":2}' >v.json
vocabulary 'a duplicate token' "v.json: duplicate token '!'" --vocab-file v.json
printf 'version\n\0a b\n' >m.txt
vocabulary 'merges that are not text' 'm.txt: contains a zero byte' --merge-file m.txt
echo '["a"]' >v.json
vocabulary 'a vocabulary that is not an object' "v.json: byte 1: found '\\[' where the '\\{' of an object" --vocab-file v.json
echo '{"a":0' >v.json
vocabulary 'a vocabulary that is not JSON' 'v.json: byte 8: the text ends where' --vocab-file v.json
printf 'l o\n%s\nq z' "$(sed 1d merges.txt)" >m.txt
like 'an ignored merge is a warning' "$(gpt2 w --input eleven.jsonl --merge-file m.txt 2>&1)" \
    'm.txt: the first line is not a version.*|m.txt: the last line has no newline'
is 'each ignored merge is a warning' "$(gpt2 w --input eleven.jsonl --merge-file m.txt 2>&1 | grep -c 'is ignored')" 2

truncate -s 65M huge
for option in 'GPT2BPETokenizer --merge-file merges.txt --vocab-file' 'GPT2BPETokenizer --vocab-file vocab.json --merge-file' \
    'BertWordPieceCase --vocab-file' 'TikTokenizer --tokenizer-model' 'Llama2Tokenizer --tokenizer-model'; do
    # shellcheck disable=SC2086
    meg-preprocess -q --input in.jsonl --output-prefix bad --tokenizer-type $option huge
done 2>err
is 'a tokenizer file that is too large is not read' "$(sort -u err | tr '\n' ';')$(wc -l <err | xargs)" \
    'meg-preprocess: huge: size is 68157440 bytes; the limit for a tokenizer file is 67108864;5'
rm huge

# ---- command line ----
usage() { # NAME MESSAGE OPTION...
    name=$1 want=$2
    shift 2
    status "usage error: $name" 2 meg-preprocess --output-prefix bad "$@"
    like "$name: the message states the error" "$(cat "$T/err")" "$want"
}
set -- --tokenizer-type NullTokenizer --vocab-size 9
usage 'input is required' 'input is required' "$@"
usage 'a tokenizer is required' 'tokenizer-type is required' --input a
usage 'NullTokenizer requires a size' 'NullTokenizer requires --vocab-size' --input a --tokenizer-type NullTokenizer
usage 'GPT2BPETokenizer requires its files' 'requires --merge-file' --input a --tokenizer-type GPT2BPETokenizer --vocab-file v
usage '--workers 0' 'workers 0: must be' --input a "$@" --workers 0
usage '--workers that is not a number' "workers many: must be a number or auto" --input a "$@" --workers many
usage '--dataset-impl lazy' 'dataset-impl lazy: must be mmap' --input a "$@" --dataset-impl lazy
usage '--keep-newlines without --split-sentences' 'keep-newlines: requires --split-sentences' --input a "$@" --keep-newlines
usage '--lang without --split-sentences' 'lang german: requires --split-sentences' --input a "$@" --lang german
usage '--punkt-data without --split-sentences' 'punkt-data p: requires --split-sentences' --input a "$@" --punkt-data p
usage 'a duplicate key' "'k' occurs twice" --input a "$@" --json-keys k k
usage 'an unknown tokenizer' 'tokenizer-type' --input a --tokenizer-type Gpt2
usage 'partitions of standard input' 'not a regular file' --input - "$@" --partitions 2
status 'a missing file ends with 66' 66 null bad --input nowhere.jsonl
like 'the message names the missing file' "$(cat err "$T/err")" 'nowhere.jsonl: No such file'
status 'a missing vocabulary ends with 66' 66 gpt2 bad --input in.jsonl --vocab-file nowhere.json
status 'a missing output directory ends with 74' 74 null nowhere/bad --input in.jsonl
status 'a directory as input ends with 74' 74 null bad --input many
(trap '' XFSZ && ulimit -f 2 && null bad --input big.jsonl) 2>err
is 'a full disk ends with 74' $? 74
like 'the message names the file' "$(cat err)" '^meg-preprocess: .*bad_text_document.*: File too large$'
is 'no failed command leaves a file' "$(echo bad*)" 'bad*'

# Let each call of the write path fail once.  Then there is no dataset (-) or the datasets of both keys (n), but never
# only one or an incomplete one (X), or a temporary file (t).
sweep() { # ERROR UNIT OPTION...
    error=$1 unit=$2
    shift 2
    null complete --input in.jsonl --append-eod --json-keys text title "$@" 2>/dev/null
    seen=
    for at in $(seq 80); do
        rm -f out_*
        MEG_FAULT_AT=$at MEG_FAULT_ERRNO=$error LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0 \
            null out --input in.jsonl --append-eod --json-keys text title "$@"
        code=$?
        if [ "$(echo out_*)" = 'out_*' ]; then state=-
        elif same "out_text_$unit" "complete_text_$unit" && same "out_title_$unit" "complete_title_$unit"; then state=n
        else state=X
        fi
        [ "$code:$state" != 0:n ] && [ "$code" -ne 74 ] && state=$code
        [ "$(echo ./*.tmp.*)" = './*.tmp.*' ] || state=t
        seen=$seen$state
    done >err 2>&1
    like "a fault ($error) leaves nothing or both datasets: ${unit}s" "$seen" '^(n*-){30}[-n]*n$'
}
# If older datasets exist, afterwards both are old (o) or both are new (n).
sweep_older() {
    printf '{"text":"1 2 3","title":"4"}\n' >older.jsonl
    null older --input older.jsonl --json-keys text title
    seen=
    for at in $(seq 80); do
        rm -f out_*
        for name in older_*; do cp "$name" "out_${name#older_}"; done
        MEG_FAULT_AT=$at MEG_FAULT_ERRNO=ENOSPC LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0 \
            null out --input in.jsonl --append-eod --json-keys text title
        new=0 old=0
        for key in text title; do
            if same "out_${key}_document" "complete_${key}_document"; then new=$((new + 1)); fi
            if same "out_${key}_document" "older_${key}_document"; then old=$((old + 1)); fi
        done
        case $new$old in
        20) state=n ;;
        02) state=o ;;
        0?) state=- ;;
        *) state=X ;;
        esac
        seen=$seen$state
    done >err 2>&1
    like 'the datasets of all keys are old or new after a fault' "$seen" '^(n*o){30}[on]*n$'
}
if [ -f "${B:-}/tests/fault.so" ]; then
    sweep ENOSPC document
    sweep_older
    sweep EIO document
    sweep ENOSPC sentence --split-sentences
else
    skip 'a fault at each call' 'fault.so is not built: run make check'
fi

# Lines longer than a block, between short lines.  If a line has more than 2^20 tokens, its first tokens are written
# before its last tokens are encoded.
awk 'function text(n,   i) { printf "\"3"; for (i = 0; i < n; i++) printf " %d", i % 999; printf "\"" }
     BEGIN { print "{\"text\":\"1 2\"}"; printf "{\"text\":"; text(1000000); print "}\n{\"text\":\"4\"}"
             printf "{\"text\":[\"5\", \"\", "; text(1200000); printf ", \"6\", "; text(2400000); print "]}"
             print "{\"text\":\"7\"}" }' >long.jsonl
awk 'function text(n,   i) { print 3; for (i = 0; i < n; i++) print i % 999 }
     BEGIN { print 1; print 2; print 1000; text(1000000); print 1000; print 4; print 1000
             print 5; text(1200000); print 6; text(2400000); print 1000; print 7; print 1000 }' >long
for workers in 1 3; do
    null long --input long.jsonl --workers "$workers" --append-eod
    is "lines of megabytes are encoded, $workers workers" "$(index long_text_document | cut -d : -f 2-)" \
        ' 3 1000002 2 1 1200001 1 2400002 2 : 0 1 2 3 7 8'
    ok 'each token of a long line is at its offset' sh -c 'od -An -v -tu2 -w2 long_text_document.bin | tr -d " " | cmp - long'
    rm -f long_text_document.*
done
rm long
# A word that is slow to encode is in a block before a long text, whose ids are written while it is encoded.
awk 'BEGIN { printf "{\"text\":\""; for (i = 0; i < 1000000; i++) printf "%c", 97 + i * i % 1009 % 26; print "\"}"
             printf "{\"text\":\""; for (i = 0; i < 700000; i++) printf "a "; print "\"}" }' >pair.jsonl
cat pair.jsonl pair.jsonl pair.jsonl pair.jsonl >long.jsonl
gpt2 one --input long.jsonl
gpt2 two --input long.jsonl --workers 2
ok 'a long text in a block after a slow one is written in order' same one_text_document two_text_document
# The slow word, followed by more blocks of short words than another worker can keep in memory.
{
    head -n 1 pair.jsonl
    yes "{\"text\":\"$(yes 'the cat sat' | head -n 200 | tr '\n' ' ')\"}" | head -n 2000
} >long.jsonl
gpt2 one --input long.jsonl
gpt2 two --input long.jsonl --workers 2
ok 'more blocks than fit in memory are written in order after a slow one' same one_text_document two_text_document
rm pair.jsonl one_text_document.* two_text_document.*
# A list whose last text is empty: the eod is added after all other texts are written.
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' a >long.txt
awk 'BEGIN { printf "{\"text\":[\"a\""; for (i = 0; i < 1048576; i++) printf ",\"a\""; print ",\"  \"]}" }' |
    meg-preprocess -q --input - --tokenizer-type BertWordPieceLowerCase --vocab-file long.txt --append-eod \
        --output-prefix long
is 'the eod extends the last sequence with ids' \
    "$(meg-preprocess --info long_text_document | grep -E '^(tokens|sequences|longest_seq)' | tr -s '\n ' ' ')" \
    'sequences 1048577 tokens 1048578 longest_sequence_tokens 2 '
rm long_text_document.*
# A disk that becomes full while a list of millions of texts is written.
awk 'BEGIN { printf "{\"text\":[\"5 5\""; for (i = 0; i < 3000000; i++) printf ",\"5 5\""; print "]}" }' >long.jsonl
(trap '' XFSZ && ulimit -f 2 && null long --input long.jsonl) 2>err
is 'a full disk in the middle of a text ends with 74' $? 74
is 'a full disk in the middle of a text leaves no file' "$(echo long_*)" 'long_*'
if [ -f "${B:-}/tests/fault.so" ]; then
    null complete --input long.jsonl
    for at in $(seq 12); do
        rm -f out_*
        MEG_FAULT_AT=$at MEG_FAULT_IN=.bin LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0 \
            null out --input long.jsonl 2>err
        case $?$(echo out_*) in
        '74out_*') printf - ;;
        0*) same out_text_document complete_text_document && printf n ;;
        *) printf X ;;
        esac
    done >seen
    like 'a write of a long text that fails once leaves no file' "$(cat seen)" '^-{6,}n+$'
    rm complete_text_document.*
else
    skip 'a write of a long text that fails once leaves no file' 'fault.so is not built: run make check'
fi
# A line of a gigabyte is refused without reading all of it.
{ echo '{"text":"1"}'; printf '{"text":"'; yes | tr -d '\n' | head -c 1073741824; echo '"}'; } 2>&1 |
    null bad --input - 2>err
is 'a line of a gigabyte ends with 65' $? 65
is 'the message names the line' "$(cat err)" 'meg-preprocess: standard input: line 2: the line is longer than 64 MiB; split the line'
is 'an invalid input leaves no file' "$(echo bad*)" 'bad*'
{ echo '{"text":"1"}'; head -c 68000000 /dev/zero | tr '\0' ' '; echo; } >spaces.jsonl
status 'a line of 64 MiB that fits the block ends with 65' 65 null bad --input spaces.jsonl
rm spaces.jsonl
mkdir "$T/hf"
cat >"$T/hf/tokenizer.json" <<'END'
{"pre_tokenizer": {"type": "Whitespace"}, "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1}}}
END
echo '{"text":"a b a"}' | meg-preprocess -q --input - --tokenizer-name-or-path "$T/hf" --output-prefix "$T/hf/d"
is 'a directory with tokenizer.json requires no --tokenizer-type' \
    "$(meg-preprocess --decode "$T/hf/d_text_document" --json)" '{"document":0,"ids":[1,0,1],"lengths":[3]}'
is '--decode with a directory of tokenizer.json prints text' \
    "$(meg-preprocess --decode "$T/hf/d_text_document" --tokenizer-name-or-path "$T/hf")" 'a u a'
is '--decode --json with a directory of tokenizer.json prints text' \
    "$(meg-preprocess --decode "$T/hf/d_text_document" --json --tokenizer-name-or-path "$T/hf" | jq -r .text)" 'a u a'

# A text without safe split points is encoded up to a limit of bytes; with safe split points, a larger limit applies to
# each word.
word() { # BYTES: print a line with a text of BYTES bytes after a short one
    printf '{"text":"a"}\n{"text":"'
    head -c "$1" /dev/zero | tr '\0' x
    echo ' a"}'
}
refuses_word() { # BYTES MOST
    word "$1" >word.jsonl
    status "a text of $1 bytes without safe split points ends with 65" 65 \
        meg-preprocess -q --input word.jsonl --tokenizer-name-or-path "$T/hf" --output-prefix bad
    like 'the message has the limit' "$(cat "$T/err")" \
        "^meg-preprocess: word.jsonl: line 2: key \"text\": .*; at most $2 can be encoded at once; split the document"
}
refuses_word 6400000 6291456
sed -i 's/Whitespace/WhitespaceSplit/' "$T/hf/tokenizer.json"
word 6400000 | meg-preprocess -q --input - --tokenizer-name-or-path "$T/hf" --output-prefix "$T/hf/d"
is 'a word of that size is encoded where white space is a safe split point' \
    "$(meg-preprocess --decode "$T/hf/d_text_document" --json | cut -d : -f 2-)" '0,"ids":[1],"lengths":[1]}
1,"ids":[0,1],"lengths":[2]}'
refuses_word 17000000 16777216
is 'texts that exceed the limit leave no file' "$(echo bad*)" 'bad*'
# U+FDFA has three bytes, and 33 after NFKC.
sed -i 's/{/{"normalizer": {"type": "NFKC"}, /' "$T/hf/tokenizer.json"
printf '{"text":"a"}\n{"text":"%s"}\n' "$(yes "$(printf '\357\267\272')" | tr -d '\n' | head -c 6000000)" >word.jsonl
status 'a word that exceeds the limit once normalised ends with 65' 65 \
    meg-preprocess -q --input word.jsonl --tokenizer-name-or-path "$T/hf" --output-prefix bad
is 'the message says so' "$(cat "$T/err")" \
    'meg-preprocess: word.jsonl: line 2: key "text": the text is longer than 16 MiB after normalization; split the text'
rm word.jsonl

cat >"$T/hf/tokenizer.json" <<'END'
{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?:(?:a|a)+)+b|(a|aa)+c"}, "behavior": "Isolated"},
 "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1}}}
END
printf '{"text":"a b"}\n{"text":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}\n' >a40.jsonl
status 'a text with exponential backtracking ends with 65' 65 \
    meg-preprocess -q --input a40.jsonl --tokenizer-name-or-path "$T/hf" --output-prefix bad
like 'the message names the line' "$(cat "$T/err")" \
    '^meg-preprocess: a40.jsonl: line 2: key "text": regular expression .*: match limit exceeded'
sed -i 's/"Regex": "[^"]*"/"Regex": "[ab]+c|[ab]"/' hf/tokenizer.json
perl -e 'print "{\"text\":\"a b\"}\n{\"text\":\"", "ab" x 200000, "\"}\n"' >abab.jsonl
status 'a long text with quadratic matching ends with 65' 65 timeout 60 \
    meg-preprocess -q --input abab.jsonl --tokenizer-name-or-path "$T/hf" --output-prefix bad
is 'the message names the line' "$(cat "$T/err")" \
    "meg-preprocess: abab.jsonl: line 2: key \"text\": regular expression '[ab]+c|[ab]' failed on a text of 400000 bytes: \
match limit exceeded; the expression backtracks too often on this text; split the text into shorter lines"

# ---- a name with line breaks ----
forged=$(printf 'no\nmeg-preprocess: 7 documents\033[2J')
status 'a missing file with a line break in its name ends with 66' 66 meg-preprocess --input "$forged" --tokenizer-type NullTokenizer \
    --vocab-size 9 --output-prefix bad
is 'the message has one line' "$(cat "$T/err")" \
    'meg-preprocess: no?meg-preprocess: 7 documents?[2J: no file matches this pattern'
echo 'no json' >"$forged"
status 'an invalid file with a line break in its name ends with 65' 65 meg-preprocess --input "$forged" --tokenizer-type NullTokenizer --vocab-size 9 --output-prefix bad
is 'the message on an invalid line of such a file has one line' "$(wc -l <"$T/err") $(grep -c '^meg-preprocess: no?meg-preprocess: 7 documents?\[2J: line 1: ' "$T/err")" '1 1'
status 'an option value with a line break ends with 2' 2 meg-preprocess --vocab-size "$forged"
is 'the message on the option has one line' "$(cat "$T/err")" "meg-preprocess: --vocab-size: 'no?meg-preprocess: 7 documents?[2J' is not a 64-bit integer
Try 'meg-preprocess --help'."

# ---- a signal ----
mkfifo pipe
meg-preprocess -q --input pipe --tokenizer-type NullTokenizer --vocab-size 9 --output-prefix stopped &
stopped=$!
{ echo '{"text":"1 2"}'; until ls stopped*.tmp.* >/dev/null 2>&1; do sleep 0.05; done; kill -TERM $stopped; } >pipe
wait $stopped
is 'SIGTERM ends with 143' $? 143
is 'SIGTERM leaves no file' "$(echo stopped*)" 'stopped*'

done_testing
