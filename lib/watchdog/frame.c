/*
 * frame.c - watchdog frames over TCP.  A frame is a header and a payload.  The header has two 32-bit words: the type of
 * the frame, and the length of the payload in bytes.  All values are in host byte order.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "watchdog/internal.h"

enum {
    HEADER = 2 * sizeof(uint32_t),
    MIN_PAYLOAD = sizeof(struct watchdog_exit), /* minimum capacity: the largest payload of a frame of fixed length */
    MAX_PAYLOAD = 16 << 20, /* limit of values and results of the store; a gather of 8 bytes from 1e6 ranks has 8 MB */
    CONNECT_MS = 10000
};

/* ---- addresses ---- */

static socklen_t address_length(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* Return the port of an IPv4 or IPv6 address, in network byte order. */
static in_port_t *port_of(struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET ? &((struct sockaddr_in *)a)->sin_port : &((struct sockaddr_in6 *)a)->sin6_port;
}

/* Add an address, if it is one of IPv4, or one of IPv6 that is not link-local. */
static void add_address(struct watchdog_endpoint *to, const struct sockaddr *s)
{
    struct sockaddr_storage *a = &to->addr[to->naddrs];

    if (to->naddrs == sizeof to->addr / sizeof *to->addr)
        return;
    if (s->sa_family != AF_INET &&
        (s->sa_family != AF_INET6 || IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)s)->sin6_addr)))
        return;
    a->ss_family = s->sa_family;
    memcpy(a, s, address_length(a));
    *port_of(a) = htons((uint16_t)to->port);
    to->naddrs++;
}

/*
 * Add the addresses at which other hosts may reach this host, IPv4 first, up to the capacity of to->addr.  They are the
 * addresses of the interfaces that are up, except loopback and link-local IPv6 addresses.
 */
static void add_host_addresses(struct watchdog_endpoint *to)
{
    struct ifaddrs *all;

    if (getifaddrs(&all) < 0)
        return;
    for (int pass = 0; pass < 2; pass++)
        for (const struct ifaddrs *i = all; i; i = i->ifa_next)
            if (i->ifa_addr && (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK) &&
                i->ifa_addr->sa_family == (pass ? AF_INET6 : AF_INET))
                add_address(to, i->ifa_addr);
    freeifaddrs(all);
}

/* ---- sockets ---- */

static void set_nodelay(int fd)
{
    const int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

void watchdog_close_fd(int *fd)
{
    const int before = errno;

    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    errno = before;
}

/* Create a listening socket and bind it to an address.  Return the socket, or -1. */
static int bind_to(const struct sockaddr *a, socklen_t n)
{
    const int zero = 0, one = 1;
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if ((a->sa_family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) < 0) ||
        bind(fd, a, n) < 0)
        watchdog_close_fd(&fd);
    return fd;
}

/*
 * Create the listening socket.  If is_local, bind it to the IPv4 loopback address.  Otherwise, bind it to all IPv4
 * addresses and, if the machine supports IPv6, all IPv6 addresses.
 */
static int bind_socket(bool is_local, int port)
{
    const struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
    const struct sockaddr_in any = { .sin_family = AF_INET,
                                     .sin_port = htons((uint16_t)port),
                                     .sin_addr.s_addr = htonl(is_local ? INADDR_LOOPBACK : INADDR_ANY) };
    const int fd = is_local ? -1 : bind_to((const struct sockaddr *)&any6, sizeof any6);

    return fd >= 0 ? fd : bind_to((const struct sockaddr *)&any, sizeof any);
}

int watchdog_listen(struct watchdog_endpoint *to, bool is_local, int port)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    int fd;

    memset(to, 0, sizeof *to);
    if ((fd = bind_socket(is_local, port)) < 0)
        return -1;
    if (listen(fd, SOMAXCONN) < 0 || getsockname(fd, (struct sockaddr *)&at, &n) < 0 ||
        getrandom(to->token, sizeof to->token, 0) != sizeof to->token) {
        watchdog_close_fd(&fd);
        return -1;
    }
    to->port = ntohs(*port_of(&at));
    if (is_local)
        add_address(to, (struct sockaddr *)&at);
    else
        add_host_addresses(to);
    to->is_open = 1;
    return fd;
}

const char *watchdog_resolve(struct watchdog_endpoint *to, const struct meg_rendezvous *r)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *found;
    const int status = getaddrinfo(r->is_local ? "127.0.0.1" : r->host, NULL, &hints, &found);

    if (status != 0)
        return gai_strerror(status);
    memset(to, 0, sizeof *to);
    to->port = r->port;
    for (const struct addrinfo *i = found; i; i = i->ai_next)
        add_address(to, i->ai_addr);
    freeaddrinfo(found);
    memcpy(to->token, r->token, sizeof to->token);
    to->is_open = 1;
    return NULL;
}

static int connect_to(const struct sockaddr_storage *a)
{
    const int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    socklen_t n = sizeof(int);
    int failed = 0;

    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)a, address_length(a)) == 0)
        return fd;
    failed = errno;
    if (failed == EINPROGRESS) {
        failed = ETIMEDOUT;
        if (poll(&p, 1, CONNECT_MS) == 1)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &n);
    }
    if (!failed)
        return fd;
    close(fd);
    errno = failed;
    return -1;
}

int watchdog_connect(const struct watchdog_endpoint *to)
{
    errno = EADDRNOTAVAIL;
    for (int i = 0; i < to->naddrs; i++) {
        const int fd = connect_to(&to->addr[i]);

        if (fd >= 0) {
            set_nodelay(fd);
            return fd;
        }
    }
    return -1;
}

