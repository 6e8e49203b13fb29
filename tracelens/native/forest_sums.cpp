// Sums over each row of a forest and the rows around it or below it, as table.statistics says them.
#include "core.h"

namespace core {
namespace {

using Rows = Array<const std::int64_t>;
using Sums = Array<std::int64_t>;

// Calls `sum(rows, total)` and returns True, or False, with nothing changed, where a parent stands behind its row.
template <typename Sum>
PyObject *with_parents_first(PyObject *args, Sum sum) {
    Rows parent;
    Sums total;
    if (!PyArg_ParseTuple(args, "O&O&", parent.convert, &parent, total.convert, &total)) return nullptr;
    if (parent.size() != total.size())
        return PyErr_Format(PyExc_ValueError, "arrays of %zu and %zu rows", parent.size(), total.size());

    bool is_ordered = true;
    const bool done = unlocked([&] {
        for (std::size_t row = 0; row < parent.size(); ++row)
            is_ordered &= parent[row] < static_cast<std::int64_t>(row);
        if (is_ordered) sum(parent, total);
    });
    return done ? PyBool_FromLong(is_ordered) : nullptr;
}

}  // namespace

PyObject *ancestor_sums(PyObject *, PyObject *args) {
    return with_parents_first(args, [](const Rows &parent, const Sums &total) {
        for (std::size_t row = 0; row < total.size(); ++row)
            if (parent[row] >= 0) total[row] += total[static_cast<std::size_t>(parent[row])];
    });
}

PyObject *subtree_sums(PyObject *, PyObject *args) {
    return with_parents_first(args, [](const Rows &parent, const Sums &total) {
        for (std::size_t row = total.size(); row-- > 0;)
            if (parent[row] >= 0) total[static_cast<std::size_t>(parent[row])] += total[row];
    });
}

}  // namespace core
