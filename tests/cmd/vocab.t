#!/bin/sh
# modules: tokenizer
# meg-vocab: vocabularies of several inputs and formats, invalid input, and failing writes.
. "${0%/*}/../lib.sh"
top=$(cd "${0%/*}/../.." && pwd)
cd "$T" || exit 1

# "x x" and "Ġ x" occur three times each, and x has the smaller id.  "a b", "b c" and "c d" occur twice each; after the
# merge of "a b", "ab c" and "c d" occur twice each.
printf 'abcd abcd xx xx xx' >text
status 'trains on a file' 0 meg-vocab --input text --vocab-size 261 --output-dir v
is 'merges are by frequency, and ties by id' "$(cat v/merges.txt)" "$(printf '#version: 0.2\nx x\nĠ xx\na b\nc d\n')"
is '<|endoftext|> has id 0' "$(jq '."<|endoftext|>"' v/vocab.json)" 0
is 'the bytes have ids 1 to 256' "$(jq -c '[."!", ."~", ."¡", ."Ā", ."Ń"]' v/vocab.json)" '[1,94,95,189,256]'
is 'merged tokens have ids from 257' "$(jq -c '[.xx, ."Ġxx", .ab, .cd]' v/vocab.json)" '[257,258,259,260]'
is 'tokenizer.json has the same vocabulary' "$(jq -S -c .model.vocab v/tokenizer.json)" "$(jq -S -c . v/vocab.json)"
is 'tokenizer.json has the same merges' "$(jq -r '.model.merges[] | join(" ")' v/tokenizer.json)" "$(tail -n +2 v/merges.txt)"

is 'tokenizer_config.json names the class and the special tokens' "$(jq -c '[.tokenizer_class, .eos_token, .add_bos_token]' v/tokenizer_config.json)" \
    '["PreTrainedTokenizerFast","<|endoftext|>",false]'
printf '{"text":"abcd"}\n' | meg-preprocess -q --input - --output-prefix p --append-eod \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model v 2>err
is 'HuggingFaceTokenizer opens the output directory and appends <|endoftext|>' "$(cat err; meg-preprocess --decode p_text_document --json --tokenizer-model v | jq -c .ids)" '[259,260,0]'

# ---- WordPiece
# "xx" occurs three times.  "a ##b", "##b ##c" and "##c ##d" occur twice; a has the smallest id, then ##c.
wordpiece() { meg-vocab -q --tokenizer-type BertWordPieceLowerCase --input "$@" 2>err; }
wordpiece text --vocab-size 18 --output-dir wp
is 'WordPiece: special tokens, characters, and merges by frequency' "$(tr '\n' ' ' <wp/vocab.txt)" \
    '[PAD] [UNK] [CLS] [SEP] [MASK] a b c d x ##b ##c ##d ##x xx ab ##cd abcd '
is 'WordPiece: there is one file' "$(ls wp)" vocab.txt
printf '{"text":"ABCD xxx d\303\251"}\n' | meg-preprocess -q --input - --output-prefix wp-ids \
    --tokenizer-type BertWordPieceLowerCase --vocab-file wp/vocab.txt 2>err
is 'WordPiece: BertWordPieceLowerCase opens vocab.txt' \
    "$(cat err; meg-preprocess --decode wp-ids_text_document --json | jq -c .ids)" '[17,14,13,1]'
printf 'A\303\211 a\303\251 a\303\251.\n' >accents
wordpiece accents --output-dir lower
is 'BertWordPieceLowerCase: lower case without accents; punctuation is a word' "$(sed 1,5d lower/vocab.txt | tr '\n' ' ')" '. a e ##e ae '
wordpiece accents --tokenizer-type BertWordPieceCase --output-dir case
is 'BertWordPieceCase: text is unchanged' "$(sed 1,5d case/vocab.txt | tr '\n' ' ')" '. A a É é ##É ##é aé AÉ '
perl -CO -e 'print map { chr(0x4E00 + $_) } 0 .. 1000' >cjk
wordpiece cjk --output-dir cjk-wp
is 'WordPiece: of equally frequent characters, the 1000 with the smallest code points are kept' \
    "$(wc -l <cjk-wp/vocab.txt | tr -d ' ') $(tail -n 1 cjk-wp/vocab.txt)" "1005 $(perl -CO -e 'print chr(0x4E00 + 999)')"
wordpiece "$top/LICENSE" --vocab-size 500 --output-dir license-wp
wordpiece "$top/LICENSE" --vocab-size 300 --output-dir license-300
is 'WordPiece: a smaller vocabulary is the beginning of a larger one' "$(head -n 300 license-wp/vocab.txt | cksum)" "$(cksum <license-300/vocab.txt)"
status 'WordPiece: a vocabulary without space for the characters is an error' 2 wordpiece text --vocab-size 13 --output-dir small
like 'the message has the smallest size' "$(cat err)" \
    '^meg-vocab: --vocab-size 13: the special tokens and the characters of the text are already 14 tokens; use a larger value$'
status 'WordPiece: a vocabulary without space for the special tokens is an error' 2 wordpiece text --vocab-size 5 --output-dir small
printf ' \n' >blank
status 'WordPiece: text without words is an error' 65 wordpiece blank --output-dir small
ok 'WordPiece: failed runs leave no files' test ! -e small/vocab.txt

# ---- byte-level BPE
# tests/peers/vocab.py train DIR 1000 LICENSE, with tokenizers 0.23.3, wrote the reference.
meg-vocab -q --input "$top/LICENSE" --vocab-size 1000 --output-dir license
ok "merges equal those of Hugging Face's trainer" cmp license/merges.txt "$top/tests/data/vocab/license-1000.merges.txt"

