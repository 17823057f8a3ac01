# Sourced after lib.sh, in the root of the repository, by tests of 'make demo': create a copy of its recipe, $T/exp, with
# models that train in seconds, and a corpus, $T/text.
#   recipe OPTION...   run the recipe in $T/out
for program in jq zstd gnuplot; do
    command -v $program >/dev/null || skip_all "no $program"
done

mkdir "$T/exp" "$T/out" "$T/text"
cp recipes/demo/* "$T/exp"
chmod -R u+w "$T/exp"                             # the source may be read-only
for model in gpt bert t5; do
    cat >>"$T/exp/$model.conf" <<'end'
num-layers = 1
hidden-size = 32
num-attention-heads = 2
seq-length = 64
micro-batch-size = 4
train-iters = 60
lr = 5e-3
lr-warmup-iters = 0
eval-iters = 2
eval-interval = 30
save-interval = 30
end
done
recipe() {
    make -C "$T/out" -f "$T/exp/Makefile" VOCAB=300 CORPUS="$T/text" "$@"
}

for i in 1 2 3 4 5 6 7 8; do
    cp LICENSE "$T/text/$i.txt"
done
