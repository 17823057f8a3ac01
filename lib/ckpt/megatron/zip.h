/*
 * zip.h - ZIP files with stored (uncompressed) members, the container format of torch.save.
 *
 * The central directory at the end of the file lists the offset of each member.  ZIP64 fields hold values that exceed
 * 32 bits.  The format is specified by PKWARE's APPNOTE.TXT 6.3.
 */
#pragma once
#include <stdint.h>
#include "base/err.h"
#include "file/file.h"

struct meg_zip_member {
    char *name;
    const unsigned char *p;
    size_t n;
    uint32_t crc; /* CRC-32 from the central directory; 0: the writer may not have computed it */
};

/* The members of a file, sorted by name. */
struct meg_zip {
    struct meg_zip_member *member;
    int n;
};

/*
 * List the members of a ZIP file in *z.  `bytes` [n] are the contents of the file; the members point into `bytes`,
 * which must outlive z.  `from` is the name of the file in messages.  Returns MEG_EFORMAT if `bytes` is not a ZIP file,
 * or if a member is compressed, encrypted, outside the file or a duplicate.  Call meg_zip_free after success and after
 * an error.
 */
int meg_zip_open(struct meg_zip *z, const void *bytes, size_t n, const char *from, struct meg_err *e);
void meg_zip_free(struct meg_zip *z);
/* Compute the CRC-32 of bytes. */
uint32_t meg_zip_crc(const void *bytes, size_t n);
const struct meg_zip_member *meg_zip_find(const struct meg_zip *z, const char *name);

/*
 * A writer of a ZIP file, which is appended to the file *f; the caller creates *f and commits it.  Initialize with
 * { .f = &file }.
 */
struct meg_zip_writer {
    struct meg_file *f;
    uint64_t at; /* number of bytes written */
    struct meg_str directory;
    int n;
};
/* Write a member; its bytes are 64-byte aligned in the ZIP file. */
int meg_zip_add(struct meg_zip_writer *w, const char *name, const void *bytes, size_t n, struct meg_err *e);
/* Write the central directory; the caller commits the file. */
int meg_zip_finish(struct meg_zip_writer *w, struct meg_err *e);
void meg_zip_writer_free(struct meg_zip_writer *w);
