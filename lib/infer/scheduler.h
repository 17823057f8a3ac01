/*
 * scheduler.h - generate the continuations of prompts that arrive one by one.  A prompt joins the running batch when a
 * slot of the generator is free.  Replies are a queue in the order of the prompts: a complete reply waits until the
 * caller has removed those of all earlier prompts.
 */
#pragma once
#include "infer/model_load.h"
#include "infer/reply.h"

/* A reply that is being generated, or that waits until earlier replies are removed. */
struct meg_queued_reply {
    struct meg_queued_reply *next;
    struct meg_reply reply;
};

struct meg_scheduler {
    const struct meg_loaded_model *m;
    struct meg_generator *gen;
    struct meg_queued_reply *first, **last; /* queue of replies in the order of the prompts */
    int64_t prompts;                        /* number of prompts so far */
};

/* Create a scheduler for at most max_batch_size prompts at once.  The rest are arguments of meg_generator_open. */
void meg_scheduler_init(struct meg_scheduler *s, const struct meg_loaded_model *m, int64_t max_batch_size,
                        bool has_logprobs, int64_t top_n_logprobs);
/* Free the scheduler and the replies in its queue. */
void meg_scheduler_free(struct meg_scheduler *s);

/* Return a new reply with the defaults of a request.  The caller passes it to meg_scheduler_add or to discard. */
struct meg_queued_reply *meg_scheduler_new_reply(const struct meg_request *defaults);
void meg_scheduler_discard(struct meg_queued_reply *q);
/*
 * Append a reply, which meg_reply_begin has begun, to the queue, and prefill its prompt of n ids; without ids, the
 * prompt is the end-of-document id.  A slot of the generator must be free.
 */
int meg_scheduler_add(struct meg_scheduler *s, struct meg_queued_reply *q, const struct meg_ids *ids,
                      struct meg_err *e);
/* Decode the new tokens of all replies.  Stop each reply whose text contains a stop string. */
int meg_scheduler_update(struct meg_scheduler *s, struct meg_err *e);
/* Remove the first reply of the queue, which is complete. */
void meg_scheduler_remove_first(struct meg_scheduler *s);
