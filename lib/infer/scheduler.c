/* scheduler.c - the queue of replies, and the slots of the generator. */
#include "infer/scheduler.h"
#include <stdlib.h>
#include "base/mem.h"

void meg_scheduler_init(struct meg_scheduler *s, const struct meg_loaded_model *m, int64_t max_batch_size,
                        bool has_logprobs, int64_t top_n_logprobs)
{
    *s = (struct meg_scheduler){ .m = m, .last = &s->first };
    s->gen = meg_generator_open(m->g, m->unpadded_vocab, &m->eos_ids, max_batch_size, has_logprobs, top_n_logprobs);
}

void meg_scheduler_free(struct meg_scheduler *s)
{
    meg_generator_close(s->gen);
    while (s->first)
        meg_scheduler_remove_first(s);
}

struct meg_queued_reply *meg_scheduler_new_reply(const struct meg_request *defaults)
{
    struct meg_queued_reply *q = meg_new(sizeof *q);

    meg_request_init(&q->reply.request, defaults);
    return q;
}

void meg_scheduler_discard(struct meg_queued_reply *q)
{
    meg_reply_free(&q->reply);
    free(q);
}

void meg_scheduler_remove_first(struct meg_scheduler *s)
{
    struct meg_queued_reply *q = s->first;

    if (!(s->first = q->next))
        s->last = &s->first;
    meg_scheduler_discard(q);
}

int meg_scheduler_update(struct meg_scheduler *s, struct meg_err *e)
{
    int r;

    for (struct meg_queued_reply *q = s->first; q; q = q->next) {
        if ((r = meg_reply_update(&q->reply, e)) < 0)
            return r;
        if (r > 0)
            meg_generator_stop(s->gen, &q->reply.c);
    }
    return 0;
}

int meg_scheduler_add(struct meg_scheduler *s, struct meg_queued_reply *q, const struct meg_ids *ids, struct meg_err *e)
{
    struct meg_continuation *c = &q->reply.c;

    *s->last = q;
    s->last = &q->next;
    c->prompt = s->prompts++;
    c->request = &q->reply.request;
    return ids->n > 0 ? meg_generator_add(s->gen, ids->v, ids->n, c, e)
                      : meg_generator_add(s->gen, &s->m->eod, 1, c, e);
}
