#!/bin/sh
# Programs that load a model need memory for its weights and for the sequences that they compute, not for sequences of
# maximum length.
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
done_testing
