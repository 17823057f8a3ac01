#!/bin/sh
# meg-preprocess: bytes, order, inputs, and what it refuses without leaving anything behind.
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
tokens() { # PREFIX: two-byte tokens
    od -An -v -tu2 "$1.bin" | xargs
}
index() { # PREFIX: sequences, entries of the document index, lengths, document index
    s=$(od -An -tu8 -j18 -N8 "$1.idx" | xargs) d=$(od -An -tu8 -j26 -N8 "$1.idx" | xargs)
    lengths=$(od -An -v -td4 -j34 -N$((4 * s)) "$1.idx" | xargs)
    echo "$s $d: $lengths : $(od -An -v -td8 -j$((34 + 12 * s)) "$1.idx" | xargs)"
}

# ---- what is written ----
cat >in.jsonl <<'end'
{"text": "5 6", "title": "1"}
{"title": "2", "text": ["7", "", "8 9"]}
{"text": [], "title": "3 3"}
{"text": "", "title": "4"}
end
status 'encodes' 0 null a --input in.jsonl
is 'tokens' "$(tokens a_text_document)" '5 6 7 8 9'
is 'sequences and documents, empty ones too' "$(index a_text_document)" '3 5: 2 1 2 : 0 1 3 3 3'
is 'type: uint16' "$(od -An -tu1 -j17 -N1 a_text_document.idx | xargs)" 8
null b --input in.jsonl --append-eod --json-keys text title
is 'the eod lengthens the last sequence' "$(tokens b_text_document): $(index b_text_document)" \
    '5 6 1000 7 8 9 1000: 3 5: 3 1 3 : 0 1 3 3 3'
is 'each key has its dataset' "$(tokens b_title_document)" '1 1000 2 1000 3 3 1000 4 1000'
{ echo; cat in.jsonl; } >blank.jsonl
null c --input blank.jsonl 2>err
is 'blank lines are counted, and a warning' "$(cat err)" 'meg-preprocess: skipped 1 blank line'
ok 'and are no documents' same a_text_document c_text_document
null d --input /dev/null
is 'an empty file is a dataset without documents' \
    "$(wc -c <d_text_document.bin | xargs) $(wc -c <d_text_document.idx | xargs)" '0 42'
meg-preprocess -q --input in.jsonl --tokenizer-type NullTokenizer --vocab-size 65499 --output-prefix wide
is 'four bytes from 65500 ids on' \
    "$(od -An -tu1 -j17 -N1 wide_text_document.idx | xargs) $(wc -c <wide_text_document.bin | xargs)" '4 20'

# ---- inputs ----
null stdin --input - <in.jsonl
ok 'standard input' same a_text_document stdin_text_document
for c in 'gzip -c' 'zstd -c -q' 'xz -c'; do
    $c in.jsonl >packed
    null "${c%% *}" --input packed
    ok "${c%% *}, by its first bytes" same a_text_document "${c%% *}_text_document"
done
{ head -n 1 in.jsonl | gzip -c; tail -n +2 in.jsonl | gzip -c; } >packed
null packed --input packed
ok 'two gzip streams in one file' same a_text_document packed_text_document
head -c 1000 /dev/zero >>packed
null packed --input packed
ok 'zeros behind them, as on a tape' same a_text_document packed_text_document
mkdir many
head -n 1 in.jsonl >many/1.jsonl && sed -n '2,3p' in.jsonl | tr -d '\n' | sed 's/}{/}\r{/' >many/2.jsonl
tail -n +4 in.jsonl >'many/[3].jsonl'
null many --input 'many/[12].jsonl' 'many/[3].jsonl'
ok 'patterns, names with brackets, no last newline, \r' same a_text_document many_text_document
sed 's/$/\r/' in.jsonl >crlf.jsonl
null crlf --input crlf.jsonl
ok 'lines that end with \r\n' same a_text_document crlf_text_document
yes '{"text":"5 6 7"}' | head -n 500000 | tr '\n' '\r' >cr.jsonl
status 'half a million lines that end with \r, in no more time than others' 0 \
    timeout 300 meg-preprocess -q --input cr.jsonl --tokenizer-type NullTokenizer --vocab-size 9 --output-prefix cr
is 'each of them a document' "$(meg-preprocess --info cr_text_document --json | jq -c '[.documents, .tokens]')" \
    '[500000,1500000]'
rm cr.jsonl cr_text_document.*
null dup --input - <<'end'
{"text":"1","text":"2","nan":[NaN,-Infinity],"t":"\ud800"}
end
is 'the last of two equal keys counts' "$(tokens dup_text_document)" 2

# ---- order ----
awk 'BEGIN { for (i = 0; i < 30000; i++) {
                 printf "{\"text\":\"%d", i % 1000
                 for (k = 0; k < i * 7 % 90; k++) printf " %d", (i * k) % 1000
                 print "\"}" } }' >big.jsonl
