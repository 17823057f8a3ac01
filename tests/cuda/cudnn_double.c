/*
 * cudnn_double.c - a test double of cuDNN's graph API, for machines without a GPU.  It is loaded as libcudnn.so.9 and
 * computes the operations of a graph one after another, in f32, on the streams of the double of the CUDA runtime.
 * Intermediate tensors are rounded to their types.
 *
 * It ends the process with a message and SIGABRT on errors for which the real library would fail or compute a wrong
 * result: descriptors that are not finalized or lack attributes, shapes and types that do not match, intermediate
 * results that are used before they are computed, tensors without a pointer or with an unaligned one, f32 tensors that
 * overlap.  The workspace and f32 outputs contain NaN before the first operation, and the workspace also after each.
 *
 * $MEG_DOUBLE_CUDNN_VERSION replaces the version.
 */
#include <cudnn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define LIBRARY "cuDNN"
#include "../nccl/common.h"
#include "tensor/half.h"

enum { WORKSPACE_NBYTES = 4096, MAX_TENSORS = 128 };

struct cudnnContext {
    cudaStream_t stream;
    bool has_stream;
};

/* ---- descriptors ---- */

struct attribute {
    struct attribute *next;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t n;
    void *value;
};

struct desc {
    cudnnBackendDescriptorType_t type;
    bool is_final;
    struct attribute *attributes;
};

static size_t size_of_attribute(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_INT64: return 8;
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR: return sizeof(void *);
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_POINTWISE_MODE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE: return 4;
    default: fail("an attribute of type %d", (int)type);
    }
}

static const struct attribute *find(const struct desc *d, cudnnBackendAttributeName_t name)
{
    for (const struct attribute *a = d->attributes; a; a = a->next)
        if (a->name == name)
            return a;
    return NULL;
}

static const void *value_of(const struct desc *d, cudnnBackendAttributeName_t name)
{
    const struct attribute *a = find(d, name);

    if (!a)
        fail("a descriptor of type %d has no attribute %d", (int)d->type, (int)name);
    return a->value;
}

static int enum_of(const struct desc *d, cudnnBackendAttributeName_t name)
{
    return *(const int *)value_of(d, name);
}

static const struct desc *desc_of(const struct desc *d, cudnnBackendAttributeName_t name)
{
    return *(struct desc *const *)value_of(d, name);
}

static bool bool_of(const struct desc *d, cudnnBackendAttributeName_t name)
{
    const struct attribute *a = find(d, name);

    return a && *(const bool *)a->value;
}

