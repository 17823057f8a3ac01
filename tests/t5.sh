# Sourced after bert.sh by tests of T5: replace the model options in $T/conf by those of a tiny T5.  $T/bert_conf has the
# other options.
sed '/^model\|^num-layers\|^seq-length\|^max-position/d' "$T/conf" >"$T/bert_conf"
cat - "$T/bert_conf" >"$T/conf" <<end
model = t5
num-layers = 2
decoder-num-layers = 2
seq-length = 48
decoder-seq-length = 24
max-position-embeddings = 48
vocab-extra-ids = 30
end
