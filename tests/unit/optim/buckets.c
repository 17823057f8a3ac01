/* Buckets of the flat buffer and their shards follow Megatron's rules; memory of each ZeRO stage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "optim/optim.h"

/* Create a parameter table: a tied embedding of 53 tokens, positions, four layers of two tensors, a norm. */
static void make(struct meg_params *p, const struct meg_layout *l, int64_t rank, struct meg_mesh *mesh)
{
    const int64_t word[] = { 53, 5 }, pos[] = { 7, 5 }, matrix[] = { 14, 5 }, vector[] = { 5 };

    *p = (struct meg_params){ 0 };
    meg_params_add(p, 0, 2, word, "word")->tie = 0;
    p->row[0].sharding[0].part[0].axis = MEG_AXIS_TP;
    meg_params_add(p, 0, 2, pos, "pos");
    for (int i = 1; i <= 4; i++) {
        meg_params_add(p, i, 2, matrix, "matrix%d", i);
        p->row[p->n - 1].sharding[0].part[0].axis = MEG_AXIS_TP;
        p->row[p->n - 1].is_decayed = 1;
        meg_params_add(p, i, 1, vector, "vector%d", i);
    }
    meg_params_add(p, 5, 1, vector, "norm");
    meg_mesh_init_dry(mesh, l, rank);
    meg_params_shard(p, mesh);
}

static struct meg_layout layout(int64_t tp, int64_t dp, int64_t pp)
{
    static int64_t two_stages[] = { 0, 2, 4 };
    struct meg_layout l = meg_layout_one;

    l.tp = l.etp = tp;
    l.dp = dp;
    l.pp = pp;
    l.layers = 4;
    l.first_layer = pp == 2 ? two_stages : NULL;
    l.tie[0] = (struct meg_tie){ "embedding", { { 0, 1 }, { 5, 6 } } };
    l.nties = 1;
    return l;
}

/* Check that buckets cover the buffer, and that each row is aligned to 64 elements and in one bucket. */
static void check_offsets(const struct meg_params *p)
{
    int64_t at = 0;

    for (int b = 0; b < p->nbuckets; b++) {
        assert_int_equal(p->bucket[b].range.begin, at);
        assert_true(p->bucket[b].range.end > at);
        at = p->bucket[b].range.end;
    }
    assert_int_equal(at, p->flat_numel);
    for (int i = 0; i < p->n; i++) {
        const struct meg_param *q = &p->row[i];
        int inside = 0;

        if (!q->shard_numel)
            continue;
        assert_int_equal(q->offset % 64, 0);
        assert_true(q->offset >= p->layer_group[q->layer_group].begin &&
                    q->offset + q->shard_numel <= p->layer_group[q->layer_group].end);
        for (int b = 0; b < p->nbuckets; b++)
            inside += q->offset >= p->bucket[b].range.begin && q->offset + q->shard_numel <= p->bucket[b].range.end;
        assert_int_equal(inside, 1);
    }
}

static void buckets_end_at_bucket_numel(void **state)
{
    struct meg_layout l = layout(1, 2, 1);
    struct meg_params p;
    struct meg_mesh mesh;

    (void)state;
    make(&p, &l, 0, &mesh);
    check_offsets(&p);
    assert_int_equal(p.nbuckets, 1);
    assert_int_equal(p.flat_numel,
                     64 + 4 * (64 + 128) + 64 + 320); /* without shards a bucket is a multiple of 64 elements */
    meg_params_free(&p);

    l.zero.bucket_numel = 300;
    make(&p, &l, 0, &mesh);
    check_offsets(&p);
    assert_int_equal(p.bucket[0].range.end,
                     320); /* norm 64 + vector 64 + matrix 128 + vector 64, the first sum of at least 300 */
    for (int b = 0; b + 1 < p.nbuckets; b++)
        assert_true(p.bucket[b].range.end - p.bucket[b].range.begin >= 300);
    meg_params_free(&p);
}

