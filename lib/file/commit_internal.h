/* commit_internal.h - commit journals, for commit.c; commit.h describes when a journal is valid and followed. */
#pragma once
#include <stdbool.h>
#include "base/err.h"
#include "file/commit.h"

/* A file or directory of a set, with its final and its temporary path. */
struct meg_commit_member {
    char *path, *tmp;
    bool has_backup; /* the old file has a link under its backup name, or there is no old file */
};

struct meg_commit_set {
    struct meg_commit_member *v;
    int n;
};

/* Add a member, which takes ownership of both strings. */
void meg_commit_set_add(struct meg_commit_set *s, char *path, char *tmp);
void meg_commit_set_free(struct meg_commit_set *s);

/* Return the name of the journal of path, or of the backup of a member; the caller frees the result. */
char *meg_commit_journal_path(const char *path);
char *meg_commit_backup_path(const struct meg_commit_member *m);

/* Return whether the temporary file of a member exists and belongs to the effective user or to root. */
bool meg_commit_has_tmp(const struct meg_commit_member *m);

enum meg_commit_journal {
    MEG_COMMIT_NO_JOURNAL,
    MEG_COMMIT_OTHER_OWNER,   /* a file of another user, which is not read */
    MEG_COMMIT_NOT_A_JOURNAL, /* a file with the name of a journal */
    MEG_COMMIT_VALID
};

/*
 * Read the journal of path into *s, and set *is_committed to whether the set is committed, that is, whether the first
 * file of the set has the same journal.  The set is empty unless MEG_COMMIT_VALID is returned.
 */
enum meg_commit_journal meg_commit_read(struct meg_commit_set *s, bool *is_committed, const char *path);

/* Write the journals, the commit record last; on failure, remove all journals. */
int meg_commit_write_journals(const struct meg_commit_set *s, struct meg_err *e);
int meg_commit_remove_journal(const struct meg_commit_member *m, struct meg_err *e);
void meg_commit_remove_journals(const struct meg_commit_set *s);
