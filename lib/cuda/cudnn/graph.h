/*
 * graph.h - operation graphs of cuDNN, by its C API: tensors, operations and plans.
 *
 * A graph is built by functions that return nothing or a tensor.  After the first call that fails, the following ones
 * do nothing, and meg_cudnn_graph_plan returns the error.
 */
#pragma once
#include "cuda/cudnn/lib.h"

enum { MEG_CUDNN_MAX_DESCS = 256, MEG_CUDNN_MAX_OPS = 48 };

typedef cudnnBackendDescriptor_t meg_cudnn_tensor;

/* Extents and strides, in elements, of a tensor [batch, heads, rows, columns]. */
struct meg_cudnn_shape {
    int64_t n[4], ld[4];
};

/* A graph.  Initialize it to zeros, and free it by meg_cudnn_graph_free. */
struct meg_cudnn_graph {
    cudnnBackendDescriptor_t desc[MEG_CUDNN_MAX_DESCS]; /* all descriptors of the graph */
    cudnnBackendDescriptor_t op[MEG_CUDNN_MAX_OPS];
    int ndescs, nops;
    cudnnBackendDescriptor_t plan;
    int64_t nbytes;   /* workspace of the plan */
    struct meg_err e; /* e.code is MEG_OK until a call fails */
};

/*
 * Add a tensor and return it.  It is in device memory, a number in host memory (f32, read when the plan is executed),
 * or a virtual tensor, that is, an intermediate result.  id > 0 identifies the first two in meg_cudnn_graph_execute.
 */
meg_cudnn_tensor meg_cudnn_memory(struct meg_cudnn_graph *g, int64_t id, cudnnDataType_t type,
                                  struct meg_cudnn_shape shape);
meg_cudnn_tensor meg_cudnn_number(struct meg_cudnn_graph *g, int64_t id);
meg_cudnn_tensor meg_cudnn_virtual(struct meg_cudnn_graph *g, cudnnDataType_t type, struct meg_cudnn_shape shape);

/* Add y = mode(x, b, t), element by element; b and t may be NULL, and are broadcast along dimensions of extent 1. */
void meg_cudnn_pointwise(struct meg_cudnn_graph *g, cudnnPointwiseMode_t mode, meg_cudnn_tensor y, meg_cudnn_tensor x,
                         meg_cudnn_tensor b, meg_cudnn_tensor t);
/* Add an operation that sets y, of type i32, to the index of each element of x, of the same shape, along `axis`. */
void meg_cudnn_index(struct meg_cudnn_graph *g, meg_cudnn_tensor y, meg_cudnn_tensor x, int64_t axis);
/* Add c = a b for each batch and head.  If b has fewer heads than a, consecutive heads of a use one head of b. */
void meg_cudnn_matmul(struct meg_cudnn_graph *g, meg_cudnn_tensor c, meg_cudnn_tensor a, meg_cudnn_tensor b);
/* Add the reduction of x to y along the dimensions in which y has a smaller extent. */
void meg_cudnn_reduce(struct meg_cudnn_graph *g, cudnnReduceTensorOp_t op, meg_cudnn_tensor y, meg_cudnn_tensor x);
/*
 * Add y = x with the extents and strides of y: elements at the same offset are equal, so strides in another order
 * transpose x.
 */
void meg_cudnn_reshape(struct meg_cudnn_graph *g, meg_cudnn_tensor y, meg_cudnn_tensor x);

/*
 * Write up to `max` engine configurations that the heuristics propose to cfg, best first, and return their number; on
 * failure, set g->e and return 0.  Exactly one of handle and device is NULL.  device describes the properties of a GPU,
 * so that no actual GPU is needed.  The configurations are freed with the graph.
 */
int meg_cudnn_graph_configs(struct meg_cudnn_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                            cudnnBackendDescriptor_t *cfg, int max);
/*
 * Build a plan from the first proposed configuration for which cuDNN can build one whose workspace has at most
 * max_nbytes bytes.  Return MEG_EFAIL, with a message in g->e, if there is none.
 */
int meg_cudnn_graph_plan(struct meg_cudnn_graph *g, cudnnHandle_t handle, int64_t max_nbytes);
/*
 * Queue the plan on the stream of the handle.  p[i], i < n, is the address of tensor i + 1, or NULL if the graph has no
 * such tensor.  `workspace` has at least g->nbytes bytes.  Return MEG_EFAIL if cuDNN refuses the plan.
 */
int meg_cudnn_graph_execute(const struct meg_cudnn_graph *g, cudnnHandle_t handle, void *const *p, int n,
                            void *workspace, struct meg_err *e);
void meg_cudnn_graph_free(struct meg_cudnn_graph *g);