static void shards_are_equal_and_cover_every_parameter(void **state)
{
    static const int64_t shards[] = { 1, 2, 3, 5, 6, 96 }, unit[] = { 128, 128, 384, 640, 384, 384 };

    (void)state;
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        struct meg_layout l = layout(1, shards[i], 1);
        struct meg_params p;
        struct meg_mesh mesh;
        int64_t all = 0;
        char *num_owners;

        l.zero.bucket_numel = 200;
        l.zero.nshards = shards[i];
        make(&p, &l, 0, &mesh);
        check_offsets(&p);
        for (int b = 0; b < p.nbuckets; b++)
            assert_int_equal((p.bucket[b].range.end - p.bucket[b].range.begin) % unit[i], 0);
        num_owners = meg_new((size_t)p.flat_numel);
        for (int rank = 0; rank < shards[i]; rank++) {
            struct meg_zero_shard s;
            int64_t in_rows = 0;

            meg_zero_shard_make(&s, &p, &l, (struct meg_rank_coords){ .dp = rank });
            assert_int_equal(s.numel, meg_zero_shard_numel(&p, &l));
            assert_int_equal(s.nbucket_shards, p.nbuckets);
            for (int k = 0, at = 0; k < s.nbucket_shards; k++) {
                assert_int_equal(s.bucket_shard[k].shard_offset, at);
                assert_int_equal(s.range[k].begin,
                                 p.bucket[k].range.begin + rank * (s.range[k].end - s.range[k].begin));
                for (int64_t e = s.range[k].begin; e < s.range[k].end; e++)
                    num_owners[e]++;
                for (int j = 0; j < s.bucket_shard[k].nranges; j++) {
                    const struct meg_zero_param_range *r = &s.param_range[s.bucket_shard[k].first_range + j];

                    assert_int_equal(r->bucket_shard, k);
                    assert_true(r->begin >= 0 && r->end <= s.range[k].end - s.range[k].begin);
                }
                at += (int)(s.range[k].end - s.range[k].begin);
            }
            for (int j = 0; j < s.nparam_ranges; j++)
                in_rows += s.param_range[j].end - s.param_range[j].begin;
            all += in_rows;
            meg_zero_shard_free(&s);
        }
        for (int64_t e = 0; e < p.flat_numel; e++)
            assert_int_equal(num_owners[e], 1);
        assert_int_equal(all, p.numel); /* every element of every row is in one shard */
        free(num_owners);
        meg_params_free(&p);
    }
}

/* Create a parameter table: four layers of a matrix and four experts. */
static void make_experts(struct meg_params *p, const struct meg_layout *l, int64_t rank)
{
    const int64_t matrix[] = { 14, 5 }, experts[] = { 4, 10, 5 };
    struct meg_mesh mesh;

    *p = (struct meg_params){ 0 };
    for (int i = 1; i <= 4; i++) {
        meg_params_add(p, i, 2, matrix, "matrix%d", i);
        meg_params_add(p, i, 3, experts, "experts%d", i)->sharding[0].part[0].axis = MEG_AXIS_EP;
    }
    meg_mesh_init_dry(&mesh, l, rank);
    meg_params_shard(p, &mesh);
}

/*
 * With expert parallelism, a bucket has either dense parameters or experts.  The ranks of an optimizer instance
 * together update each dense element and each element of each expert once.
 */
static void experts_have_their_own_buckets_and_shards(void **state)
{
    struct meg_layout l = layout(1, 8, 1);
    int64_t num_dense = 0, num_experts = 0;

    (void)state;
    l.ep = 2;
    l.zero.nshards = 4; /* two optimizer instances of four ranks */
    for (int rank = 0; rank < 4; rank++) {
        struct meg_params p;
        struct meg_zero_shard s;

        make_experts(&p, &l, 4 + rank);
        check_offsets(&p);
        assert_int_equal(p.nbuckets, 8);
        for (int b = 0; b < p.nbuckets; b++) {
            assert_int_equal(p.bucket[b].dp_group, b % 2 ? MEG_DP_DENSE : MEG_DP_EXPERT);
            assert_int_equal(meg_zero_bucket_shard_numel(&p, &l, b), b % 2 ? 128 / 4 : 128 / 2);
        }
        meg_zero_shard_make(&s, &p, &l, (struct meg_rank_coords){ .dp = rank });
        assert_int_equal(s.numel, 4 * (32 + 64));
        for (int i = 0; i < s.nparam_ranges; i++) {
            const struct meg_zero_param_range *r = &s.param_range[i];
            const bool is_expert = p.row[r->row].dp_group == MEG_DP_EXPERT;

            /* rank 2 i + e has shard i of the experts of expert-parallel rank e */
            assert_int_equal(s.range[r->bucket_shard].begin - p.bucket[r->bucket_shard].range.begin,
                             is_expert ? rank / 2 * 64 : rank * 32);
            *(is_expert ? &num_experts : &num_dense) += r->end - r->begin;
        }
        meg_zero_shard_free(&s);
        meg_params_free(&p);
    }
    assert_int_equal(num_dense, 4 * 14 * 5);
    assert_int_equal(num_experts, 4 * 4 * 10 * 5);
}

