/* sanitized.h - whether the test is built with a sanitizer, which takes memory of its own and many times as long. */
#ifndef TESTS_UNIT_SANITIZED_H
#define TESTS_UNIT_SANITIZED_H

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

#endif
