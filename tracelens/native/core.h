// What the files of the core share: arguments are buffers (numpy arrays), results are written into buffers.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace core {

PyObject *ancestor_sums(PyObject *, PyObject *args);
PyObject *nearest(PyObject *, PyObject *args);
PyObject *nest(PyObject *, PyObject *args);
PyObject *renumber(PyObject *, PyObject *args);
PyObject *scanner_type();  // a new reference
PyObject *replay(PyObject *, PyObject *args);
PyObject *running(PyObject *, PyObject *args);
PyObject *subtree_sums(PyObject *, PyObject *args);

// A one-dimensional array of T that Python lends for the length of a call.
template <typename T>
class Array {
  public:
    Array() = default;
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;
    ~Array() {
        if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }

    T *data() const { return static_cast<T *>(view_.buf); }
    std::size_t size() const { return static_cast<std::size_t>(view_.len) / sizeof(T); }
    T &operator[](std::size_t row) const { return data()[row]; }

    // For PyArg_ParseTuple's O&: contiguous, of items of this size; written to unless T is const.
    static int convert(PyObject *object, void *target) {
        Array *array = static_cast<Array *>(target);
        const int flags = PyBUF_CONTIG_RO | (std::is_const_v<T> ? 0 : PyBUF_WRITABLE);
        if (PyObject_GetBuffer(object, &array->view_, flags) < 0) return 0;
        if (array->view_.itemsize == sizeof(T)) return 1;
        PyErr_Format(PyExc_TypeError, "items of %zd bytes, not %zu", array->view_.itemsize, sizeof(T));
        return 0;
    }

  private:
    Py_buffer view_{};
};

// Runs a function without the interpreter's lock; false, with MemoryError set, where memory ran out.
template <typename Function>
bool unlocked(Function function) {
    bool done = true;
    PyThreadState *state = PyEval_SaveThread();
    try {
        function();
    } catch (const std::bad_alloc &) {
        done = false;
    }
    PyEval_RestoreThread(state);
    if (!done) PyErr_NoMemory();
    return done;
}

}  // namespace core
