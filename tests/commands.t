#!/bin/sh
# The example commands of Megatron-LM and Megatron-DeepSpeed succeed as commands of meg, or end with 2 and the name of a
# feature that meg(7) lists under NOT YET.
#
# tests/data/commands has the commands of the scripts in examples/ and of the readmes, with reduced sizes.  Each one is a
# paragraph whose first line is its name; ": not yet" marks those that end with 2.  They are run in order in a directory
# with a corpus, vocabularies and a configuration of DeepSpeed; large layouts are dry runs.
. "${0%/*}/lib.sh"
data=$(cd "${0%/*}/data" && pwd) top=$(cd "${0%/*}/.." && pwd)
mkdir "$T/work" && cd "$T/work" || exit 1

awk 'BEGIN { RS = "" } { gsub(/[^A-Za-z0-9 .,\n]/, ""); gsub(/\n */, " "); print "{\"text\":\"" $0 "\"}" }' \
    "$top/LICENSE" "$top/README.md" "$top/CONTRIBUTING.md" >articles.json
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do cat articles.json; done >my-corpus.json
head -n 20 "$top/LICENSE" >corpus.txt
printf 'the work\nunless required by\n' >prompts.txt
meg-vocab -q --input my-corpus.json --vocab-size 600 --output-dir tokenizer || exit 1
cp tokenizer/vocab.json gpt2-vocab.json && cp tokenizer/merges.txt gpt2-merges.txt
cp "$data/tokenizers/bert-lower.txt" bert-vocab.txt
cat >ds_config.json <<'end'
{
  "train_micro_batch_size_per_gpu": 1,
  "train_batch_size": 4,
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 0},
  "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1,
           "initial_scale_power": 12},
  "steps_per_print": 2000,
  "wall_clock_breakdown": false
}
end
sed -n '/^\.Sh NOT YET/,/^\.Sh SEE/p' "$top/man/meg.7" | sed 's/^\.[A-Z][a-z]* //; s/[A-Z]/\L&/g' | tr -s '\n ' ' ' >"$T/not-yet"

# check NAME: run the command in $T/command and check its status; a refused one names a feature, and no unknown option
check() {
    case $1 in
    *': not yet')
        status "$1" 2 sh "$T/command"
        is "$1: no option is unknown" "$(grep 'unknown option' "$T/err")" ''
        feature=$(sed -n 's/.*: not supported yet: \(.*\); see NOT YET.*/\1/p' "$T/err" | head -n 1 | tr '[:upper:]' '[:lower:]')
        ok "$1: meg(7) lists '$feature'" grep -qF "${feature:-nothing is named}" "$T/not-yet"
        ;;
    *)
        status "$1" 0 sh "$T/command"
        is "$1: at most one message is about other names" "$(grep -cE 'new names|no effect, for' "$T/err" | sed 's/1/0/')" 0
        ;;
    esac
}
total=0
for file in preprocess train use; do
    n=$(grep -c '^# ' "$data/commands/$file.txt")
    total=$((total + n))
    i=0
    while [ $i -lt "$n" ]; do
        i=$((i + 1))
        awk -v i=$i 'BEGIN { RS = "" } NR == i' "$data/commands/$file.txt" >"$T/command"
        check "$(sed -n '1s/^# //p' "$T/command")"
    done
done
ok "there are at least 40 commands ($total)" test "$total" -ge 40

# ---- the commands did what the script does ----
ok 'data with the old names of options are equal' cmp my-gpt2_text_document.bin meg-gpt2_text_document.bin
ok 'columns are keys' cmp my-gpt2_text_document.idx dist_text_document.idx
is 'both merges have all documents' "$(meg-preprocess --info merged | grep -i documents)" \
    "$(meg-preprocess --info merged2 | sed 's/merged2/merged/' | grep -i documents)"
is 'a run with --checkpoint-activations recomputes' "$(grep -E '^recompute' gpt/iter_0000004/run.conf | tr '\n' ' ')" \
    'recompute-activations = no recompute-granularity = full recompute-method = uniform recompute-num-layers = 1 '
meg-convert -q --load-dir bert --save-dir bert-direct --saver megatron --target-tensor-parallel-size 1
ok 'merge_mp_bert.sh restores the model' cmp bert-tp1/iter_0000004/mp_rank_00/model_optim_rng.pt \
    bert-direct/iter_0000004/mp_rank_00/model_optim_rng.pt
ok 'two pipeline stages are written' test -f bert-pp2/iter_0000004/mp_rank_00_001/model_optim_rng.pt
is 'two prompts are continued' "$(meg-generate -q --load gpt --input prompts.txt --tokens-to-generate 2 | grep -c .)" 2
done_testing
