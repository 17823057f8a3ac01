/*
 * layout.h - the grid of ranks: sizes of the parallel groups, coordinates of each rank, and the layers of each pipeline
 * stage (Narayanan et al. 2021, section 2).
 *
 * The stage table contains the layers of each stage.  meg_layout_set_model computes the table from the options.
 *
 * The number of ranks is tp * cp * dp * pp.  Ranks are numbered in this order of axes, tp fastest, so that a
 * tensor-parallel group consists of consecutive ranks.  With --use-tp-pp-dp-mapping the order is tp, cp, pp, dp.
 *
 * The cp * dp ranks that differ in cp or dp have the same dense parameters.  The experts of a mixture of experts have
 * other groups, as in Megatron: the tp * cp * dp ranks of a stage are also a grid etp * ep * edp, etp fastest.  Expert
 * tensor parallelism shards the matrices of an expert over etp ranks, expert parallelism the experts over ep ranks, and
 * the edp ranks with the same shard of the same experts are their data-parallel group.
 */
#pragma once
#include "option/opt.h"
#include "parallel/schedule.h"
#include "parallel/zero.h"

/* The values of meg_layout_opts.  A count that is not given and has no default is MEG_UNSET. */
struct meg_layout_conf {
    int64_t tensor, pipeline, context; /* ranks per tensor-, pipeline- and context-parallel group */
    int64_t expert, expert_tensor;     /* ranks per expert- and expert tensor-parallel group */
    bool sequence_parallel, pp_before_dp;
    struct meg_str_list cp_comm_types;         /* one value for all layers, or one per layer */
    struct meg_str_list hierarchical_cp_sizes; /* all-to-all size and ring size of a2a+p2p */
    int64_t split_rank;                        /* first stage of the decoder of an encoder-decoder model */
    int64_t virtual_layers;                    /* layers per model chunk (virtual pipeline stage) */
    int64_t virtual_stages;                    /* model chunks per stage; cannot be combined with virtual_layers */
    int64_t first_layers, last_layers;         /* number of layers on the first and on the last stage */
    bool counts_embedding, counts_loss;        /* embedding and loss count as a layer when layers are divided */
    const char *stage_string;                  /* the layers of each virtual stage (stage_string.c), or NULL */
    int64_t microbatch_group_size;             /* micro-batches per group of the interleaved schedule */
    enum meg_pipe_schedule_type schedule;
};
extern const struct meg_opt meg_layout_opts[];

/* How attention obtains the keys and values of other context-parallel ranks; see nn/attn/cp_groups.h. */
enum meg_cp_comm_type { MEG_CP_P2P, MEG_CP_ALL_GATHER, MEG_CP_A2A, MEG_CP_A2A_P2P };

/*
 * The uses of a tied parameter: ranges [begin, end) of layer groups (params/param.h), which may be empty or equal.
 * Each pipeline stage with one of these layer groups has a replica of the parameter.  The gradients of the replicas
 * are summed.
 */
struct meg_tie {
    const char *name; /* of the communicator of the replicas, such as "embedding" */
    struct {
        int64_t begin, end;
    } use[3];
};
enum { MEG_MAX_TIES = 4 };

struct meg_layout {
    int64_t tp, cp, dp, pp; /* number of ranks in each group */
    int64_t ep, etp;        /* the same of experts; etp * ep divides tp * cp * dp */
    int64_t vp;             /* model chunks per stage (virtual pipeline size) */
    bool has_sp;       /* sequence parallelism: norms, dropout and residuals are sharded over tp along the sequence */
    bool pp_before_dp; /* the order of ranks is tp, cp, pp, dp instead of tp, cp, dp, pp */
    int64_t layers;
    /*
     * Stage table [pp * vp + 1]: the layers of virtual stage k (parallel/schedule.h) begin at first_layer[k] and end
     * before first_layer[k + 1].  Copies of a layout use the same table.  NULL if the only virtual stage has all
     * layers.
     */
    int64_t *first_layer;
    int64_t a2a_size;                  /* ranks per all-to-all group of a2a+p2p; 0: no layer uses a2a+p2p */
    struct meg_str_list cp_comm_types; /* borrowed from the configuration */
    struct meg_zero_layout zero;
    struct meg_tie tie[MEG_MAX_TIES];
    int nties;
};

struct meg_rank_coords {
    int64_t tp, cp, dp, pp;
};

/* The axes of the grid over which a parameter can be sharded (params/param.h). */
enum meg_mesh_axis { MEG_AXIS_NONE, MEG_AXIS_TP, MEG_AXIS_EP, MEG_AXIS_ETP };

/* Data-parallel groups: the ranks with replicas of a dense parameter, or of an expert.  They sum its gradients. */
enum meg_dp_group { MEG_DP_DENSE, MEG_DP_EXPERT, MEG_DP_GROUPS };

/* The layout of a run of one rank. */
extern const struct meg_layout meg_layout_one;

/* Model dimensions that meg_layout_set_model checks the layout against. */
struct meg_layout_model {
    /* layers: of all stacks; s: sequence length; groups: key-value groups */
    int64_t layers, s, heads, groups, ffn, vocab;
    int64_t encoder_layers, s_decoder; /* of an encoder-decoder model, in which s is the encoder's; otherwise 0 */
    bool has_wide_qk_norm;             /* --qk-norm-scope width */
};

/* Set the group sizes and the rank order for `world` ranks.  Return MEG_EUSAGE if a size is invalid. */
int meg_layout_make(struct meg_layout *l, const struct meg_layout_conf *c, int64_t world, struct meg_err *e);
/*
 * Set the fields that depend on the model, and allocate the stage table.  Only `zero` and the ties then remain to be
 * set, by meg_zero_fit and meg_model_set_ties.  Return MEG_EUSAGE if the model cannot be divided over the groups of
 * meg_layout_make.
 */
