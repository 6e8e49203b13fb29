// The extension module tracelens.native._core: its functions, each in the file of its subject.
#include "core.h"

#ifndef TRACELENS_SOURCES
#define TRACELENS_SOURCES ""
#endif

static PyMethodDef methods[] = {
    {"ancestor_sums", core::ancestor_sums, METH_VARARGS, nullptr},
    {"nearest", core::nearest, METH_VARARGS, nullptr},
    {"nest", core::nest, METH_VARARGS, nullptr},
    {"replay", core::replay, METH_VARARGS, nullptr},
    {"renumber", core::renumber, METH_VARARGS, nullptr},
    {"running", core::running, METH_VARARGS, nullptr},
    {"subtree_sums", core::subtree_sums, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

static int fill(PyObject *module) {
    PyObject *scanner = core::scanner_type();
    if (scanner == nullptr) return -1;
    const int added = PyModule_AddObjectRef(module, "Scanner", scanner);
    Py_DECREF(scanner);
    if (added < 0) return -1;
    // Digest of the sources that it was compiled from.
    return PyModule_AddStringConstant(module, "SOURCES", TRACELENS_SOURCES);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void *>(fill)},
    {0, nullptr},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_core", nullptr, 0, methods, slots, nullptr, nullptr, nullptr,
};

PyMODINIT_FUNC PyInit__core() { return PyModuleDef_Init(&definition); }