printf '{"text":"abcd abcd"}\n\n{"text":["xx"," xx xx"],"other":"zz zz zz"}\n' >lines.jsonl
meg-vocab -q --input lines.jsonl --vocab-size 261 --output-dir j
ok 'JSON lines are detected by the file name' grep -q '"Ġxx":' j/vocab.json
unlike 'other keys are ignored' "$(cat j/vocab.json)" zz
meg-vocab -q --vocab-size 261 --output-dir stdin <lines.jsonl
ok 'JSON lines are detected by content on standard input' cmp -s j/vocab.json stdin/vocab.json
meg-vocab -q --input-format text --vocab-size 280 --output-dir raw <lines.jsonl
like '--input-format text reads JSON lines as text' "$(cat raw/merges.txt)" '^" }$|^t e$'
tail -n 1 lines.jsonl | meg-vocab -q --json-key other --vocab-size 259 --output-dir k
is '--json-key selects the keys' "$(sed 1d k/merges.txt)" "$(printf 'z z\nĠ zz\n')"

gzip -k lines.jsonl && zstd -q lines.jsonl && xz -k lines.jsonl
for suffix in gz zst xz; do
    meg-vocab -q --input "lines.jsonl.$suffix" --vocab-size 261 --output-dir "$suffix"
    ok "reads .$suffix files" cmp -s j/merges.txt "$suffix/merges.txt"
done
mkdir parts
split -l 1 lines.jsonl parts/p.
meg-vocab -q --input 'parts/p.*' --input-format jsonl --vocab-size 261 --output-dir globbed
ok 'several files are one corpus' cmp -s j/merges.txt globbed/merges.txt

meg-vocab --input text --vocab-size 1000 --output-dir all 2>err
like 'warns if the text yields fewer tokens' "$(cat err)" '^meg-vocab: .*the text yields only 263 tokens instead of the 1000 of --vocab-size; use more text or a smaller --vocab-size$'
meg-vocab -q --input text --min-frequency 3 --output-dir min 2>err
is 'stops at --min-frequency' "$(sed 1d min/merges.txt)" "$(printf 'x x\nĠ xx\n')"

status 'rejects invalid UTF-8' 65 sh -c 'printf "ok\nno\377\n" | meg-vocab --output-dir x'
like 'the message has line and byte of invalid UTF-8' "$(cat err)" '^meg-vocab: standard input: line 2: invalid UTF-8: 0xff at byte 3$'
awk 'BEGIN { for (i = 0; i < 60000; i++) print "a lone \rcarriage return" }' >cr
printf '\377\n' >>cr
like 'a lone carriage return is part of a line of text' "$(meg-vocab --input cr --output-dir x 2>&1)" 'cr: line 60001: invalid UTF-8'
like 'the message has line and column of invalid JSON' "$(meg-vocab --output-dir x 2>&1 <<'end'
{"text":"a"}
{"text":"b"
end
)" '^meg-vocab: standard input: line 2: byte 12: the text ends where'
status 'rejects a line without the key' 65 sh -c 'echo "{\"a\":\"b\"}" | meg-vocab --output-dir x'
status 'rejects an empty input' 65 meg-vocab --output-dir x --input /dev/null
status 'fails if a file is missing' 66 meg-vocab --output-dir x --input nowhere
status 'fails if a pattern has no matches' 66 meg-vocab --output-dir x --input 'nowhere*'
head -c 40 lines.jsonl.gz >cut.jsonl.gz
status 'rejects a truncated .gz file' 65 meg-vocab --output-dir x --input cut.jsonl.gz
status 'rejects a vocabulary size below 257' 2 meg-vocab --output-dir x --vocab-size 256 --input text
status 'requires --output-dir' 2 meg-vocab --input text
ok 'failed runs leave no files' test ! -e x
printf x >blocked
status 'an output directory that cannot be created is an error' 74 meg-vocab --input text --output-dir blocked/v
(trap '' XFSZ && ulimit -f 2 && meg-vocab --input text --output-dir full) 2>err
is 'a full disk is an error' $? 74
like 'the message names the failed write' "$(cat err)" '^meg-vocab: full/.*: File too large$'
is 'a full disk leaves no files' "$(echo full/*)" 'full/*'
mkdir -p taken/vocab.json
status 'an output name that is a directory is an error' 74 meg-vocab --input text --output-dir taken
is 'a failed rename leaves no other files' "$(ls taken)" vocab.json
# Let each call of the write path fail once.  Afterwards the output is the old vocabulary (o) or the new one (n), never
# missing (-) or a mixture (X), and there is no temporary file (t).
is_vocabulary() { cmp -s out/vocab.json "$1/vocab.json" && cmp -s out/merges.txt "$1/merges.txt" && cmp -s out/tokenizer.json "$1/tokenizer.json"; }
sweep() { # ERROR
    seen=
    for at in $(seq 80); do
        rm -rf out
        cp -R v out
        MEG_FAULT_AT=$at MEG_FAULT_ERRNO=$1 LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0 \
            meg-vocab -q --input lines.jsonl --vocab-size 261 --output-dir out
        code=$?
        if is_vocabulary v; then state=o
        elif is_vocabulary j; then state=n
        elif [ "$(echo out/*.*)" = 'out/*.*' ]; then state=-
        else state=X
        fi
        [ "$code:$state" != 0:n ] && [ "$code" -ne 74 ] && state=$code
        [ "$(echo out/*.tmp.*)" = 'out/*.tmp.*' ] || state=t
        seen=$seen$state
    done 2>err
    like "the vocabulary is all old or all new after a fault ($1)" "$seen" '^(n*o){30}[on]*nnn$'
}
if [ -f "${B:-}/tests/fault.so" ]; then
    sweep ENOSPC
    sweep EIO
else
    skip 'the vocabulary after a fault at each call' 'fault.so is not built: run make check'
fi
done_testing
