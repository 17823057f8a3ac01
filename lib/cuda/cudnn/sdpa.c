/* sdpa.c - attention as operation graphs of cuDNN: the operations of the forward and the backward pass. */
#include "cuda/cudnn/sdpa.h"

/* Return the shape of a contiguous tensor. */
static struct meg_cudnn_shape contiguous(int64_t b, int64_t h, int64_t rows, int64_t cols)
{
    return (struct meg_cudnn_shape){ { b, h, rows, cols }, { h * rows * cols, rows * cols, cols, 1 } };
}

/* Swap the rows and columns of a shape, so that it describes the same memory transposed. */
static struct meg_cudnn_shape transposed(struct meg_cudnn_shape x)
{
    return (struct meg_cudnn_shape){ { x.n[0], x.n[1], x.n[3], x.n[2] }, { x.ld[0], x.ld[1], x.ld[3], x.ld[2] } };
}

static struct meg_cudnn_shape scores_shape(const struct meg_cudnn_sdpa *x)
{
    return contiguous(x->b, x->h, x->s_q, x->s_k);
}

/* Return the shape of statistics of queries, such as the log-sum-exp. */
static struct meg_cudnn_shape stats_shape(const struct meg_cudnn_sdpa *x)
{
    return contiguous(x->b, x->h, x->s_q, 1);
}

/* Return the shape of tensor i, which consists of heads in device memory. */
static struct meg_cudnn_shape heads_shape(const struct meg_cudnn_sdpa *x, enum meg_cudnn_sdpa_tensor i)
{
    const bool is_query = i == SDPA_Q || i == SDPA_DQ || i == SDPA_O || i == SDPA_D_O;
    const bool is_value = i == SDPA_V || i == SDPA_DV || i == SDPA_O || i == SDPA_D_O;

    return (struct meg_cudnn_shape){ { x->b, is_query ? x->h : x->h_k, is_query ? x->s_q : x->s_k,
                                       is_value ? x->d_v : x->d },
                                     { x->ld[i].b, x->ld[i].h, x->ld[i].s, 1 } };
}

/* Return tensor i, which consists of heads in device memory. */
static meg_cudnn_tensor heads(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x, enum meg_cudnn_sdpa_tensor i)
{
    return meg_cudnn_memory(g, i + 1, (cudnnDataType_t)x->type, heads_shape(x, i));
}

/* Return tensor i with rows and columns swapped, in the same memory. */
static meg_cudnn_tensor heads_transposed(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x,
                                         enum meg_cudnn_sdpa_tensor i)
{
    return meg_cudnn_memory(g, i + 1, (cudnnDataType_t)x->type, transposed(heads_shape(x, i)));
}

/* Return mode(x, b) as an intermediate f32 tensor. */
static meg_cudnn_tensor apply(struct meg_cudnn_graph *g, cudnnPointwiseMode_t mode, struct meg_cudnn_shape shape,
                              meg_cudnn_tensor x, meg_cudnn_tensor b)
{
    const meg_cudnn_tensor y = meg_cudnn_virtual(g, CUDNN_DATA_FLOAT, shape);

    meg_cudnn_pointwise(g, mode, y, x, b, NULL);
    return y;
}

/* Return x, reduced to a shape, as an intermediate f32 tensor. */
static meg_cudnn_tensor reduce(struct meg_cudnn_graph *g, cudnnReduceTensorOp_t op, struct meg_cudnn_shape shape,
                               meg_cudnn_tensor x)
{
    const meg_cudnn_tensor y = meg_cudnn_virtual(g, CUDNN_DATA_FLOAT, shape);

    meg_cudnn_reduce(g, op, y, x);
    return y;
}

/* Return a b as an intermediate f32 tensor of the shape of scores. */
static meg_cudnn_tensor multiply(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x, meg_cudnn_tensor a,
                                 meg_cudnn_tensor b)
{
    const meg_cudnn_tensor y = meg_cudnn_virtual(g, CUDNN_DATA_FLOAT, scores_shape(x));

    meg_cudnn_matmul(g, y, a, b);
    return y;
}