/* The same if the ranks with different experts are tensor-parallel ranks. */
static void experts_without_tensor_parallelism_have_shards_on_all_ranks(void **state)
{
    struct meg_layout l = layout(2, 4, 1);
    int64_t num_experts = 0;

    (void)state;
    l.ep = 2;
    l.etp = 1;
    l.zero.nshards = 2; /* two optimizer instances of four ranks */
    for (int rank = 4; rank < 8; rank++) {
        struct meg_params p;
        struct meg_zero_shard s;

        make_experts(&p, &l, rank);
        check_offsets(&p);
        meg_zero_shard_make(&s, &p, &l, meg_layout_coords(&l, rank));
        for (int i = 0; i < s.nparam_ranges; i++) {
            const struct meg_zero_param_range *r = &s.param_range[i];
            const bool is_expert = p.row[r->row].dp_group == MEG_DP_EXPERT;

            /* rank 2 i + e of an instance has shard i of the experts of expert-parallel rank e */
            assert_int_equal(s.range[r->bucket_shard].begin - p.bucket[r->bucket_shard].range.begin,
                             (rank - 4) / 2 * 64);
            num_experts += is_expert ? r->end - r->begin : 0;
        }
        meg_zero_shard_free(&s);
        meg_params_free(&p);
    }
    assert_int_equal(num_experts, 4 * 4 * 10 * 5);
}

static void experts_are_in_buckets_of_dense_parameters_without_expert_parallelism(void **state)
{
    const struct meg_layout l = layout(1, 2, 1);
    struct meg_params p;

    (void)state;
    make_experts(&p, &l, 1);
    assert_int_equal(p.nbuckets, 1);
    assert_int_equal(p.bucket[0].dp_group, MEG_DP_DENSE);
    meg_params_free(&p);
}

static void instances_have_all_shards_of_experts(void **state)
{
    struct meg_zero_conf c = { .num_instances = 4, .bucket_size = MEG_UNSET, .zero_stage = 1 };
    struct meg_layout l = layout(1, 4, 1);
    struct meg_err e;

    (void)state;
    l.ep = 2;
    assert_int_equal(meg_zero_fit(&l, &c, true, MEG_DTYPE_F32, &e), MEG_EUSAGE);
    assert_string_equal(e.msg,
                        "--num-distributed-optimizer-instances 4: must divide the data-parallel size of experts, 2");
}

/*
 * With ZeRO-3, a layer group has a bucket of each type of parameters: dense ones, experts, ones in f32, and frozen
 * ones.  They are one after another in the unsharded buffers, in which even and odd layers have a buffer each.
 */
