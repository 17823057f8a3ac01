# Sourced after lib.sh by tests that start several ranks.  Open MPI refuses root and more ranks than
# cores unless told otherwise; its help texts are not part of what is tested.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_orte_base_help_aggregate=1 OMP_NUM_THREADS=1

mpirun=${MPIRUN:-mpirun}
cores=$(env -u OMP_NUM_THREADS nproc)

# is_openmpi: it leaves survivors the time to say who is lost, and has more ranks than cores take turns
is_openmpi() {
    case $($mpirun --version 2>&1) in
    *'Open MPI'*) ;;
    *) return 1 ;;
    esac
}

# fits N: whether N ranks are worth starting where they have much to say to each other
fits() {
    is_openmpi || [ "$1" -le "$cores" ]
}

# ranks N COMMAND...: run it on N ranks of this machine
ranks() {
    ranks_n=$1
    shift
    $mpirun -n "$ranks_n" "$@"
}

# rank_of_launcher: which rank this process is, in shell code that ranks run
rank_of_launcher='${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}'

# ranks_but N RANK CODE COMMAND...: the same, but RANK runs the shell code CODE first, whose "$@" is the command
ranks_but() {
    ranks_n=$1 ranks_other="if [ $rank_of_launcher = $2 ]; then $3; fi; "
    shift 3
    $mpirun -n "$ranks_n" sh -c "$ranks_other"'exec "$@"' sh "$@"
}

# start_ranks N COMMAND...: run it in the background with output to $T/out and $T/err; $launcher is the launcher's
# process, and rank R's is in $T/pid.R.  Its status is what wait $launcher says.
launcher=
start_ranks() {
    rm -f "$T"/pid.* "$T/out" "$T/err"
    ranks_n=$1
    shift
    $mpirun -n "$ranks_n" sh -c "echo \$\$ >'$T/pid.'$rank_of_launcher; exec \"\$@\"" sh "$@" >"$T/out" 2>"$T/err" &
    launcher=$!
}

# losses FILE: the losses of training and evaluation, in order
losses() {
    jq -r '.lm_loss' "$1"
}

# tiny_gpt: the options of a model and a run of seconds, for the head of a .conf; a line behind them that names one of
# them counts instead
tiny_gpt() {
    cat <<'EOF'
num-layers = 2
hidden-size = 32
num-attention-heads = 4
seq-length = 16
max-position-embeddings = 16
micro-batch-size = 2
global-batch-size = 8
lr = 1e-2
mock-data = yes
tokenizer-type = NullTokenizer
vocab-size = 50
eval-iters = 0
log-interval = 1
EOF
}

# tiny_llama: the same of a smaller one of Llama's kind, without dropout
tiny_llama() {
    tiny_gpt
    cat <<'EOF'
hidden-size = 16
ffn-hidden-size = 32
num-attention-heads = 2
seq-length = 8
max-position-embeddings = 8
micro-batch-size = 1
global-batch-size = 6
position-embedding-type = rope
normalization = RMSNorm
swiglu = yes
disable-bias-linear = yes
untie-embeddings-and-output-weights = yes
attention-dropout = 0
hidden-dropout = 0
EOF
}
