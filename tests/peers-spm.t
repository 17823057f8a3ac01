#!/bin/sh
# Ids and texts of SentencePiece models equal those of the SentencePiece library, for random models, random texts and
# text from this machine.
#   MEG_PYTHON      a Python with sentencepiece, 0.2.1 or older (default: python3)
#   MEG_CORPUS      a file of JSON lines to use instead of text from /usr/share and MEG_SHARED
#   MEG_CORPUS_MB   megabytes of text to use (default: 8; make check-peers uses 240)
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
python=${MEG_PYTHON:-python3}
"$python" -c 'import sentencepiece' 2>/dev/null ||
    skip_all "$python has no module sentencepiece (MEG_PYTHON names another python)"
"$python" -c 'import sentencepiece as s; raise SystemExit(tuple(map(int, s.__version__.split("."))) > (0, 2, 1))' ||
    skip_all "$python's sentencepiece is newer than 0.2.1 and breaks ties of unigram models differently"

ok 'ids of random models are equal' "$python" tests/peers/spm.py random 3 100
[ -n "${MEG_SHARED:-}" ] || {
    skip 'real models' 'MEG_SHARED is not set'
    done_testing
}
models=$MEG_SHARED/data/tokenizers
ok 'ids of random models with the character map of t5 are equal' \
    "$python" tests/peers/spm.py random 4 50 "$models/t5/spiece.model"

decoded() { # MODEL
    meg-preprocess --decode "$T/ids_text_document" --json --tokenizer-type GPTSentencePieceTokenizer \
        --tokenizer-model "$models/$1" >"$T/text" && "$python" tests/peers/spm.py decode "$models/$1" "$T/text"
}
same_ids() { # NAME FILE.jsonl MODEL
    rm -f "$T"/ids*
    meg-preprocess -q --input "$2" --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model "$models/$3" \
        --output-prefix "$T/ids"
    ok "$1: ids of $3 are equal" "$python" tests/peers/spm.py encode "$models/$3" "$T/ids" "$2"
    sed 's/^/# /' "$T/.out"
    ok "$1: texts of $3 are equal" decoded "$3"
    sed 's/^/# /' "$T/.out"
}
"$python" tests/peers/odd.py >"$T/odd.jsonl"
for model in t5/spiece.model llama2/tokenizer.model mistral-v3/tokenizer.model spm-test-ja/tokenizer.model; do
    same_ids 'random texts' "$T/odd.jsonl" "$model"
done
corpus=${MEG_CORPUS:-}
if [ -z "$corpus" ]; then
    corpus=$T/corpus.jsonl
    "$python" tests/peers/corpus.py "$corpus" "${MEG_CORPUS_MB:-8}" || skip_all 'this machine has not enough text'
fi
for model in t5/spiece.model llama2/tokenizer.model; do
    same_ids 'text of this machine' "$corpus" "$model"
done
done_testing