static void zero_3_has_buckets_of_each_type_of_a_layer_group(void **state)
{
    enum { LAYERS = 4, TYPES = 5 };
    static const int64_t expert[] = { 2, 50 }, n = 100;
    struct meg_layout l = layout(1, 4, 1);
    struct meg_params p = { 0 };
    struct meg_zero_shard s;
    struct meg_mesh mesh;
    char *const base = NULL;

    (void)state;
    l.ep = 2;
    l.zero = (struct meg_zero_layout){ .stage = 3, .nshards = 4 };
    for (int i = 0; i < LAYERS; i++) {
        meg_params_add(&p, i, 1, &n, "frozen%d", i)->is_frozen = true;
        meg_params_add(&p, i, 1, &n, "dense%d", i);
        meg_params_add(&p, i, 1, &n, "f32%d", i)->is_f32 = true;
        meg_params_add(&p, i, 2, expert, "expert%d", i)->sharding[0].part[0].axis = MEG_AXIS_EP;
        meg_params_add(&p, i, 1, &n, "state%d", i)->is_f32 = true;
        p.row[p.n - 1].is_frozen = true;
    }
    meg_mesh_init_dry(&mesh, &l, 0);
    meg_params_shard(&p, &mesh);
    assert_int_equal(p.nbuckets, LAYERS * TYPES);
    assert_int_equal(p.grad_numel, LAYERS * 3 * 128);
    assert_int_equal(p.flat_numel, LAYERS * TYPES * 128);
    for (int b = 0; b < p.nbuckets; b++)
        assert_int_equal(p.bucket[b].range.end - p.bucket[b].range.begin, 128);
    for (int i = 0; i < p.n; i++) {
        static const int64_t param[] = { 128 * 8, 0, 128 * 4, 128 * 2, 128 * 10 }; /* bytes in a buffer */
        static const int64_t grad[] = { -1, 0, 128 * 2, 128, -1 };                 /* elements in a buffer */
        static const int buffer_of[LAYERS] = { 0, 3, 2, 1 };
        const int type = i % TYPES, buffer = buffer_of[i / TYPES];

        assert_int_equal((char *)meg_params_unsharded_element(&p, base, &p.row[i], MEG_DTYPE_BF16) - base,
                         buffer * 128 * 14 + param[type]);
        if (grad[type] >= 0)
            assert_int_equal(p.row[i].grad_offset, buffer * 128 * 3 + grad[type]);
    }
    meg_zero_shard_make(&s, &p, &l, (struct meg_rank_coords){ 0 });
    assert_int_equal(s.nbucket_shards, p.nbuckets);
    assert_int_equal(s.nupdated, LAYERS * 3);
    assert_int_equal(s.numel, LAYERS * (32 + 64 + 32)); /* there are half as many shards of experts */
    assert_int_equal(meg_zero_shard_nbytes(&p, &l, MEG_DTYPE_BF16),
                     LAYERS * (32 * 2 + 64 * 2 + 32 * 4 + 32 * 2 + 32 * 4));
    meg_zero_shard_free(&s);
    meg_params_free(&p);
}

/*
 * With complete parameters, each parameter is in one shard, the same on all tensor-parallel ranks, and the largest
 * shard has at most the mean and one parameter.
 */
static void shards_have_complete_parameters(void **state)
{
    enum { SHARDS = 3 };
    struct meg_layout l = layout(2, SHARDS, 1);
    int64_t shard[16];

    (void)state;
    l.zero =
        (struct meg_zero_layout){ .stage = 1, .nshards = SHARDS, .has_complete_params = true, .bucket_numel = 300 };
    for (int64_t tp = 0; tp < 2; tp++) {
        struct meg_params p;
        struct meg_mesh mesh;

        make(&p, &l, tp, &mesh);
        check_offsets(&p);
        assert_true(p.nbuckets > 1);
        for (int b = 0; b < p.nbuckets; b++) {
            const struct meg_elem_range r = p.bucket[b].range;
            int64_t load[SHARDS] = { 0 }, sum = 0, largest = 0;

            for (int i = 0; i < p.n; i++) {
                const struct meg_param *row = &p.row[i];
                const int64_t k = (row->offset - r.begin) / ((r.end - r.begin) / SHARDS);

                if (row->offset < r.begin || row->offset >= r.end)
                    continue;
                assert_int_equal((row->offset + row->shard_numel - 1 - r.begin) / ((r.end - r.begin) / SHARDS), k);
                assert_int_equal(tp ? shard[i] : k, k);
                shard[i] = k;
                load[k] += row->numel;
                sum += row->numel;
                largest = row->numel > largest ? row->numel : largest;
            }
            for (int k = 0; k < SHARDS; k++)
                assert_true(load[k] <= sum / SHARDS + largest);
        }
        meg_params_free(&p);
    }
}

