#!/bin/sh
# The registers, shared memory, stack and spills of the kernels are those of data/cuda/registers.txt.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
set -- "$B"/lib/cuda/*.cu.o.ptxas "$B"/lib/cuda/*/*.cu.o.ptxas
[ -f "$1" ] || skip_all 'this build has no CUDA'

status 'the build has a report of each file' 0 tests/cuda/registers.sh
mv "$T/out" "$T/registers"
is 'no kernel uses stack or spills registers' "$(grep -hE -B 1 '\b[1-9][0-9]* bytes (stack|spill)' "$@" | c++filt -p)" ''
is 'no product of matrices waits for the previous one' "$(grep -h 'wgmma.*serialized' "$@")" ''
compiler=$(head -n 1 "$T/registers")
committed=$(head -n 1 tests/data/cuda/registers.txt)
if [ "$compiler" = "$committed" ]; then
    is 'the resources of the kernels are those of tests/data/cuda/registers.txt; update it by tests/cuda/registers.sh' \
        "$(diff tests/data/cuda/registers.txt "$T/registers")" ''
else
    skip 'the resources of the kernels are those of tests/data/cuda/registers.txt' "compiled by $compiler, the table by $committed"
fi
done_testing
