/* A QEMU plugin (API version 1) that prints how many instructions a program executed.
 *
 * Declared here by hand: Debian ships the emulator without qemu-plugin.h. */

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef uint64_t plugin_id;
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*)(plugin_id, void *block));
extern void qemu_plugin_register_vcpu_tb_exec_cb(void *block, void (*)(unsigned cpu, void *data),
                                                 int flags, void *data);
extern void qemu_plugin_register_atexit_cb(plugin_id id, void (*)(plugin_id, void *), void *data);
extern size_t qemu_plugin_tb_n_insns(const void *block);

int qemu_plugin_version = 1;
static uint64_t executed;

static void on_execution(unsigned cpu, void *instructions)
{
    (void)cpu;
    executed += (uintptr_t)instructions;
}

static void on_translation(plugin_id id, void *block)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, on_execution, 0,
                                         (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

static void on_exit(plugin_id id, void *data)
{
    (void)id;
    (void)data;
    fprintf(stderr, "instructions %" PRIu64 "\n", executed);
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_atexit_cb(id, on_exit, NULL);
    return 0;
}