null w1 --input big.jsonl --append-eod
for n in 2 7; do
    null "w$n" --input big.jsonl --append-eod --workers "$n"
    ok "the same bytes from $n workers" same w1_text_document "w${n}_text_document"
done
seq 0 10 | sed 's/.*/{"text":"&"}/' >eleven.jsonl
null p --input eleven.jsonl --partitions 3 --workers 2
is 'partitions deal lines out' "$(tokens p_text_document)" '0 3 6 9 1 4 7 10 2 5 8'
for p in 1 2 0; do awk -v p=$p 'NR % 3 == p' big.jsonl; done >dealt.jsonl
null p --input dealt.jsonl --append-eod
null q --input big.jsonl --append-eod --partitions 3 --workers 3
ok 'of many blocks, too' same p_text_document q_text_document
# with as many partitions as lines, or more, it is the order of the lines, and empty partitions cost nothing
for p in 10 11 12 2147483648 9223372036854775807; do
    [ $p = 10 ] && order='0 10 1 2 3 4 5 6 7 8 9' || order='0 1 2 3 4 5 6 7 8 9 10'
    rm -f p_text_document.*
    timeout 60 meg-preprocess -q --tokenizer-type NullTokenizer --vocab-size 1000 --input eleven.jsonl --output-prefix p \
        --partitions $p --workers 2
    is "$p partitions of eleven lines" "$? $(tokens p_text_document)" "0 $order"
done
rm p_text_document.*
head -n 1 eleven.jsonl >one.jsonl
null p --input one.jsonl --partitions 2
is 'and of one' "$(tokens p_text_document)" 0
null p --input - --partitions 1 <one.jsonl
is 'one partition reads once' "$(tokens p_text_document)" 0
null p --input eleven.jsonl --partitions 3 --keep-sequential-samples
is 'or keep their order' "$(tokens p_text_document)" '0 1 2 3 4 5 6 7 8 9 10'
like 'speaks every --log-interval documents' "$(meg-preprocess --tokenizer-type NullTokenizer --vocab-size 1000 \
    --input big.jsonl --output-prefix log --log-interval 10000 2>&1)" \
    '^meg-preprocess: [0-9]+ documents \([0-9.]+ docs/s, [0-9.]+ MB/s\), [0-9]+ tokens$'

# Another worker comes upon the second bad line long before the first one.
{ head -n 400 big.jsonl; echo oops; sed -n '401,800p' big.jsonl | sed 's/^/oops/'; } >twice.jsonl
for i in $(seq 20); do
    null bad --input twice.jsonl --workers 3
done 2>err
is 'of several bad lines the first is named' "$(sort -u err | cut -d : -f 1-2)" 'meg-preprocess: twice.jsonl, line 401'
{ echo oops; yes "$(head -n 1 big.jsonl)"; } 2>&1 | timeout 300 meg-preprocess -q --input - --tokenizer-type NullTokenizer \
    --vocab-size 9 --output-prefix bad --workers 2 2>err
is 'which ends the work' $? 65
is 'and leaves nothing' "$(echo bad_*)" 'bad_*'
{ echo; cat big.jsonl; echo; } >blank.jsonl
meg-preprocess --input blank.jsonl --tokenizer-type NullTokenizer --vocab-size 1000 --output-prefix log --workers 3 2>err
is 'blank lines of all blocks are counted' "$(head -n 1 err)" 'meg-preprocess: skipped 2 blank lines'
like 'documents and tokens, too' "$(cat err)" \
    "30000 documents, $(meg-preprocess --info log_text_document --json | jq .tokens) tokens, [0-9.]+ s, [0-9.]*[1-9][0-9.]* MB/s\$"
if [ -f "${B:-}/tests/fault.so" ]; then
    MEG_FAULT_THREADS=1 LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0 \
        null few --input big.jsonl --append-eod --workers 4 2>err
    is 'threads that do not start are warned of' "$(cat err)" \
        'meg-preprocess: only 2 of 4 workers could be started: Resource temporarily unavailable'
    ok 'and the others do their work' same w1_text_document few_text_document
else
    skip 'threads that do not start' 'fault.so is not built: run make check'
fi

null auto --input big.jsonl --append-eod --workers auto --dataset-impl mmap
ok 'the same bytes from as many workers as there are processors' same w1_text_document auto_text_document

