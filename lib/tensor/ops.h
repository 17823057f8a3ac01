/*
 * ops.h - struct meg_ops, the table of tensor operations that a backend provides.  The results of the CPU backend
 * (cpu/cpu.h) are the reference.  Layers and the optimizer compute only with these operations.
 *
 * Shapes: s sequence, b micro-batch, n = s*b tokens, h hidden, f feed-forward, a query heads, g key-value groups, d
 * head size, v vocabulary.  Activations are sequence first: token t of sequence i is row t*b + i.
 *
 * Data types: a matrix or view of heads has a field for its type (f32, bf16 or f16), and the types of one call may
 * differ.  For example, the residual stream may be f32 while parameters and the outputs of sublayers are bf16.  An
 * operation converts its inputs to f32, computes in f32 or f64, and rounds stored results to nearest even.  Only bf16
 * parameters and states of an optimizer step are rounded stochastically (struct meg_update_arrays).  Statistics, losses
 * and log-sum-exps are f32.
 *
 * A parameter vector (void *) has the type of a matrix of the same call.  The bias of a linear layer has the type of w,
 * the bias of add_fwd the type of the sublayer's output, and w and b of a norm the type of y (norm_bwd: of dy).
 * Parameter gradients may be f32 or, to save memory, bf16 or f16; bf16 and f16 gradients are rounded at each
 * accumulation.  An operation that computes parameter gradients adds them to their arrays if `accumulate` is true;
 * otherwise it overwrites all elements, without reading them.
 *
 * An operation takes a stream and a struct of arguments, which ops_layer.h, ops_attention.h and ops_optim.h define with
 * the formula.  A field that is not set is 0, and thus absent.
 *
 * Operations on tensors return nothing and allocate no memory; an operation that needs more device memory than its
 * arguments has a workspace (struct meg_workspace).  The caller owns the buffers, which must not overlap unless a
 * comment allows it.  A wrong shape is a bug in the caller; debug builds check shapes (tensor/check_ops.h).  An
 * operation is queued on its stream.  On the CPU, an operation is complete when it returns.  CPU results do not depend
 * on the number of threads: block sizes depend only on the shapes, and sums have a fixed order.
 */
#pragma once
#include "tensor/ops_attention.h"
#include "tensor/ops_layer.h"
#include "tensor/ops_optim.h"

MEG_BEGIN_DECLS

/* clang-format off */
/* Expand to X(name) for each operation that has one implementation per CPU instruction set, and one for GPUs. */
#define MEG_ISA_OPS(X) MEG_LAYER_OPS(X) MEG_ATTENTION_OPS(X) MEG_OPTIM_OPS(X)
/* Expand to X(name) for each operation on tensors. */
#define MEG_TENSOR_OPS(X) MEG_ISA_OPS(X) X(copy_heads) X(sample) X(step_finish)
/* clang-format on */

/* A stream executes the work queued on it in order.  An event marks a point in a stream.  See device/device.h. */
struct meg_stream;
struct meg_event;
/* A recorded sequence of operations and their arguments (a CUDA graph).  One launch is faster than the single calls. */
struct meg_graph;

struct meg_ops {
    const char *name;    /* "cpu", "cuda" */
    bool is_host_memory; /* device memory is host memory, which the host may read and write between operations */
    /*
     * The largest number of rows of a decoding step, one for each sequence.  If the result of a row depends on the
     * number of rows, pads_decode_steps is set, and each step has decode_rows rows, some of which may be padding.  A
     * GPU takes about as long for 64 rows as for one, because it reads all weights in both cases.
     */
    int64_t decode_rows;
    bool pads_decode_steps;

    /*
     * Return the number of rows of logits [rows,v] that the language-model head should compute at a time.  Fewer rows
     * use less memory, but each chunk of rows updates the complete weight gradient of the head.  The result depends
     * only on v.
     */
    int64_t (*logits_rows)(int64_t v);

