#!/bin/sh
# meg-vocab writes the same files as Hugging Face's trainer, byte for byte.  With its tokenizer.json, Hugging Face's
# tokenizers library computes the ids that meg-preprocess writes.  WordPiece vocabularies have the same tokens, except a
# few of the last: the other trainer breaks ties in random order.  MEG_PYTHON names a Python with tokenizers.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
python=${MEG_PYTHON:-python3}
"$python" -c 'import tokenizers' 2>/dev/null ||
    skip_all "$python has no module tokenizers (MEG_PYTHON names another python)"

same_vocabulary() { # NAME SIZE FILE...
    name=$1 size=$2
    shift 2
    mkdir "$T/$name" "$T/$name/hf"
    meg-vocab -q --vocab-size "$size" --output-dir "$T/$name" --input "$@"
    ok "$name: Hugging Face's trainer runs" "$python" tests/peers/vocab.py train "$T/$name/hf" "$size" "$@"
    ok "$name: the merges of $size tokens are equal" cmp "$T/$name/merges.txt" "$T/$name/hf/merges.txt"
    ok "$name: the ids are equal" cmp "$T/$name/vocab.json" "$T/$name/hf/vocab.json"
}
same_ids() { # NAME FILE.jsonl...
    name=$1
    shift
    meg-preprocess -q --tokenizer-type GPT2BPETokenizer --vocab-file "$T/$name/vocab.json" \
        --merge-file "$T/$name/merges.txt" --output-prefix "$T/$name/ids" --input "$@"
    ok "$name: tokenizer.json has the ids of meg-preprocess" \
        "$python" tests/peers/vocab.py same "$T/$name" "$T/$name/ids" "$@"
}

same_wordpiece() { # NAME SIZE FILE...
    name=$1 size=$2
    shift 2
    mkdir "$T/$name" "$T/$name/hf"
    meg-vocab -q --tokenizer-type BertWordPieceLowerCase --vocab-size "$size" --output-dir "$T/$name" --input "$@"
    ok "$name: Hugging Face's trainer runs" "$python" tests/peers/vocab.py wordpiece "$T/$name/hf" "$size" "$@"
    sort "$T/$name/vocab.txt" >"$T/ours"
    sort "$T/$name/hf/vocab.txt" >"$T/theirs"
    ok "$name: at least 99% of $size tokens are equal" test "$(comm -12 "$T/ours" "$T/theirs" | wc -l)" -ge $((size * 99 / 100))
}

set -- lib/*/*.[ch] lib/*/*/*.[ch] cmd/*/*.c tests/unit/*/*.c man/* Makefile LICENSE
same_vocabulary own-text 2000 "$@"
same_vocabulary own-text-until-no-pair-is-left 1000000 "$@"
same_wordpiece own-wordpiece 5000 "$@"
# Skip files that contain the special token: Hugging Face encodes it as one token, GPT2BPETokenizer as text.
for f in "$@"; do
    grep -qF '<|endoftext|>' "$f" || jq -Rsc '{text: .}' "$f"
done >"$T/own.jsonl"
same_vocabulary own-json 5000 "$T/own.jsonl"
same_ids own-json "$T/own.jsonl"

if [ -n "${MEG_SHARED:-}" ]; then
    corpus=$MEG_SHARED/data/corpus
    same_vocabulary corpus 16000 "$corpus"/*.txt "$corpus"/*.jsonl
    same_ids corpus "$corpus"/*.jsonl
else
    skip 'data/corpus' 'MEG_SHARED is not set'
fi
done_testing
