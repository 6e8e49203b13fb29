// The nearest selected row around each row of a forest, as table.statistics.nearest says it.
#include "core.h"

#include <algorithm>

namespace core {

PyObject *nearest(PyObject *, PyObject *args) {
    Array<const std::int64_t> parent;
    Array<const bool> selected;
    Array<std::int64_t> result;
    if (!PyArg_ParseTuple(args, "O&O&O&", parent.convert, &parent, selected.convert, &selected, result.convert,
                          &result))
        return nullptr;
    const auto count = static_cast<std::int64_t>(parent.size());
    for (std::size_t size : {selected.size(), result.size()})
        if (size != parent.size())
            return PyErr_Format(PyExc_ValueError, "arrays of %zu and %zu rows", parent.size(), size);

    bool is_inside = true;
    const bool done = unlocked([&] {
        // Parents come first where rows are in order of time.
        std::int64_t row = 0;
        for (; row < count && parent[row] < row; ++row)
            result[row] = selected[row] ? row : parent[row] < 0 ? -1 : result[parent[row]];
        constexpr std::int64_t unknown = -2;
        std::fill(result.data() + row, result.data() + count, unknown);
        for (; row < count; ++row) {
            // Up to a row whose answer is known, then all the way again to write it down.
            std::int64_t around = row;
            while (around >= 0 && result[around] == unknown) {
                result[around] = selected[around] ? around : -1;
                if (selected[around]) break;
                around = parent[around];
                if (around >= count) {
                    is_inside = false;
                    return;
                }
            }
            const std::int64_t found = around < 0 ? -1 : result[around];
            for (std::int64_t below = row; below != around; below = parent[below]) result[below] = found;
        }
    });
    if (!done) return nullptr;
    if (!is_inside) return PyErr_Format(PyExc_ValueError, "a parent beyond %zu rows", parent.size());
    Py_RETURN_NONE;
}

}  // namespace core