    /* Return the bytes of device memory that are free; 0 if unknown, as on the CPU. */
    size_t (*free_nbytes)(void);
    /* Allocate zeroed device memory, 64-byte aligned; NULL if memory is exhausted.  For 0 bytes, return non-NULL. */
    void *(*alloc)(size_t nbytes);
    void (*release)(void *p);
    /*
     * Allocate zeroed host memory for upload_pinned and download (page-locked with CUDA); NULL if memory is exhausted.
     * release_pinned first waits until no queued copy uses the memory.
     */
    void *(*alloc_pinned)(size_t nbytes);
    void (*release_pinned)(void *p);
    /* Copy nbytes within device memory; the two ranges must not overlap. */
    void (*copy)(struct meg_stream *st, void *dst, const void *src, size_t nbytes);
    /* Copy host memory to device memory.  The caller may reuse `host` as soon as the function returns. */
    void (*upload)(struct meg_stream *st, void *dev, const void *host, size_t nbytes);
    /* Copy pinned memory to device memory.  Before changing `pinned`, wait for an event recorded after this call. */
    void (*upload_pinned)(struct meg_stream *st, void *dev, const void *pinned, size_t nbytes);
    /* Copy device memory to pinned memory.  Before reading the result, wait for an event recorded after this call. */
    void (*download)(struct meg_stream *st, void *pinned, const void *dev, size_t nbytes);
    void (*zero)(struct meg_stream *st, void *dev, size_t nbytes);

    /* Create a stream; `name` identifies it in profiles.  The CPU backend has no streams and returns NULL. */
    struct meg_stream *(*stream_create)(const char *name);
    void (*stream_destroy)(struct meg_stream *st); /* no work may be queued on st */
    /* Create an event.  Until it is recorded, event_is_done returns true. */
    struct meg_event *(*event_create)(void);
    void (*event_destroy)(struct meg_event *event);
    /* Record the event on st: it is done when all work queued on st before this call is complete. */
    void (*event_record)(struct meg_stream *st, struct meg_event *event);
    /* Make work that is queued on st after this call wait for the event.  The host does not wait. */
    void (*event_wait)(struct meg_stream *st, struct meg_event *event);
    bool (*event_is_done)(struct meg_event *event);

    /*
     * Between graph_begin and graph_end, operations on st are not executed, but added to a graph, with the values of
     * their arguments.  graph_launch queues them on st; tensors are read and written at that time.  Each operation must
     * have been executed before with these shapes, so that its plans and workspaces exist.  Events, and copies between
     * host and device, cannot be added.  graph_destroy requires that the graph's last launch is complete.  graph_begin
     * is NULL if operations cannot be added to graphs, as on the CPU.
     */
    void (*graph_begin)(struct meg_stream *st);
    struct meg_graph *(*graph_end)(struct meg_stream *st);
    void (*graph_launch)(struct meg_stream *st, struct meg_graph *graph);
    void (*graph_destroy)(struct meg_graph *graph);

    /* Create a plan.  If the backend does not support the layer, return NULL and set *why to the reason. */
    struct meg_linear_plan *(*linear_create)(const struct meg_linear_desc *desc, const char **why);
    void (*linear_destroy)(struct meg_linear_plan *l);

    /* The operations on tensors: void (*norm_fwd)(struct meg_stream *st, const struct meg_norm_fwd_args *a), ... */
#define MEG_DECLARE_OP(name) void (*name)(struct meg_stream * st, const struct meg_##name##_args *a);
    MEG_TENSOR_OPS(MEG_DECLARE_OP)
#undef MEG_DECLARE_OP

    /*
     * Return the size in bytes of the workspace of attn_bwd.  Only the shapes in desc are read.  dq, dk and dv have
     * type `grad`; has_param_grads states whether d_rel_bias or d_sink is computed.  On the CPU, the workspace contains
     * f64 sums of d_rel_bias and d_sink, and f32 sums of bf16 or f16 dq, dk and dv for each thread that has work.  The
     * number of OpenMP threads must not increase between this call and attn_bwd.
     */
    size_t (*attn_bwd_nbytes)(const struct meg_attn_desc *desc, enum meg_dtype grad, bool has_param_grads);
    /* Return the size in bytes of the workspace of `sample`.  The number of OpenMP threads must not increase later. */
    size_t (*sample_nbytes)(int64_t n, int64_t unpadded_vocab);
};

/* Call operation `name` of table `op` on stream st: MEG_CALL(op, st, scale, .y = y, .x = x, .factor = 2). */
#define MEG_CALL(op, st, name, ...) (op)->name(st, &(struct meg_##name##_args){ __VA_ARGS__ })

MEG_END_DECLS
