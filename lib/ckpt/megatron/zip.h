/*
 * ZIP containers whose members are stored as they are, which is what torch.save writes: the central
 * directory at the end says where each lies.  With ZIP64 fields where 32 bits are too few.  After
 * PKWARE's APPNOTE.TXT 6.3.
 */
#ifndef MEG_CKPT_MEGATRON_ZIP_H
#define MEG_CKPT_MEGATRON_ZIP_H
#include <stdint.h>
#include "base/err.h"
#include "file/file.h"

MEG_BEGIN_DECLS

struct meg_zip_member {
    char *name;
    const unsigned char *p;
    size_t n;
    uint32_t crc; /* CRC-32 of its bytes as the directory has it; 0: not computed */
};

/* The members of a mapped file, by name. */
struct meg_zip {
    struct meg_zip_member *member;
    int n;
};

/*
 * Find the members of the file called from; they lie in bytes, which have to stay.  MEG_EFORMAT for
 * what is no ZIP file, a compressed or encrypted member, one that lies outside, and a name twice.
 * Free afterwards, whatever came of it.
 */
int meg_zip_open(struct meg_zip *z, const void *bytes, size_t n, const char *from, struct meg_err *e);
void meg_zip_free(struct meg_zip *z);
/* The CRC-32 of bytes. */
uint32_t meg_zip_crc(const void *bytes, size_t n);
const struct meg_zip_member *meg_zip_find(const struct meg_zip *z, const char *name);

/* A container being written to a file; starts as { .f = &f }, f just created. */
struct meg_zip_writer {
    struct meg_file *f;
    uint64_t at;
    struct meg_str directory;
    int n;
};
/* Add a member; its bytes begin at a multiple of 64 in the file. */
int meg_zip_add(struct meg_zip_writer *w, const char *name, const void *bytes, size_t n, struct meg_err *e);
/* Write the directory; the file is then whole, and not yet committed. */
int meg_zip_finish(struct meg_zip_writer *w, struct meg_err *e);
void meg_zip_writer_free(struct meg_zip_writer *w);

MEG_END_DECLS
#endif
