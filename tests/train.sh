# Sourced after lib.sh by tests of training: create a dataset of ids, $T/ids_text_document, and the options of a tiny
# GPT, $T/conf.

# id_lines DOCUMENTS SEED: print JSON lines of ids below 100; each id is a noisy function of the previous id
id_lines() {
    awk -v n="$1" -v x="$2" '
        function next_random() { x = (x * 16807) % 2147483647; return x }
        BEGIN {
            for (i = 0; i < n; i++) {
                line = ""
                id = next_random() % 100
                for (j = 20 + next_random() % 30; j > 0; j--) {
                    line = line id (j > 1 ? " " : "")
                    id = (id * 7 + 3 + next_random() % 2) % 100
                }
                printf "{\"text\":\"%s\"}\n", line
            }
        }'
}

id_lines 120 17 >"$T/ids.jsonl"
meg-preprocess -q --input "$T/ids.jsonl" --tokenizer-type NullTokenizer --vocab-size 100 --append-eod \
    --output-prefix "$T/ids" || exit 1

cat >"$T/conf" <<end
num-layers = 2
hidden-size = 32
num-attention-heads = 2
seq-length = 16
max-position-embeddings = 16
micro-batch-size = 2
global-batch-size = 4
train-iters = 10
lr = 1e-2
lr-decay-style = cosine
lr-warmup-iters = 2
min-lr = 1e-4
weight-decay = 0.1
eval-iters = 2
eval-interval = 4
log-interval = 1
split = 90,8,2
data-path = $T/ids_text_document
tokenizer-type = NullTokenizer
vocab-size = 100
end

train() { meg-train -q --config "$T/conf" "$@"; }

# steps: remove dates and times, which differ between runs, from a log
steps() { sed -e 's/^ \[[^]]*\]//' -e 's/ elapsed time per iteration (ms): [0-9.]* |//'; }

# tensor FILE NAME: print the bytes of a tensor of a safetensors file
tensor() {
    set -- "$1" "$2" "$(od -An -t u8 -N 8 "$1" | tr -d ' ')"
    tail -c +9 "$1" | head -c "$3" | jq -r --arg n "$2" '.[$n].data_offsets | "\(.[0]) \(.[1])"' |
        while read -r begin end; do tail -c +$((9 + $3 + begin)) "$1" | head -c $((end - begin)); done
}
