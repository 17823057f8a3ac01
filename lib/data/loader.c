/*
 * loader.c - prefetch micro-batches through a ring of slots.  With read-ahead, a thread fills the slot of batch number
 * `produced`, and meg_data_loader_next returns the batch in the slot of batch number `consumed`.  Without read-ahead,
 * meg_data_loader_next fills the only slot itself.  To avoid a copy, meg_data_loader_next exchanges the arrays of the
 * slot with the arrays of the caller's batch.
 */
#include "data/loader.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "file/sigbus.h"

struct slot {
    struct meg_batch batch;
    int status; /* 0, or the code of err if the batch could not be read */
    struct meg_err err;
};

struct meg_data_loader {
    const struct meg_dataset *ds;
    struct meg_data_sampler *sampler;
    int64_t s, s_enc, b; /* tokens per sequence on this rank; tokens of the encoder's input; sequences per batch */
    int64_t *position;   /* [s] copy of the configuration's array, or NULL */
    struct meg_batch_memory memory;
    const struct meg_batch_memory *pinned; /* &memory, or NULL */
    int64_t *index;                        /* [b] dataset indices of the samples in a micro-batch */
    struct meg_batch sample; /* buffer for one complete sequence; this rank's positions are copied to a slot */
    struct slot *slot;       /* [nslot] */
    int nslot, read_ahead;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;     /* signals a change of produced, consumed or is_closing */
    int64_t produced, consumed; /* numbers of batches read and returned; batch n is in slot n % nslot */
    bool is_closing;
};

/*
 * Copy this rank's positions of the loaded sequence to sequence i of x.  Add the number of unmasked tokens of the
 * complete sequence to x->num_unmasked.
 */
static void put_sequence(struct meg_data_loader *l, struct meg_batch *x, int64_t i)
{
    struct meg_batch *from = &l->sample;

    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++) {
        char *to = *meg_batch_array(x, f);
        const char *p = *meg_batch_array(from, f);
        const size_t size = meg_batch_fields[f].size;
        const bool is_sharded = l->position && meg_batch_fields[f].dim == MEG_BATCH_PER_TOKEN;

        if (!to || f == MEG_BATCH_SAMPLE_ID) /* the sampler sets sample_id */
            continue;
        for (int64_t t = 0; t < meg_batch_length(x, f); t++)
            memcpy(to + (size_t)(t * l->b + i) * size, p + (size_t)(is_sharded ? l->position[t] : t) * size, size);
    }
    for (int64_t p = 0; p < from->s; p++)
        x->num_unmasked += from->loss_mask[p] != 0;
}

struct read_args {
    struct meg_data_loader *l;
    struct meg_batch *batch;
};

/* Read the samples with the indices l->index into a batch. */
static int read_batch(void *arg, struct meg_err *e)
{
    const struct read_args *a = arg;
    int r;

    a->batch->num_unmasked = 0;
    for (int64_t i = 0; i < a->l->b; i++) {
        if ((r = meg_dataset_sample(a->l->ds, a->l->index[i], &a->l->sample, e)) < 0)
            return r;
        put_sequence(a->l, a->batch, i);
    }
    return 0;
}

/* Read the sampler's next batch into a slot, and set the slot's status. */
static void fill_slot(struct meg_data_loader *l, struct slot *o)
{
    struct read_args a = { l, &o->batch };

    if (!meg_data_sampler_next(l->sampler, l->index, o->batch.sample_id))
        o->status =
            meg_fail(&o->err, MEG_EFAIL,
                     "the %" PRId64 " samples that this run prepared are too few for one more micro-batch on each "
                     "data-parallel rank; increase --train-iters or --train-samples or, for validation, "
                     "increase --eval-iters or decrease --eval-interval",
                     meg_dataset_len(l->ds));
    else
        o->status = meg_sigbus_guard(read_batch, &a, &o->err);
}