/* The first and last stage have the tied embedding in a bucket of its own, of equal size. */
static void both_stages_shard_a_tied_embedding_alike(void **state)
{
    struct meg_layout l = layout(2, 3, 2);

    (void)state;
    l.zero.nshards = 3;
    for (int64_t tp = 0; tp < 2; tp++) {
        struct meg_params first, last;
        struct meg_mesh mesh;
        const struct meg_elem_range *a, *b;

        make(&first, &l, tp, &mesh);
        make(&last, &l, tp + 6, &mesh);
        assert_int_equal(mesh.coords.pp, 1);
        check_offsets(&first);
        check_offsets(&last);
        a = &first.bucket[first.nbuckets - 1].range;
        b = &last.bucket[last.nbuckets - 1].range;
        assert_int_equal(a->begin, first.row[0].offset);
        assert_int_equal(b->begin, last.row[0].offset);
        assert_int_equal(a->end - a->begin, b->end - b->begin);
        meg_params_free(&first);
        meg_params_free(&last);
    }
}

static void only_the_first_stage_has_several_buckets(void **state)
{
    struct meg_layout l = layout(1, 1, 2);
    struct meg_params p;
    struct meg_mesh mesh;

    (void)state;
    l.zero.bucket_numel = 100;
    make(&p, &l, 0, &mesh);
    assert_true(p.nbuckets > 2);
    meg_params_free(&p);
    make(&p, &l, 1, &mesh);
    assert_int_equal(p.nbuckets, 1);
    meg_params_free(&p);
}

static void sharding_again_gives_the_table_of_the_new_rank(void **state)
{
    const struct meg_layout l = layout(1, 1, 2);
    struct meg_params first, second;
    struct meg_mesh mesh;

    (void)state;
    make(&second, &l, 1, &mesh);
    make(&first, &l, 0, &mesh);
    meg_mesh_init_dry(&mesh, &l, 1);
    meg_params_shard(&first, &mesh);
    assert_int_equal(first.flat_numel, second.flat_numel);
    assert_int_equal(first.nbuckets, second.nbuckets);
    assert_memory_equal(first.layer_group, second.layer_group,
                        (size_t)second.nlayer_groups * sizeof *first.layer_group);
    meg_params_free(&first);
    meg_params_free(&second);
}

/* Frozen parameters follow all buckets, and change neither the buckets nor the layer groups of the others. */
static void frozen_parameters_follow_the_others(void **state)
{
    static const int64_t n = 100;
    struct meg_layout l = layout(1, 2, 1);

    (void)state;
    for (int stage = 0; stage <= 2; stage++) {
        struct meg_params p = { 0 }, trained = { 0 };
        struct meg_mesh mesh;

        l.zero = (struct meg_zero_layout){ .stage = stage, .nshards = stage ? 2 : 0, .bucket_numel = 150 };
        for (int i = 0; i < 4; i++) {
            meg_params_add(&p, i, 1, &n, "frozen%d", i)->is_frozen = true;
            meg_params_add(&p, i, 1, &n, "trained%d", i);
            meg_params_add(&trained, i, 1, &n, "trained%d", i);
        }
        meg_mesh_init_dry(&mesh, &l, 0);
        meg_params_shard(&p, &mesh);
        meg_params_shard(&trained, &mesh);
        assert_int_equal(p.grad_numel, trained.flat_numel);
        assert_int_equal(p.flat_numel, trained.flat_numel + 4 * 128);
        assert_int_equal(p.nbuckets, trained.nbuckets);
        for (int i = 0; i < p.nbuckets; i++) {
            assert_int_equal(p.bucket[i].range.begin, trained.bucket[i].range.begin);
            assert_int_equal(p.bucket[i].range.end, trained.bucket[i].range.end);
        }
        assert_memory_equal(p.layer_group, trained.layer_group, 4 * sizeof *p.layer_group);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(p.row[2 * i].offset, p.grad_numel + (3 - i) * 128);
            assert_int_equal(p.row[2 * i + 1].offset, trained.row[i].offset);
        }
        meg_params_free(&p);
        meg_params_free(&trained);
    }
}

