/* Compares policy.c with the outputs recorded in test_vectors.h; exit status 1 if they differ.
 *
 * test_policy          one line of text
 * test_policy CALLS    JSON: the same, and the nanoseconds that each of CALLS decisions took
 * test_policy -CALLS   nothing: for a count of the instructions of CALLS decisions */

#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "policy.h"
#include "test_vectors.h"

static long long nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* A line of /proc/self/status in bytes, or 0. */
static long long status_bytes(const char *name)
{
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)))
            kib = atoll(line + strlen(name));
    fclose(file);
    return 1024 * kib;
}

static int same_action(int v)
{
#ifdef POLICY_DISCRETE
    return policy_act(test_obs[v]) == test_actions[v];
#else
    float action[POLICY_OUTPUTS];
    policy_act(test_obs[v], action);
    for (int i = 0; i < POLICY_OUTPUTS; i++)
        if (!(fabsf(action[i] - test_actions[v][i]) <= TEST_ACTION_TOLERANCE))
            return 0;
    return 1;
#endif
}

int main(int argc, char **argv)
{
    const int calls = argc > 1 ? atoi(argv[1]) : 0;
    double worst = 0.0;
    int agree = 0, correct = 1;
    float outputs[POLICY_OUTPUTS];
    for (int v = 0; v < TEST_VECTORS; v++) {
        policy_run(test_obs[v], outputs);
        for (int i = 0; i < POLICY_OUTPUTS; i++) {
            const double error = fabs((double)outputs[i] - test_outputs[v][i]);
            worst = error > worst ? error : worst;
            correct = correct && error <= TEST_TOLERANCE; /* false for NaN */
        }
        agree += same_action(v);
    }
    if (!calls) {
        printf("%s: %d observations, largest difference %.3g (allowed %.3g), %d actions as recorded\n",
               correct ? "ok" : "FAILED", TEST_VECTORS, worst, TEST_TOLERANCE, agree);
        return !correct;
    }
    if (calls < 0) {
        for (int call = 0; call < -calls; call++)
            policy_run(test_obs[call % TEST_VECTORS], outputs);
        return !correct;
    }
    const long long resident = status_bytes("VmRSS:"), peak = status_bytes("VmHWM:");
    long long *took = malloc((size_t)calls * sizeof *took);
    if (!took)
        return 2;
    for (int call = 0; call < calls; call++) {
        const long long started = nanoseconds();
        policy_run(test_obs[call % TEST_VECTORS], outputs);
        took[call] = nanoseconds() - started;
    }
    printf("{\"observations\": %d, \"correct\": %s, \"largest_difference\": %.9g, "
           "\"tolerance\": %.9g, \"actions_as_recorded\": %d, \"latency_ns\": [",
           TEST_VECTORS, correct ? "true" : "false", worst, TEST_TOLERANCE, agree);
    for (int call = 0; call < calls; call++)
        printf("%s%lld", call ? ", " : "", took[call]);
    printf("], \"resident_bytes\": %lld, \"peak_resident_bytes\": %lld}\n", resident, peak);
    free(took);
    return !correct;
}
