#!/bin/sh
# registers.sh - print the resources of each kernel of lib/cuda, from the reports of ptxas in the build directory $B.
# registers.sh --is-current succeeds if the files of lib/cuda are those from which the table was made.
# The first line names nvcc and the targets, the second a hash of the files without comments.  Instances of attention
# that a target does not use, which have no code, are omitted.  Update the table of tests/cuda_registers.t:
#   make && tests/cuda/registers.sh >tests/data/cuda/registers.txt
LC_ALL=C
export LC_ALL
B=${B:-build}
cd "${0%/*}/../.." || exit 1

hash=$(cat lib/cuda/*.cu lib/cuda/*.h lib/cuda/*/*.cu lib/cuda/*/*.h |
    perl -0777 -pe 's{/[*].*?[*]/|//[^\n]*}{}gs; s/\s+/ /g' | sha256sum | cut -c 1-32)
if [ "${1:-}" = --is-current ]; then
    grep -qx "# sha256 $hash" tests/data/cuda/registers.txt
    exit
fi
set --
for f in lib/cuda/*.cu lib/cuda/*/*.cu; do
    report=$B/$f.o.ptxas
    [ -f "$report" ] || { echo "registers.sh: $report does not exist; run make with CUDA=1" >&2; exit 1; }
    set -- "$@" "$report"
done
echo "$(sed -n 's/.* release .*, V/nvcc /p' "$@" | sort -u) for" \
    "$(sed -n "s/.*Compiling entry function.* for '\(.*\)'/\1/p" "$@" | sort -u | paste -s -d ' ')"
echo "# sha256 $hash"
echo '# target, registers, bytes of static shared memory, of stack and of spills, file, kernel'
awk '
    function number(unit) { return match($0, "[0-9]+ " unit) ? substr($0, RSTART) + 0 : 0 }
    /Compiling entry function/ {
        split($0, quoted, "\047")
        kernel = quoted[2]
        target = quoted[4]
    }
    /Function properties for/ { is_kernel = $NF == kernel }
    /bytes stack frame/ && is_kernel {
        stack = number("bytes stack frame")
        spills = number("bytes spill stores") + number("bytes spill loads")
    }
    /Used [0-9]+ registers/ {
        file = FILENAME
        gsub(/.*\/lib\/cuda\/|[.]o[.]ptxas$/, "", file)
        if (kernel !~ /attn_config/ || number("registers") > 4)
            print target, number("registers"), number("bytes smem"), stack, spills, file, kernel
    }' "$@" | c++filt -p | sort -k6 -k1,1
