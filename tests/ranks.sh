# Functions for multi-rank tests; sourced after lib.sh.  The variables let Open MPI run as root and with more ranks than
# cores, let it aggregate its help messages, and limit a rank to one thread.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_orte_base_help_aggregate=1 OMP_NUM_THREADS=1
# Runs that start and end at the same time do not create and remove one session directory.
export OMPI_MCA_orte_tmpdir_base="$T"

mpirun=${MPIRUN:-mpirun}
cores=$(env -u OMP_NUM_THREADS nproc)

# is_openmpi: true for Open MPI.  Unlike with MPICH, the surviving ranks then report a lost rank, and waiting ranks
# yield the CPU if there are more ranks than cores
is_openmpi() {
    case $($mpirun --version 2>&1) in
    *'Open MPI'*) ;;
    *) return 1 ;;
    esac
}

# fits N: true if N ranks with much communication are fast enough on this machine
fits() {
    is_openmpi || [ "$1" -le "$cores" ]
}

# ranks N COMMAND...: run COMMAND on N ranks of this machine
ranks() {
    ranks_n=$1
    shift
    $mpirun -n "$ranks_n" "$@"
}

# rank_of_launcher: shell code that expands to the rank of the process that runs it
rank_of_launcher='${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}'

# ranks_but N RANK CODE COMMAND...: like ranks, but RANK first runs the shell code CODE, in which "$@" is COMMAND
ranks_but() {
    ranks_n=$1 ranks_other="if [ $rank_of_launcher = $2 ]; then $3; fi; "
    shift 3
    $mpirun -n "$ranks_n" sh -c "$ranks_other"'exec "$@"' sh "$@"
}

# start_ranks N COMMAND...: run COMMAND on N ranks in the background with output to $T/out and $T/err.  Set launcher to
# the process id of mpirun, and write the process id of rank R to $T/pid.R
launcher=
start_ranks() {
    rm -f "$T"/pid.* "$T/out" "$T/err"
    ranks_n=$1
    shift
    $mpirun -n "$ranks_n" sh -c "echo \$\$ >'$T/pid.'$rank_of_launcher; exec \"\$@\"" sh "$@" >"$T/out" 2>"$T/err" &
    launcher=$!
}

# losses FILE: print the losses of training and evaluation, in order
losses() {
    jq -r '.lm_loss' "$1"
}

# train_ranks NAME N OPTION...: train with $T/conf on N ranks.  Write the log to $T/NAME.json, and the numbers that the jq
# filter $logged selects from each of its records to $T/NAME, one per line
train_ranks() {
    train_name=$1 train_n=$2
    shift 2
    rm -f "$T/$train_name.json"
    ranks "$train_n" meg-train -q --config "$T/conf" --log-json "$T/$train_name.json" "$@" >"$T/out" 2>&1
    train_status=$?
    jq "$logged" "$T/$train_name.json" >"$T/$train_name"
    return $train_status
}
# equals_one_rank N OPTION...: check that training on N ranks logs the numbers of 'train_ranks one 1'
equals_one_rank() {
    n=$1
    shift
    train_ranks ranks "$n" "$@"
    is "$n ranks $*: the run succeeds" $? 0
    ok "$n ranks $*: losses and gradient norms are those of one rank" near "$T/one" "$T/ranks"
}

# tiny_gpt: print options of a model that trains in seconds, for the beginning of a .conf; later lines override them.
# Create its dataset $T/tiny_text_document, because a run with --mock-data would spend most of its time on the index
tiny_gpt() {
    awk 'BEGIN { x = 17
                 for (i = 0; i < 200; i++) {
                     line = ""
                     for (k = i % 30; k < 50; k++) { x = x * 16807 % 2147483647; line = line (line ? " " : "") x % 50 }
                     printf "{\"text\":\"%s\"}\n", line } }' |
        meg-preprocess -q --input - --tokenizer-type NullTokenizer --vocab-size 50 --append-eod --output-prefix "$T/tiny" ||
        exit 1
    cat <<EOF
data-path = $T/tiny_text_document
split = 80,10,10
num-layers = 2
hidden-size = 32
num-attention-heads = 4
seq-length = 16
max-position-embeddings = 16
micro-batch-size = 2
global-batch-size = 8
lr = 1e-2
tokenizer-type = NullTokenizer
vocab-size = 50
eval-iters = 0
log-interval = 1
EOF
}

# tiny_llama: print options of a smaller model with the architecture of Llama, without dropout
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
