#include "comm/torchrun.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/num.h"

/* A number from lo to hi. */
static int number(int *out, const char *name, int64_t lo, int64_t hi, struct meg_err *e)
{
    const char *text = getenv(name);
    int64_t n;

    if (!text)
        return meg_fail(e, MEG_EUSAGE, "WORLD_SIZE is set, as torchrun does, but not %s", name);
    if (!meg_parse_i64(text, &n) || n < lo || n > hi)
        return meg_fail(e, MEG_EUSAGE, "%s is '%s', not a number from %" PRId64 " to %" PRId64, name, text, lo, hi);
    *out = (int)n;
    return 0;
}

static const char *text_of(const char *name)
{
    const char *text = getenv(name);

    return text ? text : "";
}

/*
 * Make the token that ranks of one run, and of no other, have in common.  Its secret is the run's id where that is
 * random, as torchrun --standalone makes it, and the key that Open MPI draws where mpirun starts torchrun on each
 * machine.
 */
static void make_token(unsigned char token[16])
{
    static const char *const shared[] = { "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                          "OMPI_MCA_orte_precondition_transports" };
    struct meg_str run = { 0 };

    for (int i = 0; i < 2; i++) {
        uint64_t hash;

        meg_str_printf(&run, "meg");
        for (size_t k = 0; k < sizeof shared / sizeof *shared; k++)
            meg_str_printf(&run, " %s", text_of(shared[k]));
        hash = meg_xxh3_64(run.s, run.n);
        memcpy(token + 8 * i, &hash, 8);
    }
    meg_str_free(&run);
}

int meg_torchrun_read(struct meg_torchrun *t, struct meg_err *e)
{
    const int port_is_taken = !strcmp(text_of("TORCHELASTIC_USE_AGENT_STORE"), "True");
    int local_size = 0, r;

    memset(t, 0, sizeof *t);
    if ((r = number(&t->size, "WORLD_SIZE", 1, 1000000, e)) < 0)
        return r;
    if (t->size == 1)
        return 0;
    if ((r = number(&t->rank, "RANK", 0, t->size - 1, e)) < 0 ||
        (r = number(&t->local_rank, "LOCAL_RANK", 0, t->size - 1, e)) < 0 ||
        (r = number(&t->meeting.port, "MASTER_PORT", 1, 65535 - port_is_taken, e)) < 0 ||
        (getenv("LOCAL_WORLD_SIZE") && (r = number(&local_size, "LOCAL_WORLD_SIZE", 1, t->size, e)) < 0))
        return r;
    t->meeting.host = text_of("MASTER_ADDR");
    if (!*t->meeting.host)
        return meg_fail(e, MEG_EUSAGE, "WORLD_SIZE is set, as torchrun does, but not MASTER_ADDR");
    t->meeting.port += port_is_taken;
    t->meeting.is_local = local_size == t->size;
    make_token(t->meeting.token);
    return 0;
}
