#!/bin/sh
# Ids and texts of Hugging Face tokenizer directories equal those of Hugging Face's tokenizers library, for random texts
# and text from this machine.  GPT2BPETokenizer's ids also equal them, except for special tokens.
#   MEG_PYTHON      a Python with tokenizers (default: python3)
#   MEG_CORPUS      a file of JSON lines to use instead of text from /usr/share and MEG_SHARED
#   MEG_CORPUS_MB   megabytes of text to use (default: 8; make check-peers uses 240, which needs half an hour)
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
need_shared
python=${MEG_PYTHON:-python3}
"$python" -c 'import tokenizers' 2>/dev/null ||
    skip_all "$python has no module tokenizers (MEG_PYTHON names another python)"
models=$MEG_SHARED/data/tokenizers

same_ids() { # WHAT NAME FILE.jsonl ENCODE OPTION...
    what=$1 name=$2 file=$3 how=$4
    shift 4
    rm -f "$T"/ids*
    meg-preprocess -q --input "$file" --output-prefix "$T/ids" "$@"
    ok "$what: ids of $name are equal" "$python" tests/peers/hf.py "$how" "$models/$name" "$T/ids" "$file"
    sed 's/^/# /' "$T/.out"
}
decoded() { # NAME
    meg-preprocess --decode "$T/ids_text_document" --json --tokenizer-type HuggingFaceTokenizer \
        --tokenizer-model "$models/$1" >"$T/text" && "$python" tests/peers/hf.py decode "$models/$1" "$T/text"
}
same_texts() { # WHAT NAME: decode the ids of same_ids
    ok "$1: texts of $2 are equal" decoded "$2"
    sed 's/^/# /' "$T/.out"
}
compare() { # WHAT FILE.jsonl NAME...
    text=$1 from=$2
    shift 2
    for folder in "$@"; do
        same_ids "$text" "$folder" "$from" encode --tokenizer-type HuggingFaceTokenizer \
            --tokenizer-model "$models/$folder"
        same_texts "$text" "$folder"
    done
    same_ids "$text, GPT2BPETokenizer" gpt2 "$from" plain --tokenizer-type GPT2BPETokenizer \
        --vocab-file "$models/gpt2/vocab.json" --merge-file "$models/gpt2/merges.txt"
}

"$python" tests/peers/odd.py >"$T/odd.jsonl"
compare 'random texts' "$T/odd.jsonl" \
    gpt2 llama3 qwen2 llama2 t5 bert-base-uncased bert-base-cased phi2 phi3 falcon roberta
corpus=${MEG_CORPUS:-}
if [ -z "$corpus" ]; then
    corpus=$T/corpus.jsonl
    "$python" tests/peers/corpus.py "$corpus" "${MEG_CORPUS_MB:-8}" || skip_all 'this machine has not enough text'
fi
compare 'text of this machine' "$corpus" gpt2 llama3 qwen2 llama2 t5 bert-base-uncased
done_testing