# ---- refusals: status, message, nothing left ----
refused() { # NAME MESSAGE OPTION...   with the input on standard input
    name=$1 want=$2
    shift 2
    null bad "$@" 2>err
    is "refuses $name" $? 65
    like "$name: says so" "$(cat err)" "^meg-preprocess: $want"
    is "$name: leaves nothing" "$(echo bad*)" 'bad*'
}
good='{"text":"1"}'
printf '%s\nno json\n' "$good" >input
refused 'what is not JSON' "standard input, line 2: column 1: found 'n'" --input - <input
printf '%s\n\n\n{"txt":"1"}\n' "$good" >input
refused 'a line without the key' 'standard input, line 4: no key "text"' --input - <input
printf '{"text":5}\n' >input
refused 'a number' 'standard input, line 1: key "text" holds a number' --input - <input
printf '{"text":["5",[]]}\n' >input
refused 'a list of lists' 'standard input, line 1: key "text" holds a list of other' --input - <input
printf '{"text":"\377"}\n' >bytes.jsonl
refused 'invalid UTF-8' 'bytes.jsonl, line 1: column 10: invalid UTF-8: byte 0xff; --replace-invalid reads U.FFFD' --input bytes.jsonl
printf '{"text":"\\udc00"}\n' >input
refused 'half a surrogate pair' 'standard input, line 1: column 10: .u escape of half' --input - <input
printf '{"text":"1"} {"text":"2"}\n' >input
refused 'two objects on a line' 'standard input, line 1: column 14' --input - <input
printf '{"text":"1001"}\n' >input
refused 'an id outside of the vocabulary' \
    'standard input, line 1: key "text": token id 1001 is outside of the vocabulary: 0 to 1000' --input - <input
printf '{"text":"99999999999999999999"}\n' >input
refused 'an id beyond any number' 'standard input, line 1: key "text": token id 9999.* is outside' --input - <input
printf '{"text":"1  2"}\n' >input
refused 'two blanks between ids' 'standard input, line 1: key "text": NullTokenizer reads' --input - <input
head -c 60 packed >cut.in
refused 'a cut .gz' 'cut.in: the gzip data is cut off' --input cut.in
zstd -c -q big.jsonl | head -c 5000 >cut.in
refused 'a cut .zst' 'cut.in: the zstd data is cut off' --input cut.in
xz -c big.jsonl | head -c 5000 >cut.in
refused 'a cut .xz' 'cut.in: the xz data is cut off' --input cut.in
{ gzip -c in.jsonl; echo tail; } >cut.in
refused 'what follows a .gz' 'cut.in: corrupt gzip data' --input cut.in
printf 'BZh91AY&SY\000' >bz2.in
refused 'a .bz2' 'bz2.in: this looks like bzip2, which is not read here; decompress it first: bzip2 -dc' --input bz2.in
{ cat big.jsonl; echo oops; } >input
refused 'a bad line far behind' 'standard input, line 30001:' --input - --workers 3 <input
cp a_text_document.idx bad_text_document.idx
printf 'oops\n' | null bad --input - 2>err
ok 'an earlier dataset of that name stays' cmp a_text_document.idx bad_text_document.idx
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
is 'ids from vocab.json and merges.txt' "$(tokens g_text_document)" '265 268 1 0'
status 'a text in place of a SentencePiece model' 65 \
    gpt2 x --input in.jsonl --tokenizer-type Llama2Tokenizer --tokenizer-model vocab.json
like 'is told what it is for' "$(cat err)" 'vocab.json: a text file, not a SentencePiece model; use TikTokenizer'
: >none.txt
status 'merges that are not there' 65 gpt2 x --input in.jsonl --merge-file none.txt
status 'a model by name' 66 gpt2 x --input in.jsonl --tokenizer-type HuggingFaceTokenizer --tokenizer-model gpt2
status 'a folder without tokenizer.json' 66 \
    meg-preprocess --input in.jsonl --output-prefix x --tokenizer-name-or-path /dev
like 'is named' "$(cat err)" '/dev: not a directory with tokenizer.json'
status 'two folders' 2 meg-preprocess --input in.jsonl --output-prefix x --tokenizer-name-or-path . --tokenizer-model .
status 'extra ids of a type that has none' 2 gpt2 x --input in.jsonl --vocab-extra-ids 2
printf '{"text":"a\377\360\237\230b"}\n' >bytes.jsonl
gpt2 r --replace-invalid --input bytes.jsonl
echo '{"text":"a\ufffd\ufffdb"}' | gpt2 r2 --input -
ok '--replace-invalid reads U+FFFD for each ill-formed part' same r_text_document r2_text_document
printf '{"\\ud800":1,"text":"a\\ud83d\\ud83db"}\n' >halves.jsonl
gpt2 r3 --replace-invalid --input halves.jsonl
ok 'and for each half of a surrogate pair' same r3_text_document r2_text_document
gpt2 x --input halves.jsonl 2>err
like 'which is refused otherwise' "$(cat err)" 'halves.jsonl, line 1: column 22: .u escape of half .*; --replace-invalid reads U\+FFFD'
printf '\357\273\277{"text":"low lower!"}\n' | gpt2 marked --input - --append-eod
ok 'a byte order mark is passed over' same marked_text_document g_text_document

