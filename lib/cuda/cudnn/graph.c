/* graph.c - operation graphs of cuDNN: descriptors, tensors, operations and plans. */
#include "cuda/cudnn/graph.h"

/* ---- descriptors ---- */

/* Set g->e unless the call succeeded. */
static void check(struct meg_cudnn_graph *g, cudnnStatus_t status, const char *what)
{
    char text[1024] = "";

    if (status == CUDNN_STATUS_SUCCESS)
        return;
    meg_cudnn.cudnnGetLastErrorString(text, sizeof text);
    meg_fail(&g->e, MEG_EFAIL, "cuDNN could not %s: %s%s%s", what, meg_cudnn.cudnnGetErrorString(status),
             *text ? ": " : "", text);
}

static cudnnBackendDescriptor_t create(struct meg_cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;

    if (g->e.code)
        return NULL;
    MEG_ASSERT_LT(g->ndescs, MEG_CUDNN_MAX_DESCS);
    check(g, meg_cudnn.cudnnBackendCreateDescriptor(type, &d), "create a descriptor");
    if (d)
        g->desc[g->ndescs++] = d;
    return d;
}

static void set(struct meg_cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *value)
{
    if (!g->e.code)
        check(g, meg_cudnn.cudnnBackendSetAttribute(d, name, type, n, value), "set an attribute");
}

static void set_desc(struct meg_cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnBackendDescriptor_t value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(struct meg_cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnDataType_t value)
{
    set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

static void get(struct meg_cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t max, int64_t *n, void *value)
{
    if (!g->e.code)
        check(g, meg_cudnn.cudnnBackendGetAttribute(d, name, type, max, n, value), "get an attribute");
}

static void finalize(struct meg_cudnn_graph *g, cudnnBackendDescriptor_t d, const char *what)
{
    if (!g->e.code)
        check(g, meg_cudnn.cudnnBackendFinalize(d), what);
}

/* ---- tensors ---- */

static meg_cudnn_tensor tensor(struct meg_cudnn_graph *g, int64_t id, cudnnDataType_t type,
                               const struct meg_cudnn_shape *shape, bool is_virtual, bool is_by_value)
{
    const cudnnBackendDescriptor_t d = create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const int64_t alignment = 16;

    set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape->n);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape->ld);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_by_value);
    finalize(g, d, "describe a tensor");
    return d;
}

meg_cudnn_tensor meg_cudnn_memory(struct meg_cudnn_graph *g, int64_t id, cudnnDataType_t type,
                                  struct meg_cudnn_shape shape)
{
    return tensor(g, id, type, &shape, false, false);
}

meg_cudnn_tensor meg_cudnn_number(struct meg_cudnn_graph *g, int64_t id)
{
    const struct meg_cudnn_shape one = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 } };

    return tensor(g, id, CUDNN_DATA_FLOAT, &one, false, true);
}

meg_cudnn_tensor meg_cudnn_virtual(struct meg_cudnn_graph *g, cudnnDataType_t type, struct meg_cudnn_shape shape)
{
    return tensor(g, 1000 + g->ndescs, type, &shape, true, false);
}

/* ---- operations ---- */

static void add_operation(struct meg_cudnn_graph *g, cudnnBackendDescriptor_t op)
{
    finalize(g, op, "describe an operation");
    MEG_ASSERT_LT(g->nops, MEG_CUDNN_MAX_OPS);
    g->op[g->nops++] = op;
}

static cudnnBackendDescriptor_t pointwise_desc(struct meg_cudnn_graph *g, cudnnPointwiseMode_t mode, int64_t axis)
{
    const cudnnBackendDescriptor_t d = create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    const bool is_comparison = mode == CUDNN_POINTWISE_CMP_GE || mode == CUDNN_POINTWISE_CMP_GT;

    set(g, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(g, d, CUDNN_ATTR_POINTWISE_MATH_PREC, is_comparison ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set(g, d, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(g, d, "describe a pointwise operation");
    return d;
}

static void add_pointwise(struct meg_cudnn_graph *g, cudnnBackendDescriptor_t desc, meg_cudnn_tensor y,
                          meg_cudnn_tensor x, meg_cudnn_tensor b, meg_cudnn_tensor t)
{
    const cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);

    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t)
        set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_operation(g, op);
}

void meg_cudnn_pointwise(struct meg_cudnn_graph *g, cudnnPointwiseMode_t mode, meg_cudnn_tensor y, meg_cudnn_tensor x,
                         meg_cudnn_tensor b, meg_cudnn_tensor t)
{
    add_pointwise(g, pointwise_desc(g, mode, 0), y, x, b, t);
}

void meg_cudnn_index(struct meg_cudnn_graph *g, meg_cudnn_tensor y, meg_cudnn_tensor x, int64_t axis)
{
    add_pointwise(g, pointwise_desc(g, CUDNN_POINTWISE_GEN_INDEX, axis), y, x, NULL, NULL);
}

void meg_cudnn_matmul(struct meg_cudnn_graph *g, meg_cudnn_tensor c, meg_cudnn_tensor a, meg_cudnn_tensor b)
{
    const cudnnBackendDescriptor_t desc = create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    const cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);

    set_type(g, desc, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(g, desc, "describe a matrix product");
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, desc);
    add_operation(g, op);
}