API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    struct desc *d = calloc(1, sizeof *d);

    d->type = type;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t desc)
{
    struct desc *d = desc;

    while (d->attributes) {
        struct attribute *a = d->attributes;

        d->attributes = a->next;
        free(a->value);
        free(a);
    }
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t desc, cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t n, const void *value)
{
    struct desc *d = desc;
    struct attribute *a = malloc(sizeof *a);
    const size_t nbytes = size_of_attribute(type) * (size_t)n;

    if (d->is_final)
        fail("an attribute of a finalized descriptor is set");
    if (find(d, name))
        fail("attribute %d is set twice", (int)name);
    for (int64_t i = 0; i < n && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++)
        if (!((struct desc *const *)value)[i] || !((struct desc *const *)value)[i]->is_final)
            fail("attribute %d is a descriptor that is not finalized", (int)name);
    *a = (struct attribute){ d->attributes, name, type, n, malloc(nbytes + 1) };
    memcpy(a->value, value, nbytes);
    d->attributes = a;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- tensors and operations ---- */

/* A tensor of a graph.  p is in device memory, in host memory (numbers), or allocated while the graph is executed. */
struct tensor {
    int64_t id, n[4], ld[4];
    cudnnDataType_t type;
    bool is_virtual, is_number, is_computed;
    float number;
    char *p;
};

struct op {
    cudnnBackendDescriptorType_t type;
    int mode, axis;
    struct tensor *y, *x, *b, *t; /* of a matrix product: y = x b */
};

/* A graph that is queued on a stream. */
struct graph {
    struct tensor tensor[MAX_TENSORS];
    struct op op[MAX_TENSORS];
    int ntensors, nops;
    void *workspace;
};

static size_t size_of(cudnnDataType_t type)
{
    switch (type) {
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32: return 4;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16: return 2;
    case CUDNN_DATA_BOOLEAN: return 1;
    default: fail("a tensor of data type %d", (int)type);
    }
}

static struct tensor read_tensor(const struct desc *d)
{
    struct tensor t = { .id = *(const int64_t *)value_of(d, CUDNN_ATTR_TENSOR_UNIQUE_ID),
                        .type = (cudnnDataType_t)enum_of(d, CUDNN_ATTR_TENSOR_DATA_TYPE),
                        .is_virtual = bool_of(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL),
                        .is_number = bool_of(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE) };
    const int64_t *n = value_of(d, CUDNN_ATTR_TENSOR_DIMENSIONS), *ld = value_of(d, CUDNN_ATTR_TENSOR_STRIDES);

    value_of(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    for (int i = 0; i < 4; i++) {
        t.n[i] = n[i];
        t.ld[i] = ld[i];
        if (n[i] < 1 || ld[i] < 1)
            fail("tensor %d has extent %d and stride %d in dimension %d", (int)t.id, (int)n[i], (int)ld[i], i);
        if (n[i] > 1 && ld[i] > 1 && !t.is_virtual && ld[i] * (int64_t)size_of(t.type) % 16 != 0 &&
            size_of(t.type) == 2)
            fail("tensor %d has stride %d in dimension %d", (int)t.id, (int)ld[i], i);
    }
    return t;
}

/*
 * Return the tensor of g that attribute `name` of an operation describes, or NULL if there is no such attribute.  Add
 * the tensor to g at its first use.
 */
static struct tensor *tensor_of(struct graph *g, const struct desc *op, cudnnBackendAttributeName_t name)
{
    const struct attribute *a = find(op, name);
    struct tensor t;

    if (!a)
        return NULL;
    t = read_tensor(*(struct desc *const *)a->value);
    for (int i = 0; i < g->ntensors; i++) {
        if (g->tensor[i].id != t.id)
            continue;
        if (memcmp(g->tensor[i].n, t.n, sizeof t.n) != 0 || memcmp(g->tensor[i].ld, t.ld, sizeof t.ld) != 0 ||
            g->tensor[i].type != t.type || g->tensor[i].is_virtual != t.is_virtual ||
            g->tensor[i].is_number != t.is_number)
            fail("tensors with the same id %d differ", (int)t.id);
        return &g->tensor[i];
    }
    if (g->ntensors == MAX_TENSORS)
        fail("more than %d tensors", MAX_TENSORS);
    g->tensor[g->ntensors] = t;
    return &g->tensor[g->ntensors++];
}

/* End the process with a message unless ok. */
static void expect(bool ok, const struct op *op, const char *what)
{
    if (!ok)
        fail("an operation of type %d, mode %d: %s", (int)op->type, op->mode, what);
}

/* Return whether x has the shape of y, except for dimensions of extent 1. */
static bool is_broadcast(const struct tensor *x, const struct tensor *y)
{
    for (int i = 0; i < 4; i++)
        if (x->n[i] != 1 && x->n[i] != y->n[i])
            return false;
    return true;
}

static int64_t count(const struct tensor *t)
{
    return t->n[0] * t->n[1] * t->n[2] * t->n[3];
}

static void check_pointwise(const struct op *op)
{
    const bool is_comparison = op->mode == CUDNN_POINTWISE_CMP_GE || op->mode == CUDNN_POINTWISE_CMP_GT;
    const bool is_unary = op->mode == CUDNN_POINTWISE_EXP || op->mode == CUDNN_POINTWISE_LOG ||
                          op->mode == CUDNN_POINTWISE_IDENTITY || op->mode == CUDNN_POINTWISE_GEN_INDEX;

    expect(op->x && op->y && !op->b == is_unary, op, "wrong number of operands");
    expect(!op->t == (op->mode != CUDNN_POINTWISE_BINARY_SELECT), op, "wrong number of operands");
    expect(is_broadcast(op->x, op->y) && (!op->b || is_broadcast(op->b, op->y)) &&
               (!op->t || is_broadcast(op->t, op->y)),
           op, "shapes do not match");
    expect((op->y->type == CUDNN_DATA_BOOLEAN) == is_comparison, op, "wrong type of the result");
    expect(!op->t || op->t->type == CUDNN_DATA_BOOLEAN, op, "wrong type of a condition");
}

static void check_matmul(const struct op *op)
{
    const struct tensor *a = op->x, *b = op->b, *c = op->y;

    expect(a && b && c, op, "wrong number of operands");
    expect(a->n[3] == b->n[2] && c->n[2] == a->n[2] && c->n[3] == b->n[3], op, "rows and columns do not match");
    expect(a->n[0] == c->n[0] && b->n[0] == c->n[0] && a->n[1] == c->n[1] && c->n[1] % b->n[1] == 0, op,
           "batches do not match");
    expect(size_of(b->type) == 2 && (a->is_virtual || a->type == b->type), op, "wrong type of an operand");
}

static void check_op(const struct op *op)
{
    switch ((int)op->type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: check_pointwise(op); return;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: check_matmul(op); return;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        expect(op->x && op->y, op, "wrong number of operands");
        for (int i = 0; i < 4; i++)
            expect(op->x->n[i] % op->y->n[i] == 0, op, "shapes do not match");
        return;
    default: expect(op->x && op->y && count(op->x) == count(op->y), op, "shapes do not match");
    }
}

static struct op read_op(struct graph *g, const struct desc *d)
{
    struct op op = { .type = d->type };
    const struct desc *detail;

    switch ((int)d->type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        detail = desc_of(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        op.mode = enum_of(detail, CUDNN_ATTR_POINTWISE_MODE);
        if (op.mode == CUDNN_POINTWISE_GEN_INDEX)
            op.axis = (int)*(const int64_t *)value_of(detail, CUDNN_ATTR_POINTWISE_AXIS);
        op.x = tensor_of(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
        op.b = tensor_of(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        op.t = tensor_of(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        op.y = tensor_of(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        desc_of(d, CUDNN_ATTR_OPERATION_MATMUL_DESC);
        op.x = tensor_of(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        op.b = tensor_of(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
        op.y = tensor_of(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        op.mode = enum_of(desc_of(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR);
        op.x = tensor_of(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
        op.y = tensor_of(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
        break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        op.x = tensor_of(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
        op.y = tensor_of(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        break;
    default: fail("a descriptor of type %d in a graph", (int)d->type);
    }
    check_op(&op);
    return op;
}

/* Fail if an intermediate result is used before it is computed. */
static void read_input(const struct op *op, const struct tensor *x)
{
    expect(!x || !x->is_virtual || x->is_computed, op, "an operand is not computed yet");
}

/* Return the operations of a graph, in order, and check that each intermediate result is computed once, before use. */
static struct graph *read_graph(const struct desc *d)
{
    const struct attribute *ops = find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    struct graph *g = calloc(1, sizeof *g);

    if (!ops || ops->n > MAX_TENSORS)
        fail("a graph without operations, or with too many");
    for (int64_t i = 0; i < ops->n; i++)
        g->op[g->nops++] = read_op(g, ((struct desc *const *)ops->value)[i]);
    for (int i = 0; i < g->nops; i++) {
        read_input(&g->op[i], g->op[i].x);
        read_input(&g->op[i], g->op[i].b);
        read_input(&g->op[i], g->op[i].t);
        expect(!g->op[i].y->is_computed && !g->op[i].y->is_number, &g->op[i], "a result is computed twice");
        g->op[i].y->is_computed = true;
    }
    return g;
}

/* ---- plans ---- */

static const struct desc *graph_of_plan(const struct desc *plan)
{
    const struct desc *cfg = desc_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);

    /* This test double has no engine descriptors: the engine of a configuration is the operation graph. */
    return desc_of(cfg, CUDNN_ATTR_ENGINECFG_ENGINE);
}

API cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t desc)
{
    struct desc *d = desc;

    if (d->is_final)
        fail("a descriptor is finalized twice");
    switch ((int)d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: read_tensor(d); break;
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR: value_of(d, CUDNN_ATTR_POINTWISE_MATH_PREC); break;
    case CUDNN_BACKEND_MATMUL_DESCRIPTOR: value_of(d, CUDNN_ATTR_MATMUL_COMP_TYPE); break;
    case CUDNN_BACKEND_REDUCTION_DESCRIPTOR: value_of(d, CUDNN_ATTR_REDUCTION_COMP_TYPE); break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        value_of(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
        free(read_graph(d));
        break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: value_of(d, CUDNN_ATTR_ENGINEHEUR_MODE); break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        value_of(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
        graph_of_plan(d);
        break;
    default: break;
    }
    d->is_final = true;
    return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t desc, cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t max, int64_t *n, void *value)
{
    const struct desc *d = desc;
    const struct desc *graph;
    struct desc *cfg;

    if (!d->is_final || max < 1)
        fail("attribute %d of a descriptor that is not finalized is read", (int)name);
    *n = 1;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        cfg = *(struct desc **)value;
        graph = desc_of(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        cudnnBackendSetAttribute(cfg, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
        cfg->is_final = true;
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
        *(int64_t *)value = WORKSPACE_NBYTES;
    } else {
        fail("attribute %d is read", (int)name);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- execution ---- */

static char *element(const struct tensor *t, const int64_t i[4])
{
    int64_t offset = 0;

    for (int k = 0; k < 4; k++)
        offset += (t->n[k] == 1 ? 0 : i[k]) * t->ld[k];
    return t->p + (size_t)offset * size_of(t->type);
}

static float get(const struct tensor *t, const int64_t i[4])
{
    const char *p = element(t, i);
    uint16_t bits;
    int32_t index;
    float x;

    switch (t->type) {
    case CUDNN_DATA_FLOAT: memcpy(&x, p, sizeof x); return x;
    case CUDNN_DATA_INT32: memcpy(&index, p, sizeof index); return (float)index;
    case CUDNN_DATA_BOOLEAN: return *p;
    default:
        memcpy(&bits, p, sizeof bits);
        return t->type == CUDNN_DATA_HALF ? meg_from_f16(bits) : meg_from_bf16(bits);
    }
}

static void put(const struct tensor *t, const int64_t i[4], float x)
{
    char *p = element(t, i);
    const uint16_t bits = t->type == CUDNN_DATA_HALF ? meg_to_f16(x) : meg_to_bf16(x);
    const int32_t index = (int32_t)x;

    switch (t->type) {
    case CUDNN_DATA_FLOAT: memcpy(p, &x, sizeof x); return;
    case CUDNN_DATA_INT32: memcpy(p, &index, sizeof index); return;
    case CUDNN_DATA_BOOLEAN: *p = x != 0.0f; return;
    default: memcpy(p, &bits, sizeof bits);
    }
}

static float pointwise(const struct op *op, const int64_t i[4])
{
    const float x = op->mode == CUDNN_POINTWISE_GEN_INDEX ? 0.0f : get(op->x, i), b = op->b ? get(op->b, i) : 0.0f;

    switch (op->mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return expf(x);
    case CUDNN_POINTWISE_LOG: return logf(x);
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_CMP_GT: return x > b;
    case CUDNN_POINTWISE_BINARY_SELECT: return get(op->t, i) != 0.0f ? x : b;
    case CUDNN_POINTWISE_GEN_INDEX: return (float)i[op->axis];
    default: fail("pointwise mode %d", op->mode);
    }
}

/* Return row i of a times column i of b.  Consecutive heads of a use one head of b. */
static float matmul(const struct op *op, const int64_t i[4])
{
    int64_t a[4] = { i[0], i[1], i[2], 0 }, b[4] = { i[0], i[1] / (op->y->n[1] / op->b->n[1]), 0, i[3] };
    float sum = 0.0f;

    for (int64_t k = 0; k < op->x->n[3]; k++) {
        a[3] = b[2] = k;
        sum += get(op->x, a) * get(op->b, b);
    }
    return sum;
}

/* Return the sum or maximum of the elements of x that are reduced to element i of y. */
static float reduction(const struct op *op, const int64_t i[4])
{
    const bool is_max = op->mode == CUDNN_REDUCE_TENSOR_MAX;
    float result = is_max ? -INFINITY : 0.0f;
    int64_t r[4], j[4];

    if (!is_max && op->mode != CUDNN_REDUCE_TENSOR_ADD)
        fail("reduction %d", op->mode);
    for (int k = 0; k < 4; k++)
        r[k] = op->x->n[k] / op->y->n[k];
    for (int64_t k = 0; k < r[0] * r[1] * r[2] * r[3]; k++) {
        j[3] = i[3] * r[3] + k % r[3];
        j[2] = i[2] * r[2] + k / r[3] % r[2];
        j[1] = i[1] * r[1] + k / r[3] / r[2] % r[1];
        j[0] = i[0] * r[0] + k / r[3] / r[2] / r[1];
        result = is_max ? fmaxf(result, get(op->x, j)) : result + get(op->x, j);
    }
    return result;
}

/* Return the element of x at the offset of element i of y. */
static float reshaped(const struct op *op, const int64_t i[4])
{
    int64_t offset = i[0] * op->y->ld[0] + i[1] * op->y->ld[1] + i[2] * op->y->ld[2] + i[3] * op->y->ld[3];
    struct tensor x = *op->x;
    const int64_t first[4] = { 0 };

    x.p += (size_t)offset * size_of(x.type);
    return get(&x, first);
}

static void run_op(const struct op *op)
{
    const int64_t *n = op->y->n;

    for (int64_t k = 0; k < count(op->y); k++) {
        const int64_t i[4] = { k / n[3] / n[2] / n[1], k / n[3] / n[2] % n[1], k / n[3] % n[2], k % n[3] };

        switch ((int)op->type) {
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: put(op->y, i, pointwise(op, i)); break;
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: put(op->y, i, matmul(op, i)); break;
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: put(op->y, i, reduction(op, i)); break;
        default: put(op->y, i, reshaped(op, i));
        }
    }
}

/* Allocate an intermediate tensor that contains NaN. */
static void allocate(struct tensor *t)
{
    int64_t last = 0;

    for (int i = 0; i < 4; i++)
        last += (t->n[i] - 1) * t->ld[i];
    t->p = malloc(((size_t)last + 1) * size_of(t->type));
    memset(t->p, 0xff, ((size_t)last + 1) * size_of(t->type));
}

static void run_graph(void *arg)
{
    struct graph *g = arg;

    memset(g->workspace, 0xff, WORKSPACE_NBYTES);
    for (int i = 0; i < g->ntensors; i++) {
        struct tensor *t = &g->tensor[i];

        if (t->is_virtual)
            allocate(t);
        else if (t->is_number)
            t->p = (char *)&t->number;
        else if (t->is_computed && t->type == CUDNN_DATA_FLOAT)
            memset(t->p, 0xff, (size_t)count(t) * sizeof(float));
    }
    for (int i = 0; i < g->nops; i++) {
        run_op(&g->op[i]);
        memset(g->workspace, 0xff, WORKSPACE_NBYTES);
    }
    for (int i = 0; i < g->ntensors; i++)
        if (g->tensor[i].is_virtual)
            free(g->tensor[i].p);
}

/* Set the address of tensor t to that of its id in the variant pack. */
static void set_address(struct tensor *t, const struct desc *pack, cudaStream_t stream)
{
    const struct attribute *ids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    void *const *p = value_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    int64_t i = 0;

    while (i < ids->n && ((const int64_t *)ids->value)[i] != t->id)
        i++;
    if (i == ids->n)
        fail("tensor %d has no pointer", (int)t->id);
    if (t->is_number) {
        memcpy(&t->number, p[i], sizeof t->number);
        return;
    }
    t->p = p[i];
    if ((uintptr_t)t->p % 16 != 0)
        fail("the pointer of tensor %d is not aligned", (int)t->id);
    meg_double_touch(stream, t->p);
}

/*
 * Fail if the nbytes at p overlap an f32 tensor in device memory, except tensor number `except`.  Such tensors are
 * contiguous.
 */
static void check_overlap(const struct graph *g, int except, const char *p, size_t nbytes)
{
    for (int i = 0; i < g->ntensors; i++) {
        const struct tensor *t = &g->tensor[i];

        if (i != except && !t->is_virtual && !t->is_number && t->type == CUDNN_DATA_FLOAT && t->p < p + nbytes &&
            p < t->p + (size_t)count(t) * sizeof(float))
            fail("tensor %d overlaps another tensor or the workspace", (int)t->id);
    }
}

API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                      cudnnBackendDescriptor_t pack)
{
    const struct desc *p = plan, *v = pack;
    const struct attribute *ids = find(v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    struct graph *g;
    int naddresses = 0;

    if (!p->is_final || !v->is_final || !handle->has_stream)
        fail("a plan is executed that is not finalized, or without a stream");
    g = read_graph(graph_of_plan(p));
    for (int i = 0; i < g->ntensors; i++) {
        if (g->tensor[i].is_virtual)
            continue;
        set_address(&g->tensor[i], v, handle->stream);
        naddresses++;
    }
    if (naddresses != ids->n)
        fail("%d pointers for %d tensors", (int)ids->n, naddresses);
    g->workspace = *(void *const *)value_of(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (!g->workspace || (uintptr_t)g->workspace % 256 != 0)
        fail("a workspace at %p", g->workspace);
    meg_double_touch(handle->stream, g->workspace);
    check_overlap(g, -1, g->workspace, WORKSPACE_NBYTES);
    for (int i = 0; i < g->ntensors; i++)
        if (!g->tensor[i].is_virtual && !g->tensor[i].is_number && g->tensor[i].type == CUDNN_DATA_FLOAT)
            check_overlap(g, i, g->tensor[i].p, (size_t)count(&g->tensor[i]) * sizeof(float));
    if (meg_double_launch(handle->stream, run_graph, g, free) != cudaSuccess)
        return CUDNN_STATUS_EXECUTION_FAILED;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- handles and errors ---- */

API size_t cudnnGetVersion(void)
{
    return (size_t)variable("MEG_DOUBLE_CUDNN_VERSION", CUDNN_VERSION);
}

API const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS ? "no error" : "an error";
}

API void cudnnGetLastErrorString(char *message, size_t max_nbytes)
{
    snprintf(message, max_nbytes, "an error of the double");
}

API cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    static struct cudnnContext context;

    *handle = &context;
    return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->has_stream = true;
    return CUDNN_STATUS_SUCCESS;
}
