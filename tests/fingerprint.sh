#!/bin/sh
# fingerprint.sh [BIN] - print the SHA-256 of the files that the commands in BIN (default: bin) write for fixed inputs.
# The lines are equal before and after a refactoring that does not change the output:
#   tests/fingerprint.sh >before; (change, make); tests/fingerprint.sh >after; diff before after
# The files are datasets of each tokenizer, vocabularies, merges, index caches, checkpoints (f32, bf16, several
# layouts), conversions to and from Hugging Face and Megatron, and the output of meg-eval and meg-generate, without the
# times in logs.  TensorBoard events and progress.txt are omitted.  If mpirun is installed, runs of two ranks are
# included; BIN must then support MPI.
set -eu
LC_ALL=C
export LC_ALL OMP_NUM_THREADS=2
bin=$(cd "${1:-${0%/*}/../bin}" && pwd)
PATH=$bin:$PATH
data=$(cd "${0%/*}/data" && pwd)
T=$(mktemp -d "${TMPDIR:-/tmp}/meg-fingerprint.XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' HUP INT TERM
cp "$data/../../LICENSE" "$T/license.txt"
. "${0%/*}/train.sh" # creates ids.jsonl, a dataset of ids and the options of a tiny GPT
cd "$T"
sed -i "s#$T/##" conf # the file names of an index cache depend on --data-path

# ---- text to datasets ----
awk 'BEGIN { RS = "" } { gsub(/"/, "\\\""); gsub(/\n/, "\\n"); print "{\"text\":\"" $0 " Gr\\u00fc\\u00dfe \\u4f60\\u597d\"}" }' \
    license.txt >text.jsonl
meg-vocab -q --input text.jsonl --vocab-size 400 --output-dir vocab
preprocess() { # NAME OPTION...
    name=$1
    shift
    meg-preprocess -q --input text.jsonl --output-prefix "$name" --append-eod "$@"
}
gpt2="--tokenizer-type GPT2BPETokenizer --vocab-file vocab/vocab.json --merge-file vocab/merges.txt"
preprocess gpt2 $gpt2
preprocess gpt2_workers $gpt2 --workers 3
preprocess gpt2_partitions $gpt2 --partitions 2 --keep-sequential-samples
preprocess spm --tokenizer-type Llama2Tokenizer --tokenizer-model "$data/releases/spm.model"
preprocess tiktoken --tokenizer-type TikTokenizer --tokenizer-model "$data/releases/tik.json" --vocab-size 280 --tiktoken-num-special-tokens 10
preprocess hf --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$data/releases/hf"
meg-preprocess -q --input ids.jsonl --tokenizer-type NullTokenizer --vocab-size 70000 --output-prefix wide
mkdir to_merge
cp gpt2_text_document.* gpt2_workers_text_document.* to_merge
meg-merge -q --input to_merge --output-prefix merged

# ---- training ----
meg-train -q --config conf --save f32 --save-interval 5 --log-json f32.log --hidden-dropout 0.1 >f32.out
meg-train -q --config conf --save bf16 --save-interval 10 --bf16 --swiglu --normalization RMSNorm --position-embedding-type rope \
    --untie-embeddings-and-output-weights --disable-bias-linear --group-query-attention --num-query-groups 1 >bf16.out
if command -v mpirun >/dev/null; then
    ranks() { # NAME OPTION...
        name=$1
        shift
        mpirun --allow-run-as-root --oversubscribe -n 2 meg-train -q --config conf --save "$name" --save-interval 10 "$@" >"$name.out"
    }
    ranks tp2 --tensor-model-parallel-size 2 --sequence-parallel
    ranks pp2 --pipeline-model-parallel-size 2
    ranks zero --use-distributed-optimizer
fi

# ---- conversion, evaluation, generation ----
meg-convert -q --load-dir f32 --save-dir f32_hf --saver hf
meg-convert -q --load-dir bf16 --save-dir bf16_hf --saver hf
meg-convert -q --load-dir f32 --save-dir f32_mcore --saver mcore
meg-convert -q --load-dir f32 --save-dir f32_tp2pp2 --saver mcore --target-tensor-parallel-size 2 --target-pipeline-parallel-size 2
meg-convert -q --load-dir bf16 --save-dir bf16_megatron --saver mcore
meg-convert -q --load-dir f32_hf --save-dir hf_native --saver native
meg-convert -q --load-dir f32_tp2pp2 --save-dir mcore_native --saver native
meg-convert --info f32 --json >info.json
null="--tokenizer-type NullTokenizer --vocab-size 100"
sed -E 's/(([0-9]+ ){9}[0-9]+)[^"]*/\1/; 3q' ids.jsonl >short.jsonl
sed 's/"text"/"prompt"/' short.jsonl >prompts.jsonl
for model in f32 bf16 f32_hf; do
    meg-eval -q --task ppl --load $model --data-path ids_text_document $null >"$model.ppl"
    meg-eval -q --task logprobs --input short.jsonl --load $model $null --top-n-logprobs 3 >"$model.logprobs"
    meg-generate -q --input prompts.jsonl --load $model $null --tokens-to-generate 8 --top_k 5 --return-log-probs --seed 7 \
        >"$model.generate"
done

# Remove times, which differ between runs.
for f in *.out; do
    steps <"$f" >"$f.steps"
    rm "$f"
done
sed -E 's/"(time|elapsed|[a-z_]*_(ms|s|per_s|per_second)|tokens_per_s[a-z_]*)": *[0-9.e+-]+,? *//g' f32.log >f32.log.values
rm f32.log
find . -type f ! -name '*.jsonl' ! -name conf ! -name 'events.*' ! -name progress.txt | sort | xargs sha256sum
