/*
 * A ring of slots, each room for one micro-batch.  With read-ahead a thread fills slot `filled` while
 * the caller holds slot `taken - 1`; without, meg_data_loader_next fills the only slot itself.
 */
#include "data/loader.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"
#include "file/sigbus.h"

struct slot {
    int32_t *tokens, *labels, *position_ids, *doc_start;
    float *loss_mask;
    int64_t *sample_id;
    int status;
    struct meg_err err;
};

struct meg_data_loader {
    const struct meg_dataset *ds;
    struct meg_data_sampler *sampler;
    int64_t s, b;
    int64_t *index;        /* [b] */
    struct meg_sample row; /* one sample, before it is spread over a slot */
    struct slot *slot;
    int nslot, read_ahead;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    int64_t filled, taken; /* micro-batches so far; slot of number n is n % nslot */
    bool is_closing;
};

struct filling {
    struct meg_data_loader *l;
    struct slot *o;
};

/* Read the samples of l->index into a slot. */
static int read_samples(void *arg, struct meg_err *e)
{
    const struct filling *f = arg;
    struct meg_data_loader *l = f->l;
    struct slot *o = f->o;
    const int64_t s = l->s, b = l->b;
    int r;

    for (int64_t i = 0; i < b; i++) {
        if ((r = meg_dataset_sample(l->ds, l->index[i], &l->row, e)) < 0)
            return r;
        for (int64_t t = 0; t < s; t++) {
            o->tokens[t * b + i] = l->row.tokens[t];
            o->labels[t * b + i] = l->row.labels[t];
            o->loss_mask[t * b + i] = l->row.loss_mask[t];
            o->position_ids[t * b + i] = l->row.position_ids[t];
            o->doc_start[t * b + i] = l->row.doc_start[t];
        }
    }
    return 0;
}

static void fill(struct meg_data_loader *l, struct slot *o)
{
    struct filling f = { l, o };

    if (!meg_data_sampler_next(l->sampler, l->index, o->sample_id))
        o->status = meg_fail(&o->err, MEG_EFAIL,
                             "all %" PRId64 " samples of the dataset are used up; it was "
                             "built for a shorter run",
                             meg_dataset_len(l->ds));
    else
        o->status = meg_sigbus_guard(read_samples, &f, &o->err);
}

static void *fill_ahead(void *arg)
{
    struct meg_data_loader *l = arg;
    bool is_done = false;

    pthread_mutex_lock(&l->lock);
    while (!is_done) {
        /* the slot of the batch last taken is still being read */
        while (!l->is_closing && l->filled - l->taken >= l->read_ahead)
            pthread_cond_wait(&l->news, &l->lock);
        if (l->is_closing)
            break;
        pthread_mutex_unlock(&l->lock);
        fill(l, &l->slot[l->filled % l->nslot]);
        is_done = l->slot[l->filled % l->nslot].status < 0;
        pthread_mutex_lock(&l->lock);
        l->filled++;
        pthread_cond_broadcast(&l->news);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void alloc_slot(struct slot *o, size_t n, size_t b)
{
    o->tokens = meg_realloc_array(NULL, n, 4);
    o->labels = meg_realloc_array(NULL, n, 4);
    o->loss_mask = meg_realloc_array(NULL, n, 4);
    o->position_ids = meg_realloc_array(NULL, n, 4);
    o->doc_start = meg_realloc_array(NULL, n, 4);
    o->sample_id = meg_realloc_array(NULL, b, sizeof *o->sample_id);
}

static void free_slot(struct slot *o)
{
    free(o->tokens);
    free(o->labels);
    free(o->loss_mask);
    free(o->position_ids);
    free(o->doc_start);
    free(o->sample_id);
}

int meg_data_loader_open(struct meg_data_loader **out, const struct meg_dataset *ds,
                         const struct meg_data_sampler_conf *conf, int read_ahead, struct meg_err *e)
{
    struct meg_data_sampler_conf c = *conf;
    struct meg_data_sampler *sampler;
    struct meg_data_loader *l;
    size_t s = (size_t)meg_dataset_seq_length(ds);
    int r;

    c.total = meg_dataset_len(ds);
    if ((r = meg_data_sampler_open(&sampler, &c, e)) < 0)
        return r;
    l = meg_new(sizeof *l);
    l->ds = ds;
    l->sampler = sampler;
    l->s = (int64_t)s;
    l->b = c.micro_batch;
    l->index = meg_realloc_array(NULL, (size_t)l->b, sizeof *l->index);
    l->row = (struct meg_sample){ meg_realloc_array(NULL, s, 4), meg_realloc_array(NULL, s, 4),
                                  meg_realloc_array(NULL, s, 4), meg_realloc_array(NULL, s, 4),
                                  meg_realloc_array(NULL, s, 4) };
    l->read_ahead = read_ahead;
    l->nslot = read_ahead + 1;
    l->slot = meg_new((size_t)l->nslot * sizeof *l->slot);
    for (int i = 0; i < l->nslot; i++)
        alloc_slot(&l->slot[i], s * (size_t)l->b, (size_t)l->b);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->news, NULL);
    if (read_ahead > 0 && pthread_create(&l->thread, NULL, fill_ahead, l) != 0)
        l->read_ahead = 0; /* no thread to be had: read when asked */
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
        pthread_cond_broadcast(&l->news);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    pthread_cond_destroy(&l->news);
    pthread_mutex_destroy(&l->lock);
    for (int i = 0; i < l->nslot; i++)
        free_slot(&l->slot[i]);
    free(l->slot);
    free(l->row.tokens);
    free(l->row.labels);
    free(l->row.loss_mask);
    free(l->row.position_ids);
    free(l->row.doc_start);
    free(l->index);
    meg_data_sampler_close(l->sampler);
    free(l);
}

/* The slot of the next batch, filled; a batch that failed is never passed. */
static const struct slot *next_slot(struct meg_data_loader *l)
{
    const struct slot *o = &l->slot[l->taken % l->nslot];

    if (l->read_ahead == 0) {
        fill(l, &l->slot[0]);
        return &l->slot[0];
    }
    pthread_mutex_lock(&l->lock);
    while (l->filled <= l->taken)
        pthread_cond_wait(&l->news, &l->lock);
    if (o->status == 0) {
        l->taken++;
        pthread_cond_broadcast(&l->news);
    }
    pthread_mutex_unlock(&l->lock);
    return o;
}

int meg_data_loader_next(struct meg_data_loader *l, struct meg_batch *b, struct meg_err *e)
{
    const struct slot *o = next_slot(l);

    if (o->status < 0) {
        if (e)
            *e = o->err;
        return o->status;
    }
    *b = (struct meg_batch){
        l->s, l->b, o->tokens, o->labels, o->loss_mask, o->position_ids, o->doc_start, o->sample_id
    };
    return 0;
}