static void *read_ahead_thread(void *arg)
{
    struct meg_data_loader *l = arg;
    bool is_done = false;

    pthread_mutex_lock(&l->lock);
    while (!is_done) {
        struct slot *o = &l->slot[l->produced % l->nslot];

        while (!l->is_closing && l->produced - l->consumed >= l->read_ahead)
            pthread_cond_wait(&l->changed, &l->lock);
        if (l->is_closing)
            break;
        pthread_mutex_unlock(&l->lock);
        fill_slot(l, o);
        is_done = o->status < 0;
        pthread_mutex_lock(&l->lock);
        l->produced++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

int meg_data_loader_open(struct meg_data_loader **out, const struct meg_dataset *ds,
                         const struct meg_data_loader_conf *conf, struct meg_err *e)
{
    struct meg_data_sampler_conf c = conf->sampler;
    struct meg_data_sampler *sampler;
    struct meg_data_loader *l;
    int r;

    c.total = meg_dataset_len(ds);
    if ((r = meg_data_sampler_open(&sampler, &c, e)) < 0)
        return r;
    l = meg_new(sizeof *l);
    l->ds = ds;
    l->sampler = sampler;
    l->s = meg_dataset_seq_length(ds);
    l->s_enc = meg_dataset_enc_length(ds);
    l->b = c.micro_batch;
    meg_batch_alloc(&l->sample, l->s, l->s_enc, 1, conf->fields, NULL);
    if (conf->pinned) {
        l->memory = *conf->pinned;
        l->pinned = &l->memory;
    }
    if (conf->position) {
        l->s = conf->s;
        l->position = meg_realloc_array(NULL, (size_t)l->s, sizeof *l->position);
        memcpy(l->position, conf->position, (size_t)l->s * sizeof *l->position);
    }
    l->index = meg_realloc_array(NULL, (size_t)l->b, sizeof *l->index);
    l->read_ahead = conf->read_ahead;
    l->nslot = l->read_ahead > 0 ? l->read_ahead : 1;
    l->slot = meg_new((size_t)l->nslot * sizeof *l->slot);
    for (int i = 0; i < l->nslot; i++)
        meg_batch_alloc(&l->slot[i].batch, l->s, l->s_enc, l->b, conf->fields, l->pinned);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    if (l->read_ahead > 0 && pthread_create(&l->thread, NULL, read_ahead_thread, l) != 0)
        l->read_ahead = 0; /* without a thread, meg_data_loader_next reads the batches */
    *out = l;
    return 0;
}

void meg_data_loader_close(struct meg_data_loader *l)
{
    if (!l)
        return;
    if (l->read_ahead > 0) {
        pthread_mutex_lock(&l->lock);
        l->is_closing = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    for (int i = 0; i < l->nslot; i++)
        meg_batch_free(&l->slot[i].batch);
    free(l->slot);
    meg_batch_free(&l->sample);
    free(l->position);
    free(l->index);
    meg_data_sampler_close(l->sampler);
    free(l);
}

/* Swap *x and the slot's batch; if reading the batch failed, return the slot's error instead. */
static int take_batch(const struct meg_data_loader *l, struct slot *o, struct meg_batch *x, struct meg_err *e)
{
    const struct meg_batch filled = o->batch;

    if (o->status < 0) {
        if (e)
            *e = o->err;
        return o->status;
    }
    if (!x->tokens)
        meg_batch_alloc(x, filled.s, filled.s_enc, filled.b, meg_batch_present(&filled), l->pinned);
    MEG_ASSERT(x->s == filled.s && x->b == filled.b);
    o->batch = *x;
    *x = filled;
    return 0;
}

int meg_data_loader_next(struct meg_data_loader *l, struct meg_batch *x, struct meg_err *e)
{
    struct slot *o = &l->slot[l->consumed % l->nslot];
    int r;

    if (l->read_ahead == 0) {
        fill_slot(l, &l->slot[0]);
        return take_batch(l, &l->slot[0], x, e);
    }
    pthread_mutex_lock(&l->lock);
    while (l->produced <= l->consumed)
        pthread_cond_wait(&l->changed, &l->lock);
    if ((r = take_batch(l, o, x, e)) == 0) {
        l->consumed++; /* a failed batch is not consumed: the next call returns its error again */
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return r;
}
