/* torchrun.c - read the environment of torchrun, and derive the token of the rendezvous from it. */
#include "comm/torchrun.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/num.h"

/* Read a number in [lo, hi] from an environment variable. */
static int number(int *out, const char *name, int64_t lo, int64_t hi, struct meg_err *e)
{
    const char *text = getenv(name);
    int64_t n;

    if (!text)
        return meg_fail(
            e, MEG_EUSAGE,
            "WORLD_SIZE is set, so the ranks appear to be started by torchrun, but %s is not set; unset WORLD_SIZE or "
            "start the ranks with torchrun",
            name);
    if (!meg_parse_i64(text, &n) || n < lo || n > hi)
        return meg_fail(e, MEG_EUSAGE, "%s is '%s'; it must be a number from %" PRId64 " to %" PRId64, name, text, lo,
                        hi);
    *out = (int)n;
    return 0;
}

static const char *text_of(const char *name)
{
    const char *text = getenv(name);

    return text ? text : "";
}

/*
 * Derive a token that is equal on all ranks of a run, and differs between runs with different ids.  The token is only
 * as secret as its sources: a random run id (torchrun --standalone), or the key that Open MPI generates if mpirun
 * starts torchrun on each machine.
 */
static void make_token(unsigned char token[16])
{
    static const char *const variables[] = { "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                             "OMPI_MCA_orte_precondition_transports" };
    struct meg_str text = { 0 };

    for (int i = 0; i < 2; i++) {
        uint64_t hash;

        meg_str_printf(&text, "meg");
        for (size_t k = 0; k < sizeof variables / sizeof *variables; k++)
            meg_str_printf(&text, " %s", text_of(variables[k]));
        hash = meg_xxh3_64(text.s, text.n);
        memcpy(token + 8 * i, &hash, 8);
    }
    meg_str_free(&text);
}

int meg_torchrun_read(struct meg_torchrun *t, struct meg_err *e)
{
    const int agent_has_port = strcmp(text_of("TORCHELASTIC_USE_AGENT_STORE"), "True") == 0;
    int r;

    memset(t, 0, sizeof *t);
    if ((r = number(&t->size, "WORLD_SIZE", 1, 1000000, e)) < 0)
        return r;
    if (t->size == 1)
        return 0;
    if ((r = number(&t->rank, "RANK", 0, t->size - 1, e)) < 0 ||
        (r = number(&t->rendezvous.port, "MASTER_PORT", 1, 65535 - agent_has_port, e)) < 0 ||
        (getenv("LOCAL_WORLD_SIZE") && (r = number(&t->local_size, "LOCAL_WORLD_SIZE", 1, t->size, e)) < 0))
        return r;
    t->rendezvous.host = text_of("MASTER_ADDR");
    if (!*t->rendezvous.host)
        return meg_fail(e, MEG_EUSAGE,
                        "WORLD_SIZE is set, so the ranks appear to be started by torchrun, but MASTER_ADDR is not set; "
                        "unset WORLD_SIZE or start the ranks with torchrun");
    t->rendezvous.port += agent_has_port;
    t->rendezvous.is_local = t->local_size == t->size;
    make_token(t->rendezvous.token);
    return 0;
}