# Each byte that follows no merge is a token, so lengths tell where the sentences end.
cat >prose.jsonl <<'end'
{"text":"Dr. No. Go!\n\nYes.", "list":["a","","Dr. b. c. d."]}
{"text":"", "list":[]}
end
lengths() { # OPTION...
    gpt2 s --split-sentences --input prose.jsonl "$@" 2>err
    index s_text_sentence
}
is 'sentences are sequences' "$(lengths)" '4 3: 3 3 3 4 : 0 4 4'
ok 'of a dataset that says so' test ! -e s_text_document.idx
like 'nothing is known of abbreviations' "$(cat err)" '^meg-preprocess: .*no --punkt-data'
is 'the eod is that of the document' "$(lengths --append-eod)" '4 3: 3 3 3 5 : 0 4 4'
is 'blanks are kept' "$(lengths --keep-newlines)" '4 3: 4 4 5 4 : 0 4 4'
mkdir -p punkt/english
echo dr >punkt/english/abbrev_types.txt
: >punkt/english/sent_starters.txt
: >punkt/english/collocations.tab
printf 'go\t48\n' >punkt/english/ortho_context.tab
is 'what is known counts' "$(lengths --punkt-data punkt)" '3 3: 7 3 4 : 0 3 3'
is 'without a warning' "$(cat err)" ''
gpt2 s --split-sentences --input prose.jsonl --json-keys list text 2>err
is 'lists are split already' "$(index s_list_sentence)" '2 3: 1 12 : 0 2 2'
gpt2 s7 --split-sentences --input prose.jsonl --workers 3 2>err
gpt2 s --split-sentences --input prose.jsonl 2>err
ok 'the same from three workers' same s_text_sentence s7_text_sentence
printf 'go\n' >punkt/english/ortho_context.tab
gpt2 bad --split-sentences --input prose.jsonl --punkt-data punkt 2>err
is 'refuses what is not Punkt data' $? 65
like 'and names the line' "$(cat err)" \
    "^meg-preprocess: punkt/english/ortho_context.tab, line 1: 'go': expected a word, a tab"
gpt2 bad --split-sentences --input prose.jsonl --punkt-data punkt --lang klingon 2>err
is 'a language that is not there is missing input' $? 66
is 'and neither leaves a file' "$(echo bad*)" 'bad*'

# ---- looking ----
is '--info as text' "$(meg-preprocess --info b_text_document | tr -s ' ' | tr '\n' ';')" \
    'path b_text_document;format mmap;dtype uint16;modes no;documents 4;empty_documents 2;sequences 3;tokens 7;longest_document_tokens 4;mean_document_tokens 1.8;longest_sequence_tokens 3;mean_sequence_tokens 2.3;'
is '--info as JSON' \
    "$(meg-preprocess --info b_text_document --json | jq -c '[.path, .modes, .documents, .mean_document_tokens]')" \
    '["b_text_document",false,4,1.75]'
is '--info of nothing' "$(meg-preprocess --info d_text_document | grep mean | tr -s ' ' | tr '\n' ';')" \
    'mean_document_tokens -;mean_sequence_tokens -;'
is '--decode: ids' "$(meg-preprocess --decode b_text_document --json)" '{"document":0,"ids":[5,6,1000],"lengths":[3]}
{"document":1,"ids":[7,8,9,1000],"lengths":[1,3]}
{"document":2,"ids":[],"lengths":[]}
{"document":3,"ids":[],"lengths":[]}'
look() { # OPTION...
    meg-preprocess --tokenizer-type NullTokenizer --vocab-size 1000 "$@"
}
is '--decode: text' "$(look --decode b_text_document 1)" '7 8 9 1000'
is '--decode: from one on' "$(look --decode b_text_document 1:9 --json)" \
    '{"document":1,"ids":[7,8,9,1000],"lengths":[1,3],"text":"7 8 9 1000"}
{"document":2,"ids":[],"lengths":[],"text":""}
{"document":3,"ids":[],"lengths":[],"text":""}'
is '--decode: none' "$(look --decode b_text_document 1:0)" ''
gpt2 w --input prose.jsonl
is 'what was encoded comes back' "$(gpt2 x --decode w_text_document)" "$(printf 'Dr. No. Go!\n\nYes.\n')"
status 'a document that is not there' 2 look --decode b_text_document 4
like 'is named' "$(cat "$T/err")" 'decode: document 4 does not exist: the dataset has 4, numbered from 0'
status 'no range' 2 look --decode b_text_document 1:-1
status 'nor this' 2 look --decode b_text_document a
status 'nor two' 2 look --decode b_text_document 1 2
status 'text needs a tokenizer' 2 meg-preprocess --decode b_text_document
status 'work and a look' 2 look --decode b_text_document --input in.jsonl
status '--json has nothing to print' 2 look --json --input in.jsonl --output-prefix x
status 'an id that the tokenizer lacks' 65 \
    meg-preprocess --decode b_text_document --tokenizer-type NullTokenizer --vocab-size 9
