/*
 * How the ranks of a run share a model: sizes of the parallel groups, the place of each rank in the
 * grid, and the layers of each stage (Narayanan et al. 2021, section 2).
 *
 * world = tp cp dp pp; the axis named first changes fastest from rank to rank, so that a tensor-parallel
 * group is made of neighbours.  With --use-tp-pp-dp-mapping the order is tp pp dp.
 */
#ifndef MEG_PARALLEL_LAYOUT_H
#define MEG_PARALLEL_LAYOUT_H
#include "option/opt.h"
#include "parallel/zero.h"

MEG_BEGIN_DECLS

struct meg_layout_conf {
    int64_t tensor, pipeline, context;
    bool sequence_parallel, is_tp_pp_dp;
    struct meg_str_list cp_kinds;      /* one for all layers, or one each */
    struct meg_str_list cp_sizes;      /* of a2a+p2p: ranks that exchange heads, and groups of them */
    int64_t virtual_layers;            /* a chunk; or */
    int64_t virtual_stages;            /* chunks of a stage */
    int64_t first_layers, last_layers; /* of the first and last stage; MEG_UNSET: an equal share */
    int64_t group_size;                /* micro-batches that go through a chunk one after the other */
    const char *schedule;              /* parallel/schedule.h; NULL: what suits the chunks */
};
extern const struct meg_opt meg_layout_opts[];

/* How attention gets at the tokens of other context-parallel ranks: nn/cp_groups.h. */
enum meg_cp_comm_type { MEG_CP_P2P, MEG_CP_ALL_GATHER, MEG_CP_A2A, MEG_CP_A2A_P2P };

struct meg_layout {
    int64_t tp, cp, dp, pp;
    int64_t vp;  /* chunks of layers a stage has */
    bool has_sp; /* norms, dropout and residuals work on s/tp positions */
    bool is_tp_pp_dp;
    int64_t layers, first_layers, last_layers;
    int64_t cp_near;              /* neighbours of a2a+p2p; 0 where no layer has it */
    struct meg_str_list cp_kinds; /* the configuration's */
    struct meg_zero_layout zero;
};

/* A rank's coordinates. */
struct meg_rank_coords {
    int64_t tp, cp, dp, pp;
};

/* A model on one rank. */
extern const struct meg_layout meg_layout_one;

/*
 * The layout of world ranks: sizes and order first, then what depends on the model, of so many layers,
 * sequences of s tokens, heads, key-value groups and feed-forward columns.  MEG_EUSAGE names the option,
 * its value and the rule it breaks.
 */
struct meg_layout_model {
    int64_t layers, s, heads, groups, ffn, vocab;
};
int meg_layout_make(struct meg_layout *l, const struct meg_layout_conf *c, int64_t world, struct meg_err *e);
int meg_layout_set_model(struct meg_layout *l, const struct meg_layout_conf *c, const struct meg_layout_model *m,
                         struct meg_err *e);

int64_t meg_layout_world(const struct meg_layout *l);
struct meg_rank_coords meg_layout_coords(const struct meg_layout *l, int64_t rank);
int64_t meg_layout_rank(const struct meg_layout *l, struct meg_rank_coords at);

/* The layers [first, first + n) of a chunk of a stage, numbered in the whole model. */
void meg_layout_layers(const struct meg_layout *l, int64_t stage, int64_t chunk, int64_t *first, int64_t *n);
/* Whether it begins with the embedding, or ends with the head. */
static inline bool meg_layout_is_first(int64_t stage, int64_t chunk)
{
    return stage == 0 && chunk == 0;
}

static inline bool meg_layout_is_last(const struct meg_layout *l, int64_t stage, int64_t chunk)
{
    return stage == l->pp - 1 && chunk == l->vp - 1;
}

/* The kind of a layer, numbered in the whole model. */
enum meg_cp_comm_type meg_layout_cp_comm_type(const struct meg_layout *l, int64_t layer);

/*
 * A sequence of s tokens is cut into 2 cp chunks, of which context-parallel rank i has i and 2 cp - 1 - i: where
 * its token t, counted in what it has, stands.
 */
static inline int64_t meg_layout_position(const struct meg_layout *l, int64_t i, int64_t s, int64_t t)
{
    const int64_t half = s / l->cp / 2;

    return l->cp == 1 ? t : t < half ? i * half + t : (2 * l->cp - 2 - i) * half + t;
}

/* Where piece i begins of n things cut in parts as equal as can be; it ends where the next begins. */
static inline int64_t meg_partition_begin(int64_t n, int64_t parts, int64_t i)
{
    return n / parts * i + (i < n % parts ? i : n % parts);
}

MEG_END_DECLS
#endif
