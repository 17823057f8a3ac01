/*
 * rank_consensus.c - agree over all ranks on failures and stop requests, and check that all have the same input files.
 */
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/hash.h"
#include "train/rank_config_check.h"
#include "train/stop.h"
#include "train/trainer.h"

/* Block until the meg_die of the rank that reports the error ends this process. */
static void wait_for_abort(const struct meg_trainer *t)
{
    meg_host_barrier(t->mesh.world);
}

static void add_tokenizer_file(struct meg_str *lines, int i, const struct meg_str *bytes)
{
    char hex[33];

    meg_xxh3_128_hex(hex, bytes->s, bytes->n);
    meg_str_printf(lines, "tokenizer file %d = %zu bytes, XXH3 %s\n", i + 1, bytes->n, hex);
}

/*
 * Append the hash of one file of a checkpoint to `lines`: manifest.json if the checkpoint is native, else config.json
 * (Hugging Face).  A manifest contains the checksums of the other files.  If the file is missing, as in Megatron's
 * format, append the path of the checkpoint.
 */
static void add_checkpoint(struct meg_str *lines, const struct meg_ckpt *c)
{
    struct meg_str path = { 0 };

    meg_str_printf(&path, "%s/%s", meg_ckpt_path(c), meg_ckpt_is_native(c) ? "manifest.json" : "config.json");
    if (access(path.s, F_OK) == 0)
        meg_rank_config_add_file(lines, path.s);
    else
        meg_str_printf(lines, "--load = %s\n", meg_ckpt_path(c));
    meg_str_free(&path);
}

int meg_train_agree_or_exit(const struct meg_trainer *t, int r)
{
    struct meg_comm *world = t->mesh.world;
    int32_t failed = r < 0 ? world->size - world->rank : 0;

    meg_host_all_reduce(world, &failed, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    if (failed && failed != world->size - world->rank)
        wait_for_abort(t);
    return r;
}

int meg_train_fail_on_rank0(const struct meg_trainer *t, int r)
{
    if (!meg_train_is_rank0(t))
        wait_for_abort(t);
    return r;
}

/* Return whether an earlier entry, usually of another split, has the name of dataset i. */
static bool is_listed_before(const struct meg_mid_dataset *p, int i)
{
    for (int k = 0; k < i; k++)
        if (strcmp(p[k].name, p[i].name) == 0)
            return true;
    return false;
}

int meg_train_check_inputs(const struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_mid_dataset *p;
    struct meg_str lines = { 0 }, path = { 0 };
    int r, n = 0;

    if (t->mesh.world->size == 1)
        return 0;
    for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
        if (t->tok_files.file[i].s)
            add_tokenizer_file(&lines, i, &t->tok_files.file[i]);
    if (t->checkpoint)
        add_checkpoint(&lines, t->checkpoint);
    p = meg_data_splits_mid_datasets(t->data, &n);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 2 && !is_listed_before(p, i); k++) {
            path.n = 0;
            meg_str_printf(&path, "%s%s", p[i].name, k ? ".bin" : ".idx");
            if (access(path.s, F_OK) == 0) /* mock data has no files */
                meg_rank_config_add_file(&lines, path.s);
        }
    meg_str_add(&lines, "", 0);
    r = meg_rank_config_check(t->mesh.world, lines.s, MEG_EFORMAT, "all ranks must read the same files", e);
    meg_str_free(&lines);
    meg_str_free(&path);
    return r;
}

bool meg_train_stop_requested(const struct meg_trainer *t, double *minutes)
{
    double max[2] = { meg_stop_signal() != 0, (meg_now_s() - t->start_s) / 60 };

    meg_host_all_reduce(t->mesh.world, max, 2, MEG_DTYPE_F64, MEG_REDUCE_MAX);
    if (minutes)
        *minutes = max[1];
    return max[0] > 0;
}
