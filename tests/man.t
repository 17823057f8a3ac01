#!/bin/sh
# Manual pages have no mandoc warnings, list exactly the options of their command, and their examples run.
#
# The lines after '$ ' of a page are run in order in one directory, and so are the lines of the README that begin with a
# command of meg, with the README's tiny.conf.  The directory initially contains:
#   corpus.jsonl corpus.jsonl.zst   {"text": ...} a line        notes.txt   plain text
#   vocab.json merges.txt           512 tokens trained on it    ids.jsonl   {"ids": [...]} a line
#   corpus_text_document.bin .idx   its tokens                  prompts.txt a prompt a line
#   more.jsonl, more_text_document.bin .idx   further text      tiny.conf   options of a tiny GPT
#   tiny/                           checkpoint of the tiny GPT (10 iterations)
#   tiny-hf/                        the checkpoint, converted to Hugging Face's format
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
top=$PWD

# page_options PAGE: print the names in the option lists of a page, one per line
page_options() {
    awk '$1 == ".It" { for (i = 2; i < NF; i++) if ($i == "Fl" && $(i + 1) ~ /^-./) print substr($(i + 1), 2) }' "$1" |
        tr _ - | sort
}

# shown: print the commands after '$ '; a backslash at the end of a line continues the command.
shown() {
    awk '
        more || /^ *\$ / {
            sub(/^ */, "")
            if (!more)
                sub(/^\$ /, "")
            more = sub(/\\$/, "")
            printf "%s%s", $0, more ? "" : "\n"
        }' "$@"
}

# ignored_without_word PAGE: print the first lines of the explanations of ignored options that do not begin with Ignored:
ignored_without_word() {
    awk '/^\.S[sh]/ { section = $0 == ".Ss Accepted and ignored"; depth = 0; item = 0 }
         section && depth == 1 && item && $1 != ".It" && $1 != "Ignored:"
         /^\.Bl/ { depth++ }
         /^\.El/ { depth-- }
         { item = $1 == ".It" }' "$1"
}

for page in man/*; do
    is "$page has no mandoc warnings" "$(mandoc -Tlint -Wwarning "$page" 2>&1)" ''
    is "$page says of each ignored option that it is ignored" "$(ignored_without_word "$page")" ''
    for path in $(sed -n 's/^\.Xr \(meg[-a-z]*\) \([0-9]\).*/\1.\2/p' "$page" | sort -u); do
        ok "$page refers to a page that exists: $path" test -f "man/$path"
    done
done

for main in cmd/*/main.c; do
    [ -f "$main" ] || continue
    name=${main#cmd/}
    name=meg-${name%/main.c}
    page=man/$name.1
    if [ ! -f "$page" ]; then
        is "$name has a page" missing "$page"
        continue
    fi
    "$name" --list-options | cut -f 1 | tr _ - | sort >"$T/options"
    page_options "$page" >"$T/page"
    is "$name: options and page agree" "$(diff "$T/options" "$T/page")" ''
    "$name" --help | grep -oE -e '--[a-zA-Z0-9][-_a-zA-Z0-9]*' | sed 's/^--//' | tr _ - | sort -u >"$T/help"
    is "$name: --help shows each option" "$(sort -u "$T/options" | comm -23 - "$T/help")" ''
    is "$name: no option is listed twice" "$(uniq -d "$T/options")" ''
    like "$name: --version prints a name and a version" "$("$name" --version)" "^$name [0-9]+\.[0-9]+\.[0-9]+\$"
done

# ---- examples ----

# json_lines FILE: print the paragraphs of a text as JSON lines
json_lines() {
    awk -v RS= '{ gsub(/["\\]/, "\\\\&"); gsub(/\t/, "\\t"); gsub(/\n/, "\\n"); printf "{\"text\":\"%s\"}\n", $0 }' "$@"
}

prepare() {
    mkdir "$T/start" && cd "$T/start" || return 1
    json_lines "$top/LICENSE" >all.jsonl
    head -n 24 all.jsonl >corpus.jsonl
    tail -n +25 all.jsonl >more.jsonl
    rm all.jsonl
    zstd -q corpus.jsonl
    cp "$top/LICENSE" notes.txt
    printf '{"ids":[1,2,3,4,5]}\n{"ids":[7,7,7]}\n' >ids.jsonl
    printf 'the work\nunless required by\n' >prompts.txt
    meg-vocab -q --input corpus.jsonl --vocab-size 512 --output-dir . &&
    for name in corpus more; do
        meg-preprocess -q --input $name.jsonl --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json \
            --merge-file merges.txt --append-eod --output-prefix $name || return 1
    done
    cat >tiny.conf <<-end
	num-layers = 2
	hidden-size = 32
	num-attention-heads = 2
	seq-length = 32
	max-position-embeddings = 32
	micro-batch-size = 4
	train-iters = 10
	lr = 1e-3
	eval-iters = 1
	eval-interval = 10
	save-interval = 10
	log-interval = 5
	split = 90,10,0
	tokenizer-type = GPT2BPETokenizer
	vocab-file = $PWD/vocab.json
	merge-file = $PWD/merges.txt
	end
    meg-train -q --config tiny.conf --data-path corpus_text_document --save tiny >/dev/null &&
    meg-convert -q --load-dir tiny --save-dir tiny-hf &&
    meg-vocab -q --input corpus.jsonl --tokenizer-type BertWordPieceLowerCase --vocab-size 500 --output-dir . &&
    meg-preprocess -q --input corpus.jsonl --tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt \
        --split-sentences --output-prefix bert &&
    sed '/^tokenizer-type\|^vocab-file\|^merge-file/d' tiny.conf >bert.conf &&
    meg-train -q --model bert --config bert.conf --data-path bert_text_sentence --save bert \
        --tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt >/dev/null
}

# run_example LINE: true if the line succeeds and prints output or changes a file.  Status 141 (SIGPIPE) is success,
# too: a command was still writing when head exited.
run_example() {
    find . -printf '%p %s %T@\n' >"$T/before"
    timeout 60 bash -eo pipefail -c "$1" </dev/null >"$T/printed" || [ $? -eq 141 ] || return
    [ -s "$T/printed" ] || ! find . -printf '%p %s %T@\n' | cmp -s - "$T/before"
}

ok 'the initial files of the examples are created' prepare
cd "$T" || exit 1
for page in "$top"/man/* "$top"/README.md; do
    name=$(basename "$page")
    case $name in
    README.md) shown "$page" | grep '^meg-' >"$T/examples" ;;
    *) mandoc -Tascii -O width=400 "$page" | sed 's/.\x08//g' | shown >"$T/examples" ;;
    esac
    [ -s "$T/examples" ] || continue
    cp -R "$T/start" "$T/$name"
    cd "$T/$name" || exit 1
    case $name in
    README.md) awk '/^ *\$/ { shows = 0 } shows; /\$ cat tiny.conf/ { shows = 1 }' "$page" >tiny.conf ;;
    esac
    while IFS= read -r line; do
        ok "$name: $line" run_example "$line"
    done <"$T/examples"
done
done_testing