int watchdog_accept(int listen_fd)
{
    const int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd >= 0)
        set_nodelay(fd);
    return fd;
}

void watchdog_copy_name(char *to, const char *from, size_t cap)
{
    size_t n = 0;

    for (; n + 1 < cap && from[n]; n++)
        to[n] = (unsigned char)from[n] < ' ' || from[n] == 0x7f ? '?' : from[n];
    to[n] = 0;
}

/* ---- frames ---- */

void watchdog_close_conn(struct watchdog_conn *c)
{
    watchdog_close_fd(&c->fd);
    free(c->buf);
    free(c->out);
    memset(c, 0, sizeof *c);
    c->fd = c->rank = -1;
}

/* Grow *p, which has *cap bytes, to at least n bytes. */
static void reserve(unsigned char **p, size_t *cap, size_t n)
{
    if (n <= *cap)
        return;
    *cap = n < 2 * *cap ? 2 * *cap : n;
    *p = meg_realloc_array(*p, *cap, 1);
}

static void queue_bytes(struct watchdog_conn *c, const void *bytes, size_t n)
{
    if (!n)
        return;
    reserve(&c->out, &c->out_cap, c->nout + n);
    memcpy(c->out + c->nout, bytes, n);
    c->nout += n;
}

/* After an error, the queue is discarded; watchdog_recv will report that the connection is lost. */
void watchdog_send_queued(struct watchdog_conn *c)
{
    while (c->nsent < c->nout) {
        const ssize_t n = send(c->fd, c->out + c->nsent, c->nout - c->nsent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n < 0)
            break;
        c->nsent += (size_t)n;
    }
    c->nsent = c->nout = 0;
}

void watchdog_send_two(struct watchdog_conn *c, enum watchdog_frame_type type, const void *first, size_t nfirst,
                       const void *second, size_t nsecond)
{
    const uint32_t header[2] = { (uint32_t)type, (uint32_t)(nfirst + nsecond) };

    if (c->fd < 0 || (type == WATCHDOG_HEARTBEAT && c->nout))
        return;
    queue_bytes(c, header, HEADER);
    queue_bytes(c, first, nfirst);
    queue_bytes(c, second, nsecond);
    watchdog_send_queued(c);
}

void watchdog_send(struct watchdog_conn *c, enum watchdog_frame_type type, const void *payload, size_t n)
{
    watchdog_send_two(c, type, payload, n, NULL, 0);
}

/*
 * Return whether the header describes a valid frame.  Only a peer that has joined may send values and results of the
 * store, which have a variable length.
 */
static bool is_valid(const struct watchdog_conn *c, const uint32_t header[2])
{
    static const uint32_t nbytes[] = { [WATCHDOG_JOIN] = sizeof(struct watchdog_join_request),
                                       [WATCHDOG_WELCOME] = sizeof(struct watchdog_welcome),
                                       [WATCHDOG_HEARTBEAT] = sizeof(struct watchdog_rank_state),
                                       [WATCHDOG_QUERY] = 0,
                                       [WATCHDOG_TIMEOUT] = 0,
                                       [WATCHDOG_EXITING] = sizeof(struct watchdog_exit),
                                       [WATCHDOG_EXIT_ALL] = sizeof(struct watchdog_exit),
                                       [WATCHDOG_STORE_VALUE] = sizeof(struct meg_store_collective),
                                       [WATCHDOG_STORE_RESULT] = sizeof(struct meg_store_collective),
                                       [WATCHDOG_BYE] = 0 };

    if (header[0] < WATCHDOG_JOIN || header[0] > WATCHDOG_BYE)
        return false;
    if (header[0] == WATCHDOG_STORE_VALUE || header[0] == WATCHDOG_STORE_RESULT)
        return c->rank >= 0 && header[1] >= nbytes[header[0]] && header[1] <= MAX_PAYLOAD;
    return header[1] == nbytes[header[0]];
}

/* Return whether the buffer has a complete frame, or an invalid header. */
static bool is_complete(const struct watchdog_conn *c, uint32_t header[2])
{
    if (c->nread < HEADER)
        return false;
    memcpy(header, c->buf, HEADER);
    return !is_valid(c, header) || c->nread >= HEADER + header[1];
}

/* Remove the frame that the last watchdog_recv returned, if any, from the buffer. */
static void drop_frame(struct watchdog_conn *c)
{
    c->nread -= c->frame_nbytes;
    if (c->frame_nbytes)
        memmove(c->buf, c->buf + c->frame_nbytes, c->nread);
    c->frame_nbytes = 0;
}

int watchdog_recv(struct watchdog_conn *c, enum watchdog_frame_type *type, const void **payload, size_t *nbytes)
{
    uint32_t header[2] = { 0 };
    ssize_t n;

    drop_frame(c);
    while (!is_complete(c, header)) {
        reserve(&c->buf, &c->buf_nbytes, HEADER + (header[1] > MIN_PAYLOAD ? header[1] : MIN_PAYLOAD));
        n = recv(c->fd, c->buf + c->nread, c->buf_nbytes - c->nread, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n <= 0)
            return -1;
        c->nread += (size_t)n;
    }
    if (!is_valid(c, header))
        return -1;
    *type = (enum watchdog_frame_type)header[0];
    *payload = c->buf + HEADER;
    *nbytes = header[1];
    c->frame_nbytes = HEADER + header[1];
    return 1;
}
