#!/bin/sh
# transformers opens the Hugging Face directories that meg-convert (with each tokenizer type) and meg-vocab write, and
# computes the same ids, log-probabilities and greedy continuations; llama.cpp's converter accepts them.
#   MEG_PYTHON      a Python with transformers and torch (default: python3)
#   MEG_LLAMA_CPP   a directory with llama.cpp's convert_hf_to_gguf.py; the Python must then also have gguf
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
need_shared
python=${MEG_PYTHON:-python3}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
"$python" -c 'import transformers, torch' 2>/dev/null ||
    skip_all "$python has no modules transformers and torch (MEG_PYTHON names another python)"
known=$MEG_SHARED/data/tokenizers

"$python" tests/peers/odd.py >"$T/texts"
for corpus in us_presidents wikitext2_valid udhr; do
    jq -c '.text | split("\n")[] | select(length > 0) | {text: .}' "$MEG_SHARED/data/corpus/$corpus.jsonl" |
        awk 'NR % 5 == 0' | head -n 1500 >>"$T/texts"
done
for text in 'The quick brown fox' 'In 1984, prices rose by 3.5%' 'don'\''t stop' 'Two  spaces, caf\u00e9 and \u4e2d\u6587'; do
    printf '{"prompt":"%s"}\n' "$text"
done >"$T/prompts"
sed 's/"prompt"/"text"/' "$T/prompts" >"$T/scored"
meg-vocab -q --input LICENSE --vocab-size 1000 --output-dir "$T/trained"

# Columns: NAME SHAPE VOCABULARY TYPE OPTION=FILE...
rows=$(cat <<end
gpt2            gpt2    50257  GPT2BPETokenizer          vocab-file=$known/gpt2/vocab.json merge-file=$known/gpt2/merges.txt
gpt2-trained     gpt2    1000   GPT2BPETokenizer          vocab-file=$T/trained/vocab.json merge-file=$T/trained/merges.txt
llama-gpt2      llama   50257  GPT2BPETokenizer          vocab-file=$known/gpt2/vocab.json merge-file=$known/gpt2/merges.txt
llama           llama   32000  Llama2Tokenizer           tokenizer-model=$known/llama2/tokenizer.model
llama-gptspm    llama   32000  GPTSentencePieceTokenizer tokenizer-model=$known/llama2/tokenizer.model
llama-tiktoken  llama   128256 TikTokenizer              tokenizer-model=$known/llama3/tokenizer.model
mistral         mistral 32768  GPTSentencePieceTokenizer tokenizer-model=$known/mistral-v3/tokenizer.model
mistral-special mistral 32005  SentencePieceTokenizer    tokenizer-model=$known/llama2/tokenizer.model
mistral-json    mistral 33000  TikTokenizer              tokenizer-model=$known/tik-megatron/vocab.json
qwen2           qwen2   151936 HuggingFaceTokenizer      tokenizer-json=$known/qwen2/tokenizer.json
qwen2-unigram   qwen2   32000  GPTSentencePieceTokenizer tokenizer-model=$known/t5/spiece.model
qwen2-bert      qwen2   30524  BertWordPieceLowerCase    vocab-file=$known/bert-base-uncased/vocab.txt
gpt2-cased      gpt2    28998  BertWordPieceCase         vocab-file=$known/bert-base-cased/vocab.txt
end
)

# Copy a tokenizer's files to a directory, with a tokenizer_config.json that has its type.
add_tokenizer() { # DIR TYPE OPTION=FILE...
    folder=$1
    printf '{"meg_tokenizer":["tokenizer-type = %s"],"eos_token":"<|endoftext|>"}' "$2" >"$folder/tokenizer_config.json"
    shift 2
    for file; do
        case $file in
        tokenizer-model=*) cp "${file#*=}" "$folder/tokenizer.model" ;;
        *.txt | *.json) cp "${file#*=}" "$folder" ;;
        esac
    done
}
run_ours() { # NAME TYPE OPTION=FILE...: run the commands on the texts, and export the directory
    name=$1 type=$2
    shift 2
    add_tokenizer "$T/$name" "$type" "$@"
    case $type in
    HuggingFaceTokenizer) set -- --tokenizer-model "${1#*=}" ;;
    *) for file; do set -- "$@" "--${file%%=*}" "${file#*=}"; shift; done ;;
    esac
    meg-convert -q --load-dir "$T/$name" --save-dir "$T/$name-ours" &&
        meg-convert -q --load-dir "$T/$name-ours" --save-dir "$T/$name-out" &&
        meg-preprocess -q --input "$T/texts" --output-prefix "$T/ids" --tokenizer-type "$type" "$@" &&
        meg-preprocess --decode "$T/ids_text_document" --json --tokenizer-type "$type" "$@" >"$T/$name.ids" &&
        meg-eval --task logprobs --load "$T/$name-ours" --input "$T/scored" >"$T/$name.logprobs" &&
        meg-generate --load "$T/$name-ours" --greedy --tokens-to-generate 12 --input "$T/prompts" >"$T/$name.replies"
    status=$?
    rm -rf "$T/$name-ours" "$T/$name/model.safetensors" "$T"/ids_*
    return $status
}

while read -r name shape vocab type files; do
    "$python" tests/peers/folders.py make "$T" "$shape" "$vocab" "$name" >"$T/log" 2>&1 || cat "$T/log" >&2
    # shellcheck disable=SC2086
    ok "the commands run with $name" run_ours "$name" "$type" $files </dev/null
    names="${names:-} $name"
done <<end
$rows
end
# shellcheck disable=SC2086
"$python" tests/peers/folders.py check "$T" "$T/texts" "$T/prompts" $names >"$T/found" 2>"$T/err" || cat "$T/err" >&2
for name in $names; do
    ok "transformers opens $name and computes the same results" grep "^$name: " "$T/found"
    grep "^${name}[: ]" "$T/found" | sed 's/^/# /'
done
tail -n 1 "$T/found" | sed 's/^/# /'

meg-preprocess -q --input "$T/texts" --output-prefix "$T/ids" --tokenizer-type GPT2BPETokenizer \
    --vocab-file "$T/trained/vocab.json" --merge-file "$T/trained/merges.txt"
meg-preprocess --decode "$T/ids_text_document" --json --tokenizer-type GPT2BPETokenizer \
    --vocab-file "$T/trained/vocab.json" --merge-file "$T/trained/merges.txt" >"$T/trained.ids"
ok "transformers opens meg-vocab's directory" "$python" tests/peers/folders.py vocab "$T/trained" "$T/trained.ids" "$T/texts"
sed 's/^/# /' "$T/.out"

converter=${MEG_LLAMA_CPP:+$MEG_LLAMA_CPP/convert_hf_to_gguf.py}
if [ -z "$converter" ] || ! "$python" -c 'import gguf' 2>/dev/null; then
    skip "llama.cpp's converter" 'MEG_LLAMA_CPP does not name a directory of it, or python has no module gguf'
else
    for name in gpt2 llama-gpt2 llama llama-gptspm llama-tiktoken mistral qwen2; do
        ok "llama.cpp's converter accepts $name" "$python" tests/peers/folders.py gguf "$converter" "$T" "$name"
        sed 's/^/# /' "$T/.out"
        rm -f "$T/$name.gguf"
    done
fi
done_testing
