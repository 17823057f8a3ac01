/*
 * pipeline.c - run the list of actions of a rank (parallel/schedule.h): receive, compute and send, with transfers
 * started as early as buffers allow.
 */
#include "parallel/pipeline.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

enum { ALIGN = 64 };

static size_t tensor_nbytes(const struct meg_pipe_tensor *t)
{
    const size_t n = (size_t)t->n * meg_dtype_size(t->dtype);

    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

size_t meg_pipe_nbytes(const struct meg_pipe_schedule *s, const struct meg_pipe_tensor *tensor, int ntensors)
{
    size_t nbytes = 0;

    for (int edge = 0; edge < MEG_EDGES; edge++)
        for (int i = 0; i < ntensors; i++)
            nbytes += (size_t)s->bufs[edge] * tensor_nbytes(&tensor[i]);
    return nbytes;
}

void meg_pipe_init(struct meg_pipe *p, void *memory)
{
    const struct meg_pipe_schedule *s = p->schedule;
    char *next = memory;

    MEG_ASSERT_EQ(p->pp->size, s->conf.stages);
    MEG_ASSERT_EQ(p->pp->rank, s->stage);
    for (int edge = 0; edge < MEG_EDGES; edge++) {
        const int n = s->bufs[edge] * p->ntensors;

        p->buffers[edge] = meg_new((size_t)n * sizeof *p->buffers[edge]);
        p->work[edge] = meg_new((size_t)n * sizeof *p->work[edge]);
        for (int i = 0; i < n; i++) {
            p->buffers[edge][i] = next;
            next += tensor_nbytes(&p->tensor[i % p->ntensors]);
        }
    }
}

void meg_pipe_free(struct meg_pipe *p)
{
    for (int edge = 0; edge < MEG_EDGES; edge++) {
        free(p->buffers[edge]);
        free(p->work[edge]);
    }
    memset(p, 0, sizeof *p);
}

/* Return whether an action transfers tensor i. */
static bool is_transferred(const struct meg_pipe *p, const struct meg_action *a, int i)
{
    const int vstage = a->chunk * p->schedule->conf.stages + p->schedule->stage;
    const bool is_before = a->edge == MEG_EDGE_X || a->edge == MEG_EDGE_DX;

    return !p->transferred || p->transferred[is_before ? vstage : vstage + 1] & 1u << i;
}

static void start(struct meg_pipe *p, const struct meg_action *a)
{
    const int first = a->buf[a->edge] * p->ntensors;
    const bool is_received = meg_edge_is_received(a->edge);

    for (int i = 0; i < p->ntensors; i++) {
        const struct meg_pipe_tensor *t = &p->tensor[i];
        void *buf = p->buffers[a->edge][first + i];

        p->work[a->edge][first + i] = NULL;
        if (!is_transferred(p, a, i))
            continue;
        p->work[a->edge][first + i] = p->pp->op->start(
            p->pp, p->stream,
            &(struct meg_comm_call){ is_received ? MEG_RECV : MEG_SEND, buf, buf, t->n, t->dtype, 0, a->peer });
    }
}

static void wait(struct meg_pipe *p, const struct meg_action *a)
{
    const int first = a->buf[a->edge] * p->ntensors;

    for (int i = 0; i < p->ntensors; i++)
        meg_comm_wait(p->pp, p->stream, p->work[a->edge][first + i]);
}

/* Return the tensors [ntensors] of the buffer that an action uses at an edge, or NULL if it uses none. */
static void *const *edge_of(const struct meg_pipe *p, const struct meg_action *a, enum meg_edge edge)
{
    return a->buf[edge] < 0 ? NULL : &p->buffers[edge][a->buf[edge] * p->ntensors];
}

void meg_pipe_run(struct meg_pipe *p, const struct meg_pipe_ops *ops, void *user)
{
    for (int64_t i = 0; i < p->schedule->n; i++) {
        const struct meg_action *a = &p->schedule->action[i];
        const struct meg_pipe_step s = {
            .chunk = a->chunk,
            .microbatch = a->microbatch,
            .slot = a->slot,
            .x = edge_of(p, a, MEG_EDGE_X),
            .dy = edge_of(p, a, MEG_EDGE_DY),
            .y = edge_of(p, a, MEG_EDGE_Y),
            .dx = edge_of(p, a, MEG_EDGE_DX),
        };

        switch (a->type) {
        case MEG_ACTION_FWD: ops->fwd(user, &s); break;
        case MEG_ACTION_BWD: ops->bwd(user, &s); break;
        case MEG_ACTION_BWD_INPUT: ops->bwd_input(user, &s); break;
        case MEG_ACTION_BWD_WEIGHT: ops->bwd_weight(user, &s); break;
        case MEG_ACTION_START: start(p, a); break;
        case MEG_ACTION_WAIT: wait(p, a); break;
        }
    }
}
