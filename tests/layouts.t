#!/bin/sh
# needs: ranks/layouts queue/layouts
# modules: parallel
# Training under many parallel layouts equals training on one rank (tests/ranks/layouts.c).  LAYOUTS=cover or full
# (set by make check-layouts) tests more layouts than the default sample; PART=I/N tests part I of N of full.
# MEG_QUEUE_SEED=N trains on the queue device (tests/queue/queue.h).
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/layouts" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
. "${0%/*}/train.sh"
. "${0%/*}/bert.sh"
cp "$bert_vocab" "$T/vocab.txt"

n=8 layouts=$B/tests/ranks/layouts
if [ "${MEG_QUEUE_SEED-}" ]; then
    is_openmpi || skip_all 'MPICH accesses the memory of other ranks'
    layouts=$B/tests/queue/layouts
    export OMPI_MCA_btl_vader_single_copy_mechanism=none
fi
fits "$n" || n=$cores
ranks "$n" "$layouts" "${LAYOUTS:-sample}" "$T" ${PART:+"$PART"} 2>"$T/err"
status=$?
[ "$status" -eq 0 ] || tail -n 5 "$T/err" | sed 's/^/# /'
exit "$status"
