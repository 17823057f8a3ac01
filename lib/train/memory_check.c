/* Whether this machine's memory is enough for its ranks, told before it is taken. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/line_reader.h"
#include "train/internal.h"

/* The program, its libraries, a loader's samples: measured. */
enum { PROCESS_NBYTES = 16 << 20 };

double meg_memory_overhead(const struct trainer *t)
{
    const int64_t num_micro = meg_batch_max_microbatches(&t->plan);

    return PROCESS_NBYTES + (double)meg_train_micro_batch_nbytes(t) * (double)num_micro;
}

int meg_plan_threads(const struct meg_hardware *hw)
{
    return hw->memory > 0 ? 1 : omp_get_max_threads();
}

/* The number behind a word at the begin of a line, times unit; 0 when it is not there. */
static double read_proc_value(const char *path, const char *word, double unit)
{
    struct meg_line_reader in;
    char *line;
    size_t n;
    double v = 0;

    if (meg_line_reader_open(&in, path, NULL) == 0)
        while (v == 0 && meg_line_reader_next(&in, &line, &n, NULL) > 0)
            if (strncmp(line, word, strlen(word)) == 0)
                v = strtod(line + strlen(word), NULL) * unit;
    meg_line_reader_close(&in);
    return v;
}

/* What can be had without taking it from others, and what can be swapped out; 0 where that is not known. */
static double available(void)
{
    const double limit = read_proc_value("/sys/fs/cgroup/memory.max", "", 1); /* of a container; "max" is none */
    const double here =
        read_proc_value("/proc/meminfo", "MemAvailable:", 1024) + read_proc_value("/proc/meminfo", "SwapFree:", 1024);

    return limit > 0 && limit < here ? limit : here;
}

double meg_memory_available(int64_t ranks)
{
    return available() / (double)ranks;
}

double meg_memory_rss(void)
{
    return read_proc_value("/proc/self/status", "VmRSS:", 1024);
}

double meg_memory_peak_rss(void)
{
    return read_proc_value("/proc/self/status", "VmHWM:", 1024);
}

int meg_memory_check(const struct trainer *t, struct meg_err *e)
{
    struct meg_comm *world = t->mesh->world;
    const struct meg_cost_model p = meg_plan_cost_model(t, meg_batch_max_microbatches(&t->plan));
    const double here = available();
    char host[256] = "?";
    double nbytes[MEG_COST_MEM_TYPES], mine = meg_memory_overhead(t), all = 0;
    struct {
        uint64_t host;
        double nbytes;
    } *of = meg_new((size_t)world->size * sizeof *of);
    int ranks = 0;

    gethostname(host, sizeof host - 1);
    meg_cost_memory(nbytes, &p, meg_layout_coords(&p.layout, world->rank));
    for (int i = 0; i < MEG_COST_MEM_TYPES; i++)
        mine += nbytes[i];
    of[world->rank].host = meg_xxh3_64(host, strlen(host));
    of[world->rank].nbytes = mine;
    meg_comm_wait(world, world->op->all_gather(world, of, &of[world->rank], 2, MEG_DTYPE_F64));
    for (int i = 0; i < world->size; i++)
        if (of[i].host == of[world->rank].host) {
            all += of[i].nbytes;
            ranks++;
        }
    free(of);
    if (here == 0 || all <= here)
        return 0;
    return meg_fail(e, MEG_EFAIL,
                    "%.1f GiB of memory are needed for %d rank%s on %s, which has %.1f GiB left; less is needed with a "
                    "smaller --micro-batch-size, --recompute-activations, or a model shared by more ranks (see --plan)",
                    all / (1 << 30), ranks, ranks == 1 ? "" : "s", host, here / (1 << 30));
}