like 'is named by its document' "$(cat "$T/err")" '^meg-preprocess: b_text_document.bin: document 0: token id 1000 '
status 'a dataset that is not there' 66 meg-preprocess --info nowhere

vocabulary() { # NAME MESSAGE OPTION...: refused, status 65
    name=$1 want=$2
    shift 2
    gpt2 bad --input eleven.jsonl "$@" 2>err
    is "refuses $name" $? 65
    like "$name: says so" "$(cat err)" "^meg-preprocess: $want"
    is "$name: leaves nothing" "$(echo bad*)" 'bad*'
}
(cat merges.txt; echo 'q z') >m.txt
vocabulary 'a merge whose result is no token' \
    "m.txt does not match vocab.json \(1 of [0-9]+ merges\): line [0-9]+: 'q' \+ 'z' needs the token 'qz'\$" --merge-file m.txt
(cat merges.txt; echo 'low xyz'; for i in 1 2 3 4 5 6; do echo "q$i z"; done) >m.txt
vocabulary 'merges of tokens that are not there' \
    "m.txt does not match vocab.json \(7 of .*'low' \\+ 'xyz' needs the token 'xyz'; .*'q4'; \.\.\.\$" --merge-file m.txt
(cat merges.txt; echo 'l o w') >m.txt
vocabulary 'a line of three tokens' 'm.txt, line [0-9]+: expected two tokens' --merge-file m.txt
vocabulary 'a vocabulary in place of merges' \
    'vocab.json: this looks like a vocabulary \(--vocab-file\)' --merge-file vocab.json
jq -c 'del(."<|endoftext|>")' vocab.json >v.json
vocabulary 'a vocabulary with a hole' \
    "v.json: token '.*' has id 268; the ids of 268 tokens are 0 to 267" --vocab-file v.json
jq -c 'del(."<|endoftext|>") | .new = 0' vocab.json >v.json
vocabulary 'a vocabulary without <|endoftext|>' 'v.json: the end-of-document token <\|endoftext\|> is missing' --vocab-file v.json
jq -c '."!" = 0' vocab.json >v.json
vocabulary 'one id for two tokens' "v.json: tokens '.*' and '.*' both have id 0" --vocab-file v.json
jq -c '."!" = "1"' vocab.json >v.json
vocabulary 'an id that is no number' "v.json: token '!' has the invalid id \"1\"" --vocab-file v.json
printf '{"!":0,"<|endoftext|>":1,"!":2}' >v.json
vocabulary 'a token twice' "v.json: duplicate token '!'" --vocab-file v.json
printf 'version\n\0a b\n' >m.txt
vocabulary 'merges that are no text' 'm.txt: contains a zero byte' --merge-file m.txt
echo '["a"]' >v.json
vocabulary 'a vocabulary that is no object' "v.json: byte 1: found '\\[' where '\\{' of an object" --vocab-file v.json
echo '{"a":0' >v.json
vocabulary 'a vocabulary that is not JSON' 'v.json: byte 8: the text ends where' --vocab-file v.json
printf 'l o\n%s\nq z' "$(sed 1d merges.txt)" >m.txt
like 'warns of merges that are not read' "$(gpt2 w --input eleven.jsonl --merge-file m.txt 2>&1)" \
    'm.txt: the first line is not a version.*|m.txt: the last line has no newline'
is 'twice' "$(gpt2 w --input eleven.jsonl --merge-file m.txt 2>&1 | grep -c 'is ignored')" 2

truncate -s 65M huge
for option in 'GPT2BPETokenizer --merge-file merges.txt --vocab-file' 'GPT2BPETokenizer --vocab-file vocab.json --merge-file' \
    'BertWordPieceCase --vocab-file' 'TikTokenizer --tokenizer-model' 'Llama2Tokenizer --tokenizer-model'; do
    # shellcheck disable=SC2086
    meg-preprocess -q --input in.jsonl --output-prefix bad --tokenizer-type $option huge
done 2>err
is 'what is too large for a file of a tokenizer is not read' "$(sort -u err | tr '\n' ';')$(wc -l <err | xargs)" \
    'meg-preprocess: huge: size is 68157440 bytes; the limit for a tokenizer file is 67108864;5'
rm huge