/* In a model in bf16, parameters in f32 have 4 bytes an element, and buckets of their own after those of the others. */
static void parameters_in_f32_have_their_own_buckets(void **state)
{
    static const struct {
        bool is_f32, is_frozen;
        int64_t offset, byte;
    } want[] = { { false, false, 128, 256 },
                 { true, true, 512, 1280 },
                 { false, true, 384, 1024 },
                 { true, false, 256, 512 },
                 { false, false, 0, 0 } };
    static const int64_t n = 100;
    enum { ROWS = 5, TRAINED = 3 };
    struct meg_layout l = layout(1, 2, 1);

    (void)state;
    for (int stage = 0; stage <= 1; stage++) {
        struct meg_params p = { 0 };
        struct meg_zero_shard s;
        struct meg_mesh mesh;
        int64_t updated = 0;

        l.zero = (struct meg_zero_layout){ .stage = stage, .nshards = stage ? 2 : 0 };
        for (int i = 0; i < ROWS; i++) {
            struct meg_param *row = meg_params_add(&p, 0, 1, &n, "row%d", i);

            row->is_f32 = want[i].is_f32;
            row->is_frozen = want[i].is_frozen;
        }
        meg_mesh_init_dry(&mesh, &l, 0);
        meg_params_shard(&p, &mesh);
        for (int i = 0; i < ROWS; i++) {
            assert_int_equal(p.row[i].offset, want[i].offset);
            assert_int_equal(meg_params_dtype(&p, want[i].offset + n - 1, MEG_DTYPE_BF16),
                             want[i].is_f32 ? MEG_DTYPE_F32 : MEG_DTYPE_BF16);
            assert_ptr_equal(meg_params_element(&p, p.row, want[i].offset, MEG_DTYPE_BF16),
                             (char *)p.row + want[i].byte);
        }
        assert_int_equal(p.grad_numel, 384);
        assert_int_equal(meg_params_nbytes(&p, MEG_DTYPE_BF16), 1792);
        assert_int_equal(p.nbuckets, 2);
        for (int rank = 0; rank <= stage; rank++) {
            meg_zero_shard_make(&s, &p, &l, (struct meg_rank_coords){ .dp = rank });
            assert_int_equal(s.nbucket_shards, 2);
            assert_int_equal(s.range[0].end, stage ? 128 * (rank + 1) : 256);
            assert_int_equal(s.range[1].begin, 256 + 64 * rank);
            for (int i = 0; i < s.nparam_ranges; i++)
                updated += s.param_range[i].end - s.param_range[i].begin;
            meg_zero_shard_free(&s);
        }
        assert_int_equal(updated, TRAINED * n); /* of all ranks */
        meg_params_free(&p);
    }
}

