/*
 * Linked into everything under SAN=1: a plugin stays where it is when its library (MPI's, mostly)
 * closes it.  What such a plugin keeps to the end is then found in its data, and what it leaks has
 * its name, by which tests/lsan.supp knows it.
 */
int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
