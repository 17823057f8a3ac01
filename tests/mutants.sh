#!/bin/sh
# mutants.sh [SEED [N]] - draw N mutants (default: 5) of each module, and print which tests kill each (tests/mutants.pl).
# mutants.sh --kept [TABLE] - check that each mutant of tests/data/mutants.tsv that died still dies: run its recorded
# killers, and all tests if none of them kills it; write the table with new killers to build/mutants/kept.tsv.
# mutants.sh --placement - check that each mutant of tests/data/placement_mutants.tsv ends a debug build in its first step,
# with the message that the table expects (lib/placement).
# TESTS= runs these tests instead of all unit tests and shell tests; OTHERS= (with --kept) runs these tests instead of all
# if no recorded killer kills a mutant, also with mutants that no test killed.  Files of a run are in build/mutants; src is
# a copy of this directory with the mutants.
set -eu
cd "${0%/*}/.."
out=$PWD/build/mutants
rm -rf "$out"
mkdir -p "$out/src"
case ${1:-} in
--kept) action=kept && cp "${2:-tests/data/mutants.tsv}" "$out/mutants.tsv" ;;
--placement) action=placement && cp tests/data/placement_mutants.tsv "$out/mutants.tsv" ;;
*) action=kills && tests/mutants.pl sample "${1:-1}" "${2:-5}" >"$out/mutants.tsv" ;;
esac
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$out/src"
# The definitions of meg_mutant.  The list of executed mutants is written by system calls, because tests/fault
# intercepts the functions of libc.
cat >"$out/src/mutant.h" <<'END'
#ifdef __cplusplus
extern "C" {
#endif
extern int meg_mutant_selected;
extern unsigned char meg_mutant_is_seen[];
void meg_mutant_record(int id);
static inline int meg_mutant(int id)
{
    if (!meg_mutant_is_seen[id])
        meg_mutant_record(id);
    return meg_mutant_selected == id;
}
#ifdef __cplusplus
}
#endif
END
cat >"$out/src/lib/base/mutant.c" <<'END'
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int meg_mutant_selected;
unsigned char meg_mutant_is_seen[65536];
static const char *list;
__attribute__((constructor(101))) static void read_environment(void)
{
    const char *s = getenv("MEG_MUTANT");
    meg_mutant_selected = s ? atoi(s) : 0;
    s = getenv("MEG_MUTANT_SEEN");
    list = s ? realpath(s, NULL) : NULL;
}
void meg_mutant_record(int id)
{
    char line[16];
    const int n = snprintf(line, sizeof line, "%d\n", id);
    meg_mutant_is_seen[id] = 1;
    const int fd = list ? (int)syscall(SYS_openat, AT_FDCWD, list, O_WRONLY | O_APPEND) : -1;
    if (fd >= 0) {
        syscall(SYS_write, fd, line, n);
        syscall(SYS_close, fd);
    }
}
END
goals='all build-tests'
[ "$action" != placement ] || goals='DEBUG=1 ISAS= all build/tests/toy/meg-train'
build() {
    tests/mutants.pl apply "$out/mutants.tsv" "$out/src"
    make -C "$out/src" -k -j"$(nproc)" CUDA=0 NCCL=0 EMULATED= CUDNN_ACCEPT= B=build DEPS=0 CPPFLAGS="-include mutant.h -w" \
        $goals >"$out/log" 2>&1
}
# Leave out mutants that do not compile.
until build; do
    sed -n '/error:/,/|/ s/.*meg_mutant(\([0-9]*\)).*/\1/p' "$out/log" | sort -u >"$out/bad"
    [ -s "$out/bad" ] || { cat "$out/log"; exit 1; } >&2
    awk 'FNR == NR { is_bad[$1] = 1; next } !/^#/ && ++id in is_bad { print "does not compile: " $0 >"/dev/stderr"; next } { print }' \
        "$out/bad" "$out/mutants.tsv" >"$out/good"
    mv "$out/good" "$out/mutants.tsv"
    git ls-files -z lib cmd | xargs -0 cp --parents -t "$out/src"
done
cd "$out/src"
if [ "$action" = placement ]; then
    PATH="$PWD/build/tests/toy:$PWD/bin:$PATH" B="$PWD/build" exec tests/placement_mutants.sh ../mutants.tsv
fi
# Tests of the tree, of other programs and of CUDA execute no mutant, or are not built.
all_tests() {
    find build/tests/unit -type f -perm -u+x
    find tests -name '*.t' | grep -vE '/(cuda|nccl|peers|deps|repo|modules|language|prove|options|man)[^/]*[.]t$'
}
PATH="$PWD/bin:$PATH" B="$PWD/build" CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive EXECUTED="$out/executed" \
    nice -n 10 tests/mutants.pl "$action" ../mutants.tsv . ${TESTS:-$(all_tests)} >"../$action.tsv" || exit 1
[ "$action" = kept ] || cat ../kills.tsv