/* Return `from` with another shape, as an intermediate tensor of the type of the heads. */
static meg_cudnn_tensor reshape(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x, struct meg_cudnn_shape shape,
                                meg_cudnn_tensor from)
{
    const meg_cudnn_tensor y = meg_cudnn_virtual(g, (cudnnDataType_t)x->type, shape);

    meg_cudnn_reshape(g, y, from);
    return y;
}

/* Return an i32 tensor with the index of each score along an axis: 2 for queries, 3 for keys. */
static meg_cudnn_tensor positions(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x, meg_cudnn_tensor scores,
                                  int64_t axis)
{
    const meg_cudnn_tensor y = meg_cudnn_virtual(g, CUDNN_DATA_INT32, scores_shape(x));

    meg_cudnn_index(g, y, scores, axis);
    return y;
}

/* Return the scores, replaced by -infinity where mode(left, right) is false. */
static meg_cudnn_tensor select_scores(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x,
                                      meg_cudnn_tensor scores, meg_cudnn_tensor minus_infinity,
                                      cudnnPointwiseMode_t mode, meg_cudnn_tensor left, meg_cudnn_tensor right)
{
    const meg_cudnn_tensor is_visible = meg_cudnn_virtual(g, CUDNN_DATA_BOOLEAN, scores_shape(x));
    const meg_cudnn_tensor y = meg_cudnn_virtual(g, CUDNN_DATA_FLOAT, scores_shape(x));

    meg_cudnn_pointwise(g, mode, is_visible, left, right, NULL);
    meg_cudnn_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, y, scores, minus_infinity, is_visible);
    return y;
}

/*
 * Return the scores with those of masked keys set to -infinity: if x is causal, keys after the query and, unless
 * window_left is -1, keys more than window_left before it.
 */
static meg_cudnn_tensor mask(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x, meg_cudnn_tensor scores)
{
    meg_cudnn_tensor minus_infinity, query, key;

    if (!x->is_causal)
        return scores;
    minus_infinity = meg_cudnn_number(g, SDPA_MINUS_INFINITY + 1);
    query = positions(g, x, scores, 2);
    key = positions(g, x, scores, 3);
    scores = select_scores(g, x, scores, minus_infinity, CUDNN_POINTWISE_CMP_GE, query, key);
    if (x->window_left < 0)
        return scores;
    query = positions(g, x, scores, 2);
    key = positions(g, x, scores, 3);
    key = apply(g, CUDNN_POINTWISE_ADD, scores_shape(x), key, meg_cudnn_number(g, SDPA_WINDOW + 1));
    return select_scores(g, x, scores, minus_infinity, CUDNN_POINTWISE_CMP_GT, key, query);
}

/* Add o = softmax(s) v with s = mask(scale * q k^T), and lse = max(s) + log(sum(exp(s - max(s)))), to the graph. */
static void forward(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x)
{
    const struct meg_cudnn_shape scores = scores_shape(x), stats = stats_shape(x);
    const meg_cudnn_tensor q = heads(g, x, SDPA_Q), kt = heads_transposed(g, x, SDPA_K), v = heads(g, x, SDPA_V);
    const meg_cudnn_tensor o = heads(g, x, SDPA_O);
    const meg_cudnn_tensor lse = meg_cudnn_memory(g, SDPA_LSE + 1, CUDNN_DATA_FLOAT, stats);
    const meg_cudnn_tensor scale = meg_cudnn_number(g, SDPA_SCALE + 1);
    const meg_cudnn_tensor p = meg_cudnn_virtual(g, (cudnnDataType_t)x->type, scores);
    meg_cudnn_tensor s = multiply(g, x, q, kt), max, sum, log;

    s = mask(g, x, apply(g, CUDNN_POINTWISE_MUL, scores, s, scale));
    max = reduce(g, CUDNN_REDUCE_TENSOR_MAX, stats, s);
    s = apply(g, CUDNN_POINTWISE_SUB, scores, s, max);
    s = apply(g, CUDNN_POINTWISE_EXP, scores, s, NULL);
    sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, stats, s);
    log = apply(g, CUDNN_POINTWISE_LOG, stats, sum, NULL);
    meg_cudnn_pointwise(g, CUDNN_POINTWISE_ADD, lse, max, log, NULL);
    meg_cudnn_pointwise(g, CUDNN_POINTWISE_DIV, p, s, sum, NULL);
    meg_cudnn_matmul(g, o, p, v);
}

