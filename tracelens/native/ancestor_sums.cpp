// Sums over each row of a forest and all rows around it, as table.statistics.ancestor_sums says it.
#include "core.h"

namespace core {

PyObject *ancestor_sums(PyObject *, PyObject *args) {
    Array<const std::int64_t> parent;
    Array<std::int64_t> total;
    if (!PyArg_ParseTuple(args, "O&O&", parent.convert, &parent, total.convert, &total)) return nullptr;
    if (parent.size() != total.size())
        return PyErr_Format(PyExc_ValueError, "arrays of %zu and %zu rows", parent.size(), total.size());

    bool is_ordered = true;
    const bool done = unlocked([&] {
        for (std::size_t row = 0; row < total.size(); ++row) {
            if (parent[row] < 0) continue;
            const auto around = static_cast<std::size_t>(parent[row]);
            if (around >= row) {
                is_ordered = false;
                return;
            }
            total[row] += total[around];
        }
    });
    if (!done) return nullptr;
    if (!is_ordered) return PyErr_Format(PyExc_ValueError, "a parent that is not before its row");
    Py_RETURN_NONE;
}

}  // namespace core