# ---- command line ----
usage() { # NAME MESSAGE OPTION...
    name=$1 want=$2
    shift 2
    status "$name" 2 meg-preprocess --output-prefix bad "$@"
    like "$name: says so" "$(cat "$T/err")" "$want"
}
set -- --tokenizer-type NullTokenizer --vocab-size 9
usage 'input is required' 'input is required' "$@"
usage 'a tokenizer is required' 'tokenizer-type is required' --input a
usage 'NullTokenizer needs a size' 'NullTokenizer needs --vocab-size' --input a --tokenizer-type NullTokenizer
usage 'GPT2BPETokenizer needs its files' 'needs --merge-file' --input a --tokenizer-type GPT2BPETokenizer --vocab-file v
usage 'no worker' 'workers: 0' --input a "$@" --workers 0
usage 'workers that are no number' "workers: 'many' is neither a number nor auto" --input a "$@" --workers many
usage 'another format' "dataset-impl.*'lazy'" --input a "$@" --dataset-impl lazy
usage 'blanks of no sentences' 'keep-newlines has an effect only with --split-sentences' --input a "$@" --keep-newlines
usage 'a language of no sentences' 'lang has an effect only with --split-sentences' --input a "$@" --lang german
usage 'knowledge for no sentences' 'punkt-data has an effect only with --split-sentences' --input a "$@" --punkt-data p
usage 'a key twice' "'k' is given twice" --input a "$@" --json-keys k k
usage 'an unknown tokenizer' 'tokenizer-type' --input a --tokenizer-type Gpt2
usage 'partitions of standard input' 'not a regular file' --input - "$@" --partitions 2
status 'a missing file' 66 null bad --input nowhere.jsonl
like 'is named' "$(cat err "$T/err")" 'nowhere.jsonl: No such file'
status 'a missing vocabulary' 66 gpt2 bad --input in.jsonl --vocab-file nowhere.json
status 'a missing folder for the output' 74 null nowhere/bad --input in.jsonl
status 'a folder as input' 74 null bad --input many
(trap '' XFSZ && ulimit -f 2 && null bad --input big.jsonl) 2>err
is 'a disk that is full' $? 74
like 'is named with its file' "$(cat err)" '^meg-preprocess: .*bad_text_document.*: File too large$'
is 'none of these left a file' "$(echo bad*)" 'bad*'

# Every call of the write path fails once: no dataset is there (-), or both keys' are (n); never one of
# them, or one that is not whole (X), or a temporary file (t).
sweep() { # ERROR KIND OPTION...
    error=$1 kind=$2
    shift 2
    null whole --input in.jsonl --append-eod --json-keys text title "$@" 2>/dev/null
    seen=
    for at in $(seq 80); do
        rm -f out_*
        MEG_FAULT_AT=$at MEG_FAULT_ERRNO=$error LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0 \
            null out --input in.jsonl --append-eod --json-keys text title "$@"
        code=$?
        if [ "$(echo out_*)" = 'out_*' ]; then state=-
        elif same "out_text_$kind" "whole_text_$kind" && same "out_title_$kind" "whole_title_$kind"; then state=n
        else state=X
        fi
        [ "$code:$state" != 0:n ] && [ "$code" -ne 74 ] && state=$code
        [ "$(echo ./*.tmp.*)" = './*.tmp.*' ] || state=t
        seen=$seen$state
    done >err 2>&1
    like "a fault ($error) leaves nothing or both datasets: ${kind}s" "$seen" '^(n*-){30}[-n]*n$'
}
# Over older datasets: both are old (o) or both are new (n).
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
            if same "out_${key}_document" "whole_${key}_document"; then new=$((new + 1)); fi
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

# Lines that are longer than a block, between short ones; of more than 2^20 tokens some are written before all are
# there.
awk 'function text(n,   i) { printf "\"3"; for (i = 0; i < n; i++) printf " %d", i % 999; printf "\"" }
     BEGIN { print "{\"text\":\"1 2\"}"; printf "{\"text\":"; text(1000000); print "}\n{\"text\":\"4\"}"
             printf "{\"text\":[\"5\", \"\", "; text(1200000); printf ", \"6\", "; text(2400000); print "]}"
             print "{\"text\":\"7\"}" }' >long.jsonl
awk 'function text(n,   i) { print 3; for (i = 0; i < n; i++) print i % 999 }
     BEGIN { print 1; print 2; print 1000; text(1000000); print 1000; print 4; print 1000
             print 5; text(1200000); print 6; text(2400000); print 1000; print 7; print 1000 }' >long
for workers in 1 3; do
    null long --input long.jsonl --workers "$workers" --append-eod
    is "lines of megabytes, $workers workers" "$(index long_text_document | cut -d : -f 2-)" \
        ' 3 1000002 2 1 1200001 1 2400002 2 : 0 1 2 3 7 8'
    ok 'each of their tokens in its place' sh -c 'od -An -v -tu2 -w2 long_text_document.bin | tr -d " " | cmp - long'
    rm -f long_text_document.*