/* Add dx = a b, summed over the query heads of a key-value head, to the graph. */
static void key_gradient(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x, enum meg_cudnn_sdpa_tensor dx,
                         meg_cudnn_tensor a, meg_cudnn_tensor b)
{
    const meg_cudnn_tensor y = heads(g, x, dx);
    const int64_t d = dx == SDPA_DV ? x->d_v : x->d;
    meg_cudnn_tensor full;

    if (x->h == x->h_k) {
        meg_cudnn_matmul(g, y, a, b);
        return;
    }
    full = meg_cudnn_virtual(g, (cudnnDataType_t)x->type, contiguous(x->b, x->h, x->s_k, d));
    meg_cudnn_matmul(g, full, a, b);
    meg_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, y, full);
}

/*
 * Add the gradients to the graph (Dao et al. 2022, appendix B):
 *   delta = sum(d_o * o), p = exp(s - lse), dv = p^T d_o, ds = scale * p * (d_o v^T - delta), dk = ds^T q, dq = ds k
 */
static void backward(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x)
{
    const struct meg_cudnn_shape scores = scores_shape(x), stats = stats_shape(x);
    const meg_cudnn_tensor q = heads(g, x, SDPA_Q), kt = heads_transposed(g, x, SDPA_K);
    const meg_cudnn_tensor vt = heads_transposed(g, x, SDPA_V), o = heads(g, x, SDPA_O), d_o = heads(g, x, SDPA_D_O);
    const meg_cudnn_tensor dq = heads(g, x, SDPA_DQ);
    const meg_cudnn_tensor lse = meg_cudnn_memory(g, SDPA_LSE + 1, CUDNN_DATA_FLOAT, stats);
    const meg_cudnn_tensor delta = meg_cudnn_memory(g, SDPA_DELTA + 1, CUDNN_DATA_FLOAT, stats);
    const meg_cudnn_tensor scale = meg_cudnn_number(g, SDPA_SCALE + 1), one = meg_cudnn_number(g, SDPA_ONE + 1);
    meg_cudnn_tensor s, p, ds, k, sum;

    s = apply(g, CUDNN_POINTWISE_MUL, contiguous(x->b, x->h, x->s_q, x->d_v), d_o, o);
    s = reduce(g, CUDNN_REDUCE_TENSOR_ADD, stats, s);
    meg_cudnn_pointwise(g, CUDNN_POINTWISE_MUL, delta, s, one, NULL);

    s = apply(g, CUDNN_POINTWISE_MUL, scores, multiply(g, x, q, kt), scale);
    s = mask(g, x, apply(g, CUDNN_POINTWISE_SUB, scores, s, lse));
    p = apply(g, CUDNN_POINTWISE_EXP, scores, s, NULL);
    key_gradient(g, x, SDPA_DV, reshape(g, x, transposed(scores), p), d_o);

    s = apply(g, CUDNN_POINTWISE_SUB, scores, multiply(g, x, d_o, vt), delta);
    s = apply(g, CUDNN_POINTWISE_MUL, scores, s, p);
    ds = apply(g, CUDNN_POINTWISE_MUL, scores, s, scale);
    key_gradient(g, x, SDPA_DK, reshape(g, x, transposed(scores), ds), q);

    k = reshape(g, x, heads_shape(x, SDPA_K), kt);
    if (x->is_deterministic) {
        meg_cudnn_matmul(g, dq, ds, k);
    } else {
        sum = meg_cudnn_memory(g, SDPA_DQ_SUM + 1, CUDNN_DATA_FLOAT, contiguous(x->b, x->h, x->s_q, x->d));
        meg_cudnn_matmul(g, sum, ds, k);
        meg_cudnn_pointwise(g, CUDNN_POINTWISE_IDENTITY, dq, sum, NULL, NULL);
    }
}

void meg_cudnn_sdpa_graph(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x)
{
    if (x->is_backward)
        backward(g, x);
    else
        forward(g, x);
}