/* The default is that of Megatron: 40 million parameters, or 1 million times the data-parallel size if that is more. */
static void the_default_size_grows_with_the_data_parallel_size(void **state)
{
    static const struct {
        int64_t dp, given, want;
    } cases[] = { { 1, MEG_UNSET, 40000000 },
                  { 40, MEG_UNSET, 40000000 },
                  { 41, MEG_UNSET, 41000000 },
                  { 512, MEG_UNSET, 512000000 },
                  { 512, 7, 7 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct meg_zero_conf c = { .zero_stage = 1, .num_instances = 1, .bucket_size = cases[i].given };
        struct meg_layout l = layout(1, cases[i].dp, 1);
        struct meg_err e;

        assert_int_equal(meg_zero_fit(&l, &c, true, MEG_DTYPE_BF16, &e), 0);
        assert_int_equal(l.zero.bucket_numel, cases[i].want);
    }
}

/*
 * Bytes per parameter as in Megatron's documentation: replicated, and with the distributed optimizer over d ranks.
 * Megatron's 20 bytes with fp16 gradients include 4 bytes of an f32 copy of the gradients, which meg does not need.
 */
static void memory_equals_megatrons_bytes_per_parameter(void **state)
{
    static const struct {
        enum meg_dtype params, grads;
        int64_t total, replicated, sharded; /* total = replicated + sharded */
    } mode[] = {
        { MEG_DTYPE_F16, MEG_DTYPE_F16, 16, 4, 12 },
        { MEG_DTYPE_BF16, MEG_DTYPE_F32, 18, 6, 12 },
        { MEG_DTYPE_F32, MEG_DTYPE_F32, 16, 8, 8 },
    };
    const struct meg_optim_conf adam = { .optimizer = MEG_OPTIMIZER_ADAM };
    struct meg_model_conf c = { .num_layers = 3,
                                .hidden_size = 24,
                                .mlp.f = 96,
                                .attn.a = 2,
                                .attn.d = 12,
                                .attn.g = 2,
                                .max_position_embeddings = 8,
                                .vocab_size = 101,
                                .position_embedding_type = MEG_POSITION_LEARNED,
                                .normalization = MEG_NORM_LAYER,
                                .has_bias = true };

    (void)state;
    for (int i = 0; i < 3; i++)
        for (int64_t d = 1; d <= 8; d *= 2)
            for (int zero = 0; zero <= 3; zero++) {
                struct meg_layout l = layout(1, d / (d > 2 ? 2 : 1), 1);
                struct meg_model_run run = { .s = 8, .b = 1, .is_training = true };
                struct meg_optim_memory o;
                struct meg_model_memory m;
                struct meg_params p;
                struct meg_mesh mesh;
                int64_t n, each;

                l.cp = d > 2 ? 2 : 1;
                l.layers = 3;
                l.zero.nshards = zero ? d : 0;
                l.zero.stage = zero;
                run.dtype = run.residual_dtype = mode[i].params;
                run.grad_dtype = mode[i].grads;
                run.shards_grads = zero >= 2;
                run.shards_params = zero == 3;
                meg_mesh_init_dry(&mesh, &l, 0);
                meg_model_params(&p, &c, &mesh);
                meg_model_memory_size(&m, &c, &run, meg_device_cpu()->op, &mesh);
                meg_optim_memory_size(&o, &adam, &p, &l, &run);
                n = p.flat_numel;
                each = (int64_t)(o.params + o.grads + o.main + o.state);
                if (zero == 0)
                    assert_int_equal((int64_t)(m.params + m.grads) + each, n * mode[i].total);
                if (zero == 1)
                    assert_int_equal(((int64_t)(m.params + m.grads) + each) * d,
                                     n * (mode[i].replicated * d + mode[i].sharded));
                /* ZeRO-2 shards all but the parameters, ZeRO-3 shards all; both buffer unsharded layer groups */
                if (zero == 2) {
                    assert_int_equal(m.params, (size_t)n * meg_dtype_size(run.dtype));
                    assert_int_equal(m.grads,
                                     (size_t)p.unsharded[MEG_UNSHARDED_GRADS] * meg_dtype_size(run.grad_dtype));
                    assert_int_equal(each * d, n * (mode[i].total - (int64_t)meg_dtype_size(run.dtype)));
                }
                if (zero == 3) {
                    assert_int_equal(m.params, meg_params_unsharded_nbytes(&p, run.dtype));
                    assert_int_equal(each * d, n * mode[i].total);
                }
                meg_params_free(&p);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_end_at_bucket_numel),
        cmocka_unit_test(shards_are_equal_and_cover_every_parameter),
        cmocka_unit_test(experts_have_their_own_buckets_and_shards),
        cmocka_unit_test(experts_without_tensor_parallelism_have_shards_on_all_ranks),
        cmocka_unit_test(experts_are_in_buckets_of_dense_parameters_without_expert_parallelism),
        cmocka_unit_test(instances_have_all_shards_of_experts),
        cmocka_unit_test(shards_have_complete_parameters),
        cmocka_unit_test(zero_3_has_buckets_of_each_type_of_a_layer_group),
        cmocka_unit_test(both_stages_shard_a_tied_embedding_alike),
        cmocka_unit_test(sharding_again_gives_the_table_of_the_new_rank),
        cmocka_unit_test(frozen_parameters_follow_the_others),
        cmocka_unit_test(parameters_in_f32_have_their_own_buckets),
        cmocka_unit_test(the_default_size_grows_with_the_data_parallel_size),
        cmocka_unit_test(memory_equals_megatrons_bytes_per_parameter),
        cmocka_unit_test(only_the_first_stage_has_several_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