done
rm long
# One word that takes long, in a block before one whose ids are written as they come; again and again.
awk 'BEGIN { printf "{\"text\":\""; for (i = 0; i < 1000000; i++) printf "%c", 97 + i * i % 1009 % 26; print "\"}"
             printf "{\"text\":\""; for (i = 0; i < 700000; i++) printf "a "; print "\"}" }' >pair.jsonl
cat pair.jsonl pair.jsonl pair.jsonl pair.jsonl >long.jsonl
gpt2 one --input long.jsonl
gpt2 two --input long.jsonl --workers 2
ok 'such a block waits for its turn' same one_text_document two_text_document
# That word, and behind it more blocks of short ones than another worker holds the ids of.
{
    head -n 1 pair.jsonl
    yes "{\"text\":\"$(yes 'the cat sat' | head -n 200 | tr '\n' ' ')\"}" | head -n 2000
} >long.jsonl
gpt2 one --input long.jsonl
gpt2 two --input long.jsonl --workers 2
ok 'as many blocks as can be held wait for a slow one' same one_text_document two_text_document
rm pair.jsonl one_text_document.* two_text_document.*
# A list whose last text is nothing, once all others have been written: the eod goes behind them.
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' a >long.txt
awk 'BEGIN { printf "{\"text\":[\"a\""; for (i = 0; i < 1048576; i++) printf ",\"a\""; print ",\"  \"]}" }' |
    meg-preprocess -q --input - --tokenizer-type BertWordPieceLowerCase --vocab-file long.txt --append-eod \
        --output-prefix long
is 'what ends a document goes to its last sequence' \
    "$(meg-preprocess --info long_text_document | grep -E '^(tokens|sequences|longest_seq)' | tr -s '\n ' ' ')" \
    'sequences 1048577 tokens 1048578 longest_sequence_tokens 2 '
rm long_text_document.*
# And a disk that is full while a list of millions is written as it comes.
awk 'BEGIN { printf "{\"text\":[\"5 5\""; for (i = 0; i < 3000000; i++) printf ",\"5 5\""; print "]}" }' >long.jsonl
(trap '' XFSZ && ulimit -f 2 && null long --input long.jsonl) 2>err
is 'a disk that is full in the middle of a text' $? 74
is 'leaves nothing' "$(echo long_*)" 'long_*'
if [ -f "${B:-}/tests/fault.so" ]; then
    null whole --input long.jsonl
    for at in $(seq 12); do
        rm -f out_*
        MEG_FAULT_AT=$at MEG_FAULT_IN=.bin LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0 \
            null out --input long.jsonl 2>err
        case $?$(echo out_*) in
        '74out_*') printf - ;;
        0*) same out_text_document whole_text_document && printf n ;;
        *) printf X ;;
        esac
    done >seen
    like 'nor does one that fails once' "$(cat seen)" '^-{6,}n+$'
    rm whole_text_document.*
else
    skip 'nor does one that fails once' 'fault.so is not built: run make check'
fi
# Of a line of a gigabyte no more is read than it takes to refuse it.
{ echo '{"text":"1"}'; printf '{"text":"'; yes | tr -d '\n' | head -c 1073741824; echo '"}'; } 2>&1 |
    null bad --input - 2>err
is 'a line of a gigabyte is refused' $? 65
is 'and named' "$(cat err)" 'meg-preprocess: standard input, line 2: longer than 64 MiB; make several lines of it'
is 'and leaves nothing' "$(echo bad*)" 'bad*'
{ echo '{"text":"1"}'; head -c 68000000 /dev/zero | tr '\0' ' '; echo; } >spaces.jsonl
status 'whole in the block, too' 65 null bad --input spaces.jsonl
rm spaces.jsonl
mkdir "$T/hf"
cat >"$T/hf/tokenizer.json" <<'END'
{"pre_tokenizer": {"type": "Whitespace"}, "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1}}}
END
echo '{"text":"a b a"}' | meg-preprocess -q --input - --tokenizer-name-or-path "$T/hf" --output-prefix "$T/hf/d"
is 'a folder with tokenizer.json needs no type' \
    "$(meg-preprocess --decode "$T/hf/d_text_document" --json)" '{"document":0,"ids":[1,0,1],"lengths":[3]}'
is 'nor does it to decode' \
    "$(meg-preprocess --decode "$T/hf/d_text_document" --tokenizer-name-or-path "$T/hf")" 'a u a'
is 'in JSON, too' \
    "$(meg-preprocess --decode "$T/hf/d_text_document" --json --tokenizer-name-or-path "$T/hf" | jq -r .text)" 'a u a'

# What a tokenizer.json cannot cut is encoded up to a size, and where it can be cut, a text that holds a word up to one.
word() { # BYTES, of text, behind a short one
    printf '{"text":"a"}\n{"text":"'
    head -c "$1" /dev/zero | tr '\0' x
    echo ' a"}'
}
refuses_word() { # BYTES MOST
    word "$1" >word.jsonl
    status "a text of $1 bytes that is not cut is refused" 65 \
        meg-preprocess -q --input word.jsonl --tokenizer-name-or-path "$T/hf" --output-prefix bad
    like 'with what it may have' "$(cat "$T/err")" \
        "^meg-preprocess: word.jsonl, line 2: key \"text\": .*; at most $2 can be encoded: split the document"
}
refuses_word 6400000 6291456
sed -i 's/Whitespace/WhitespaceSplit/' "$T/hf/tokenizer.json"
word 6400000 | meg-preprocess -q --input - --tokenizer-name-or-path "$T/hf" --output-prefix "$T/hf/d"
is 'a word of that size where blanks are seams' \
    "$(meg-preprocess --decode "$T/hf/d_text_document" --json | cut -d : -f 2-)" '0,"ids":[1],"lengths":[1]}
1,"ids":[0,1],"lengths":[2]}'
refuses_word 17000000 16777216
is 'and leave nothing' "$(echo bad*)" 'bad*'
# U+FDFA, three bytes, of which NFKC makes 33.
sed -i 's/{/{"normalizer": {"type": "NFKC"}, /' "$T/hf/tokenizer.json"
printf '{"text":"a"}\n{"text":"%s"}\n' "$(yes "$(printf '\357\267\272')" | tr -d '\n' | head -c 6000000)" >word.jsonl
status 'nor a word that grows beyond it when it is normalised' 65 \
    meg-preprocess -q --input word.jsonl --tokenizer-name-or-path "$T/hf" --output-prefix bad
