/*
 * device.h - the device on which a process computes: its table of operations (tensor/ops.h) and its streams.
 *
 * Tensors are in device memory.  The host may compute addresses of device memory, but only operations may read or write
 * it, unless op->is_host_memory.  A stream executes the work queued on it in order.  Two streams are independent,
 * unless one waits for an event that was recorded on the other, as in CUDA.
 *
 * On the CPU, device memory is host memory, streams and events are NULL, and work is complete when its call returns.
 */
#pragma once
#include "base/err.h"
#include "option/opt.h"
#include "tensor/ops.h"

enum meg_device_type { MEG_DEVICE_AUTO, MEG_DEVICE_CPU, MEG_DEVICE_CUDA };

struct meg_device_conf {
    enum meg_device_type device;
    bool is_deterministic;
};
extern const struct meg_opt meg_device_opts[];

enum { MEG_READ_NBYTES = 1 << 20 }; /* size of read_buffer in bytes */

struct meg_device {
    const struct meg_ops *op;
    struct meg_stream *compute; /* stream of forward, backward and the optimizer */
    struct meg_stream *copy;    /* stream of copies between host and device that overlap with computation */
    struct meg_event *read_done;
    void *read_buffer; /* pinned host buffer of meg_device_read */
    uint64_t id;       /* identifies the GPU among the GPUs of all nodes; 0 for the CPU */
};

/*
 * Open the device that --device selects; it stays open until the process ends.  auto selects a GPU if the build has
 * CUDA and the machine has a GPU, else the CPU.  A process that sees one GPU uses this GPU.  A process that sees
 * several GPUs uses the one whose number is the local rank (LOCAL_RANK of torchrun, or the variables of mpirun and
 * srun; 0 if none is set).  Return MEG_EUSAGE for cuda if the build has no CUDA, and MEG_EFAIL if the GPU cannot be
 * opened (cuda/cuda.h).
 */
int meg_device_open(const struct meg_device **out, const struct meg_device_conf *c, struct meg_err *e);
/* Return the device that meg_device_open opened; before that call, the CPU. */
const struct meg_device *meg_device_current(void);
/* Return the CPU; the first call initializes it. */
const struct meg_device *meg_device_cpu(void);

/*
 * Return the table of operations of GPUs or, if the build has no CUDA, of the CPU.  Unless a GPU is open, call
 * only functions of the table that need no open device, such as attn_bwd_nbytes.
 */
const struct meg_ops *meg_device_gpu_ops(void);

/*
 * Set the training step (0: none), or the number of the layer (-1: none), of the operations that are queued from now
 * on.  Messages about failures of a GPU contain these numbers.
 */
void meg_device_set_step(int64_t step);
void meg_device_set_layer(int64_t layer);
#ifdef MEG_DEBUG
/* The numbers that were set last, for messages of debug builds. */
extern int64_t meg_device_step, meg_device_layer;
#endif

/*
 * Set the function by which meg_device_wait waits, or NULL for the default, which polls event_is_done.  The function of
 * comm/nccl.c also detects collectives that failed or timed out.
 */
void meg_device_on_wait(void (*wait)(const struct meg_device *d, struct meg_event *event));
/* Block until an event is complete. */
void meg_device_wait(const struct meg_device *d, struct meg_event *event);
/*
 * Block until the work queued on st so far is complete.  This function and meg_device_read use the event read_done, so
 * only one thread may call them at a time.
 */
void meg_device_synchronize(const struct meg_device *d, struct meg_stream *st);
/*
 * Copy nbytes from device memory to host memory, which need not be pinned, after the work queued on st.  Block until
 * the copy is complete.
 */
void meg_device_read(const struct meg_device *d, struct meg_stream *st, void *host, const void *dev, size_t nbytes);
/*
 * Copy the rows of x, a matrix in device memory, to host [rows, cols], which is contiguous.  Wait as meg_device_read
 * does.  The row padding of x may be transferred too, so x.ld should be little more than x.cols.
 */
void meg_device_read_mat(const struct meg_device *d, struct meg_stream *st, void *host, struct meg_mat x);
/*
 * Copy the rows of x to pinned memory [rows, cols], which is contiguous.  Block until the copies are complete.  This is
 * faster than meg_device_read_mat.
 */
void meg_device_download_mat(const struct meg_device *d, struct meg_stream *st, void *pinned, struct meg_mat x);
