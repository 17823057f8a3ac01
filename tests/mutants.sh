#!/bin/sh
# mutants.sh [SEED [N]] - draw N mutants (default: 5) of each module, and print which tests kill each (tests/mutants.pl).
# Files of a run are in build/mutants: mutants.tsv, kills.tsv, and src, a copy of this directory with the mutants.
# TESTS= runs these tests instead of all unit tests and shell tests.
set -eu
cd "${0%/*}/.."
seed=${1:-1} n=${2:-5} out=build/mutants
rm -rf "$out"
mkdir -p "$out/src"
tests/mutants.pl sample "$seed" "$n" >"$out/mutants.tsv"
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
build() {
    tests/mutants.pl apply "$out/mutants.tsv" "$out/src"
    make -C "$out/src" -k -j"$(nproc)" CUDA=0 B=build DEPS=0 CPPFLAGS="-include mutant.h -w" all build-tests >"$out/log" 2>&1
}
# Leave out mutants that do not compile.
until build; do
    sed -n '/error:/,/|/ s/.*meg_mutant(\([0-9]*\)).*/\1/p' "$out/log" | sort -u >"$out/bad"
    [ -s "$out/bad" ] || { cat "$out/log"; exit 1; } >&2
    awk -F '\t' 'FNR == NR { is_bad[$1] = 1; next } !($1 in is_bad)' "$out/bad" "$out/mutants.tsv" >"$out/good"
    mv "$out/good" "$out/mutants.tsv"
    git ls-files -z lib cmd | xargs -0 cp --parents -t "$out/src"
done
cd "$out/src"
PATH="$PWD/bin:$PATH" B="$PWD/build" CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive \
    tests/mutants.pl kills ../mutants.tsv . ${TESTS:-$(find build/tests/unit -type f -perm -u+x) tests/cmd/*.t tests/*.t} >../kills.tsv