is 'which is said' "$(cat "$T/err")" \
    'meg-preprocess: word.jsonl, line 2: key "text": longer than 16 MiB when normalised; make several texts of it'
rm word.jsonl

cat >"$T/hf/tokenizer.json" <<'END'
{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?:(?:a|a)+)+b|(a|aa)+c"}, "behavior": "Isolated"},
 "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1}}}
END
printf '{"text":"a b"}\n{"text":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}\n' >a40.jsonl
status 'a text on which a regular expression would take for ever' 65 \
    meg-preprocess -q --input a40.jsonl --tokenizer-name-or-path "$T/hf" --output-prefix bad
like 'is named by its line' "$(cat "$T/err")" \
    '^meg-preprocess: a40.jsonl, line 2: key "text": regular expression .*: match limit exceeded'
sed -i 's/"Regex": "[^"]*"/"Regex": "[ab]+c|[ab]"/' hf/tokenizer.json
perl -e 'print "{\"text\":\"a b\"}\n{\"text\":\"", "ab" x 200000, "\"}\n"' >abab.jsonl
status 'a long text that is looked at from each byte' 65 timeout 60 \
    meg-preprocess -q --input abab.jsonl --tokenizer-name-or-path "$T/hf" --output-prefix bad
is 'is named by its line' "$(cat "$T/err")" \
    "meg-preprocess: abab.jsonl, line 2: key \"text\": regular expression '[ab]+c|[ab]', on a text of 400000 bytes: match \
limit exceeded; it backtracks too often on this text: split the text into shorter lines"

# ---- a name with line breaks ----
forged=$(printf 'no\nmeg-preprocess: 7 documents\033[2J')
status 'a file whose name has a line break' 66 meg-preprocess --input "$forged" --tokenizer-type NullTokenizer \
    --vocab-size 9 --output-prefix bad
is 'makes no message of it' "$(cat "$T/err")" \
    'meg-preprocess: no?meg-preprocess: 7 documents?[2J: no file matches'
echo 'no json' >"$forged"
status 'one that is there' 65 meg-preprocess --input "$forged" --tokenizer-type NullTokenizer --vocab-size 9 --output-prefix bad
is 'nor of a line in it' "$(wc -l <"$T/err") $(grep -c '^meg-preprocess: no?meg-preprocess: 7 documents?\[2J, line 1: ' "$T/err")" '1 1'
status 'an option' 2 meg-preprocess --vocab-size "$forged"
is 'nor of an option' "$(cat "$T/err")" "meg-preprocess: --vocab-size: 'no?meg-preprocess: 7 documents?[2J' is not a 64-bit integer
Try 'meg-preprocess --help'."

# ---- stopped in the middle ----
mkfifo pipe
meg-preprocess -q --input pipe --tokenizer-type NullTokenizer --vocab-size 9 --output-prefix stopped &
stopped=$!
{ echo '{"text":"1 2"}'; until ls stopped*.tmp.* >/dev/null 2>&1; do sleep 0.05; done; kill -TERM $stopped; } >pipe
wait $stopped
is 'a signal ends it' $? 143
is 'and what it had begun' "$(echo stopped*)" 'stopped*'

done_testing