int meg_layout_set_model(struct meg_layout *l, const struct meg_layout_conf *c, const struct meg_layout_model *m,
                         struct meg_err *e);
/* Free the stage table, which copies of the layout also use. */
void meg_layout_free(struct meg_layout *l);

int64_t meg_layout_world(const struct meg_layout *l);
struct meg_rank_coords meg_layout_coords(const struct meg_layout *l, int64_t rank);
int64_t meg_layout_rank(const struct meg_layout *l, struct meg_rank_coords c);
/* Return the number of ranks along an axis, or the index of a rank along it.  MEG_AXIS_NONE has one rank. */
int64_t meg_layout_axis_size(const struct meg_layout *l, enum meg_mesh_axis axis);
int64_t meg_layout_axis_rank(const struct meg_layout *l, struct meg_rank_coords c, enum meg_mesh_axis axis);

/*
 * Return the number of ranks of a stage, which are consecutive, in a model-parallel group (parallel/mesh.h).  This is
 * the smallest number of ranks that have complete replicas both of the dense parameters and of the experts.  With ZeRO,
 * it is the number of ranks with one replica of the experts, because sums over the group are followed by sums over the
 * shards.
 */
int64_t meg_layout_mp_size(const struct meg_layout *l);

/* Return the index of a rank among the ranks that differ in cp or dp. */
static inline int64_t meg_layout_dp_cp_rank(const struct meg_layout *l, struct meg_rank_coords c)
{
    return c.cp + l->cp * c.dp;
}

/* Return the index of a rank among the tp * cp * dp ranks of its pipeline stage. */
static inline int64_t meg_layout_stage_rank(const struct meg_layout *l, struct meg_rank_coords c)
{
    return c.tp + l->tp * meg_layout_dp_cp_rank(l, c);
}

/* Return whether experts have other groups than dense parameters. */
static inline bool meg_layout_has_expert_groups(const struct meg_layout *l)
{
    return l->ep > 1 || l->etp != l->tp;
}

/*
 * Return the number of ranks of a stage, which are consecutive, that together have one replica of the dense parameters
 * or of the experts.  The ranks with equal index among these ranks are a data-parallel group.
 */
static inline int64_t meg_layout_replica_size(const struct meg_layout *l, enum meg_dp_group group)
{
    return group == MEG_DP_EXPERT ? l->etp * l->ep : l->tp;
}

/* Return the number of ranks of a data-parallel group, the index of a rank in its group, or the shards per bucket. */
static inline int64_t meg_layout_dp_size(const struct meg_layout *l, enum meg_dp_group group)
{
    return l->tp * l->cp * l->dp / meg_layout_replica_size(l, group);
}
static inline int64_t meg_layout_dp_rank(const struct meg_layout *l, struct meg_rank_coords c, enum meg_dp_group group)
{
    return meg_layout_stage_rank(l, c) / meg_layout_replica_size(l, group);
}
static inline int64_t meg_layout_num_shards(const struct meg_layout *l, enum meg_dp_group group)
{
    return l->tp * l->zero.nshards / meg_layout_replica_size(l, group);
}

/* Set [*first, *first + *n) to the layers of a chunk of a stage, as indices of the model's layers. */
static inline void meg_layout_layers(const struct meg_layout *l, int64_t stage, int64_t chunk, int64_t *first,
                                     int64_t *n)
{
    const int64_t vstage = chunk * l->pp + stage;

    *first = l->first_layer ? l->first_layer[vstage] : 0;
    *n = l->first_layer ? l->first_layer[vstage + 1] - *first : l->layers;
}

/* Return whether a chunk is the first one of the model, which contains the embedding of the first stack. */
static inline bool meg_layout_is_first(int64_t stage, int64_t chunk)
{
    return stage == 0 && chunk == 0;
}

/* Return whether a chunk is the last one of the model, which contains the final norm and the heads. */
static inline bool meg_layout_is_last(const struct meg_layout *l, int64_t stage, int64_t chunk)
{
    return stage == l->pp - 1 && chunk == l->vp - 1;
}

/*
 * Return whether a stage has a layer group (params/param.h): a layer or, on the first stage, group 0 and, on the last
 * stage, the heads.  Replicas of tied parameters of group 0 on other stages do not count.
 */
bool meg_layout_has_group(const struct meg_layout *l, int64_t stage, int64_t layer_group);
/* Return whether a stage has a replica of the parameters of tie k. */
bool meg_layout_has_tie(const struct meg_layout *l, int64_t stage, int k);
/* Return the first stage that has a replica of the parameters of tie k. */
int64_t meg_layout_first_tied_stage(const struct meg_layout *l, int k);

/* Return the communication type of a layer, given by its index in the model. */
enum meg_cp_comm_type meg_layout_cp_comm_type(const struct meg_layout *l, int64_t layer);

/*
 * Return the position, in a sequence of s tokens, of local token t on context-parallel rank i.  The sequence is split
 * into 2*cp chunks.  Rank i has chunks i and 2*cp - 1 - i, which balances causal attention.
 */
static inline int64_t meg_layout_position(const struct meg_layout *l, int64_t i, int64_t s, int64_t t)
{
    const int64_t half = s / l->cp / 2;

    return l->cp == 1 ? t : t < half ? i * half + t : (2 * l->cp - 2 - i) * half + t;
}

/*
 * Return the index of the first element of part i when n elements are divided into parts as equal as possible.  Part i
 * ends where part i + 1 begins.
 */
static inline int64_t meg_partition_begin(int64_t n, int64_t parts, int64_t i)
{
    return n / parts * i + (i < n % parts ? i : n % parts);
}