void meg_cudnn_reduce(struct meg_cudnn_graph *g, cudnnReduceTensorOp_t reduction, meg_cudnn_tensor y,
                      meg_cudnn_tensor x)
{
    const cudnnBackendDescriptor_t desc = create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    const cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);

    set(g, desc, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &reduction);
    set_type(g, desc, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(g, desc, "describe a reduction");
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, desc);
    add_operation(g, op);
}

void meg_cudnn_reshape(struct meg_cudnn_graph *g, meg_cudnn_tensor y, meg_cudnn_tensor x)
{
    const cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_operation(g, op);
}

/* ---- plans ---- */

int meg_cudnn_graph_configs(struct meg_cudnn_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                            cudnnBackendDescriptor_t *cfg, int max)
{
    const cudnnBackendDescriptor_t ops = create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    const cudnnBackendDescriptor_t heuristics = create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t n = 0;

    if (handle)
        set(g, ops, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(g, ops, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->nops, g->op);
    finalize(g, ops, "describe a graph");
    set_desc(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, ops);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (device)
        set_desc(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    finalize(g, heuristics, "find engines");
    for (int i = 0; i < max; i++)
        cfg[i] = create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    get(g, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, max, &n, cfg);
    return g->e.code ? 0 : (int)n;
}

int meg_cudnn_graph_plan(struct meg_cudnn_graph *g, cudnnHandle_t handle, int64_t max_nbytes)
{
    enum { MAX = 8 };
    cudnnBackendDescriptor_t cfg[MAX];
    const int n = meg_cudnn_graph_configs(g, handle, NULL, cfg, MAX);
    struct meg_err why = g->e;

    for (int i = 0; i < n; i++) {
        const cudnnBackendDescriptor_t plan = create(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        int64_t nbytes = 0, nvalues;

        set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
        set_desc(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, cfg[i]);
        finalize(g, plan, "build a plan");
        get(g, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &nvalues, &nbytes);
        if (!g->e.code && nbytes <= max_nbytes) {
            g->plan = plan;
            g->nbytes = nbytes;
            return 0;
        }
        if (!g->e.code)
            meg_fail(&g->e, MEG_EFAIL, "cuDNN requires a workspace of %lld bytes, above the limit of %lld",
                     (long long)nbytes, (long long)max_nbytes);
        why = g->e;
        g->e.code = MEG_OK;
    }
    if (n == 0 && !why.code)
        meg_fail(&why, MEG_EFAIL, "cuDNN has no engine for the graph");
    g->e = why;
    return g->e.code;
}

int meg_cudnn_graph_execute(const struct meg_cudnn_graph *g, cudnnHandle_t handle, void *const *p, int n,
                            void *workspace, struct meg_err *e)
{
    struct meg_cudnn_graph pack = { 0 };
    int64_t id[MEG_CUDNN_MAX_OPS];
    void *address[MEG_CUDNN_MAX_OPS];
    int m = 0;

    MEG_ASSERT_LE(n, MEG_CUDNN_MAX_OPS);
    for (int i = 0; i < n; i++) {
        if (p[i]) {
            id[m] = i + 1;
            address[m++] = p[i];
        }
    }
    create(&pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&pack, pack.desc[0], CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, m, id);
    set(&pack, pack.desc[0], CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, m, address);
    set(&pack, pack.desc[0], CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(&pack, pack.desc[0], "describe the tensors of a plan");
    if (!pack.e.code)
        check(&pack, meg_cudnn.cudnnBackendExecute(handle, g->plan, pack.desc[0]), "execute a plan");
    meg_cudnn_graph_free(&pack);
    return pack.e.code ? meg_fail(e, pack.e.code, "%s", pack.e.msg) : 0;
}

void meg_cudnn_graph_free(struct meg_cudnn_graph *g)
{
    while (g->ndescs > 0)
        meg_cudnn.cudnnBackendDestroyDescriptor(g->desc[--g->ndescs]);
}
