/* memory_check.c - compare the memory that a run needs with the memory of this machine. */
#include "plan/memory_check.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/device.h"
#include "io/line_reader.h"
#include "model/desc.h"
#include "plan/cost.h"

enum { OVERHEAD_NBYTES = 16 << 20 }; /* bytes of the program and its libraries, measured */
enum { MALLOC_NBYTES = 8 };          /* bytes that malloc adds to an array */

/* ---- this machine ---- */

/* Return the number after `word`, which begins a line of the file, times `unit`; 0 if there is no such line. */
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

/* Return the bytes of available memory and free swap, at most the limit of the cgroup; 0 if unknown. */
static double available_nbytes(void)
{
    const double limit = read_proc_value("/sys/fs/cgroup/memory.max", "", 1); /* 0 if the file has "max": no limit */
    const double available =
        read_proc_value("/proc/meminfo", "MemAvailable:", 1024) + read_proc_value("/proc/meminfo", "SwapFree:", 1024);

    return limit > 0 && limit < available ? limit : available;
}

double meg_memory_available(int64_t ranks)
{
    return available_nbytes() / (double)ranks;
}

double meg_memory_rss(void)
{
    return read_proc_value("/proc/self/status", "VmRSS:", 1024);
}

double meg_memory_peak_rss(void)
{
    return read_proc_value("/proc/self/status", "VmHWM:", 1024);
}

/* ---- the run ---- */

/* Return the bytes of a micro-batch in host memory. */
static double micro_batch_nbytes(const struct meg_run_spec *s)
{
    const struct meg_batch x = { .s = s->model_run.s, .s_enc = s->model_run.s_enc, .b = s->batch.micro };
    struct meg_model_desc d;
    double nbytes = 0;

    meg_model_describe(&d, &s->job->model);
    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++)
        if (d.inputs & 1u << f)
            nbytes += (double)meg_batch_numel(&x, f) * (double)meg_batch_fields[f].size + MALLOC_NBYTES;
    meg_model_desc_free(&d);
    return nbytes;
}

double meg_memory_overhead(const struct meg_run_spec *s)
{
    return OVERHEAD_NBYTES + micro_batch_nbytes(s) * (double)meg_batch_max_microbatches(&s->batch);
}

/* Return the bytes of the tensors of a rank, except those in host memory if the rank has a GPU. */
static double rank_nbytes(const struct meg_run_spec *s, int64_t rank, bool has_gpu)
{
    struct meg_cost_model m;
    double nbytes[MEG_COST_MEM_TYPES], sum = 0;

    meg_cost_model_make(&m, s, meg_batch_max_microbatches(&s->batch));
    meg_cost_memory(nbytes, &m, meg_layout_coords(&s->layout, rank));
    meg_cost_model_free(&m);
    for (int i = 0; i < MEG_COST_MEM_TYPES; i++)
        if (i != MEG_COST_MEM_ASYNC_SAVE || !has_gpu)
            sum += nbytes[i];
    return sum;
}

/* Fail if the tensors of this rank need more memory than its GPU has free. */
static int check_gpu(double needed, double available, int rank, struct meg_err *e)
{
    if (needed <= available)
        return 0;
    return meg_fail(e, MEG_EFAIL,
                    "not enough memory on the GPU of rank %d: tensors need %.1f GiB, but only %.1f GiB are free; use a "
                    "smaller --micro-batch-size, --recompute-granularity, bf16 states of the optimizer "
                    "(--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16), or a layout with more ranks (see --plan)",
                    rank, needed / (1 << 30), available / (1 << 30));
}

/* Fail if the ranks on this machine need more memory than is available. */
static int check_host(const struct meg_run_spec *s, struct meg_comm *world, struct meg_err *e)
{
    const double available = available_nbytes();
    char host[256] = "?";
    double needed = 0;
    int ranks_here = 0;
    struct {
        uint64_t host; /* hash of the host name */
        double nbytes;
    } *all = meg_new((size_t)world->size * sizeof *all), *own = &all[world->rank];

    gethostname(host, sizeof host - 1);
    own->host = meg_xxh3_64(host, strlen(host));
    own->nbytes = rank_nbytes(s, world->rank, false) + meg_memory_overhead(s);
    meg_host_all_gather(world, all, own, 2, MEG_DTYPE_F64);
    for (int i = 0; i < world->size; i++)
        if (all[i].host == own->host) {
            needed += all[i].nbytes;
            ranks_here++;
        }
    free(all);
    if (available == 0 || needed <= available)
        return 0;
    return meg_fail(
        e, MEG_EFAIL,
        "not enough memory on %s: %d rank%s need%s %.1f GiB, but only %.1f GiB are available; use a smaller "
        "--micro-batch-size, --recompute-activations, or a layout with more ranks (see --plan)",
        host, ranks_here, ranks_here == 1 ? "" : "s", ranks_here == 1 ? "s" : "", needed / (1 << 30),
        available / (1 << 30));
}

int meg_memory_check(const struct meg_run_spec *s, struct meg_comm *world, struct meg_err *e)
{
    const size_t free_nbytes = meg_device_current()->op->free_nbytes();

    return free_nbytes ? check_gpu(rank_nbytes(s, world->rank, true), (double)free_nbytes, world->rank, e)
                       : check_host(s, world, e);
}
