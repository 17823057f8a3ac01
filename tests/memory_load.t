#!/bin/sh
# modules: ckpt infer
# meg-generate and meg-eval need memory for the weights and for the sequences that they compute, not for sequences of
# maximum length.  meg-convert needs less memory than the weights.
. "${0%/*}/lib.sh"
. "${0%/*}/peak.sh"
skip_unless_peak_is_measured
[ "$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -ge 3 ] || skip_all 'needs 3 GiB of memory'

weights_kib() { echo $(($(wc -c <"$1/model.safetensors") / 1024)); }

# uses_weights NAME DIR COMMAND...: COMMAND succeeds and uses at least the memory of the weights in DIR and at most 10
# percent more
uses_weights() {
    name=$1 weights=$(weights_kib "$2")
    shift 2
    peak "$@" >"$T/out" 2>"$T/err"
    is "$name: status" "$? $(cat "$T/err")" '0 '
    is "$name: memory of the weights and at most 10 percent (peak, weights in KiB: $(cat "$T/peak") $weights)" \
        "$(awk -v w="$weights" '{ print ($1 > w && $1 <= 1.1 * w) }' "$T/peak")" 1
}

echo '{"ids":[1,2,3,4,5,6,7,8,9,10]}' >"$T/ten"
sparse_llama "$T/f32" 8 F32
uses_weights 'meg-generate, ten tokens' "$T/f32" meg-generate --load "$T/f32" --greedy --tokens-to-generate 10 --input "$T/ten"
is 'the prompt is continued' "$(jq -c '[(.ids | length), .finish]' "$T/out")" '[10,"length"]'
uses_weights 'meg-eval, ten tokens' "$T/f32" meg-eval --task logprobs --load "$T/f32" --input "$T/ten"
is 'the tokens are scored' "$(jq -c .count "$T/out")" 9
uses_weights 'meg-eval, windows longer than the input' "$T/f32" meg-eval --task ppl --load "$T/f32" --input "$T/ten"
is 'the default window has the maximum length' "$(jq -c '[.tokens, .seq_length]' "$T/out")" '[9,131072]'
rm -r "$T/f32"
sparse_llama "$T/half" 16 BF16
uses_weights 'meg-generate, a bf16 checkpoint' "$T/half" meg-generate --load "$T/half" --greedy --tokens-to-generate 10 \
    --input "$T/ten"
uses_weights 'meg-eval, a bf16 checkpoint' "$T/half" meg-eval --task logprobs --load "$T/half" --input "$T/ten"
rm -r "$T/half"

# A conversion has buffers for its threads and for one tensor (at most 11.5 MB in f32), not for the 131 MB of the model.
most=98304
sparse_llama "$T/bf16" 5 BF16
weights=$(weights_kib "$T/bf16")
is "the weights ($weights KiB) exceed the limit ($most KiB)" "$((weights > most))" 1
converts() { # NAME FROM TO OPTION...
    name=$1 from=$2 to=$3
    shift 3
    OMP_NUM_THREADS=2 peak meg-convert -q --load-dir "$T/$from" --save-dir "$T/$to" "$@" >"$T/out" 2>"$T/err"
    is "$name: status" "$? $(cat "$T/err")" '0 '
    is "$name: memory (peak $(cat "$T/peak") KiB) is less than that of the weights" "$(($(cat "$T/peak") < most))" 1
}
converts 'Hugging Face to native' bf16 native
rm -r "$T/bf16"
converts 'native to Hugging Face' native hf
rm -r "$T/hf"
converts 'native to Megatron' native mcore --saver mcore
rm -r "$T/native"
converts 'Megatron to native' mcore back
done_testing
