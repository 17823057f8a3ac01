#!/bin/sh
# Ids of tokenizer directories equal those of AutoTokenizer of transformers 4.57: random directories over the classes and
# the files, and the tokenizers of MEG_SHARED with several classes.
#   MEG_PYTHON         a Python with transformers (default: python3)
#   MEG_HF_FOLDERS     number of random directories (default: 60)
#   MEG_HF_SEED        their seed (default: 1)
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
python=${MEG_PYTHON:-python3}
"$python" -c 'import transformers as t; exit(not t.__version__.startswith("4.57."))' 2>/dev/null ||
    skip_all "$python has no transformers 4.57 (MEG_PYTHON names another python)"

same_ids() { # NAME COUNT TOKENIZER.json...
    name=$1 count=$2
    shift 2
    rm -rf "$T/folders"
    mkdir "$T/folders"
    ok "$name: directories are made" "$python" tests/peers/hf_folders.py make "$T/folders" "$count" "${MEG_HF_SEED:-1}" \
        "$T/texts.jsonl" "$@"
    grep directories "$T/.out" | sed 's/^/# /'
    while read -r folder _ eod; do
        meg-preprocess -q --input "$T/texts.jsonl" --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$T/folders/$folder" \
            --output-prefix "$T/folders/$folder.ids" ${eod#-} 2>"$T/err" || sed "s/^/# $folder: /" "$T/err"
    done <"$T/folders/list"
    ok "$name: ids are equal" "$python" tests/peers/hf_folders.py check "$T/folders" "$T/texts.jsonl"
    grep 'ids of' "$T/.out" | sed 's/^/# /'
}

same_ids 'random directories' "${MEG_HF_FOLDERS:-60}"
if [ -n "${MEG_SHARED:-}" ]; then
    same_ids 'tokenizers of models' 0 "$MEG_SHARED"/data/tokenizers/*/tokenizer.json
else
    skip 'tokenizers of models' 'MEG_SHARED is not set'
fi
done_testing
